"""Start the real nginx in front of a model server. Standard library only.

    BLOCKS = 'server { listen 127.0.0.1:@port:plain@; location / { proxy_pass @llama@; } }'
    with Nginx(BLOCKS, llama=server.base_url) as nginx:
        ...  # nginx.url("plain"), for example http://127.0.0.1:40123; nginx.seen()

It runs as whoever runs the tests, in a folder of its own, and is gone when the block ends.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any, TypeVar

from ports import PortTaken, free_port

# /usr/sbin is not in everybody's path.
PATHS = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])

# A worker that is not root's could not enter the folder, which is root's then.
FRAME = """
@user@
daemon off;
worker_processes 1;
pid nginx.pid;
error_log stderr;
events { worker_connections 256; }
http {
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    default_type text/html;
    log_format seen escape=json
        '{"connection": "$connection", "name": "$server_name", "request": "$request",'
        ' "status": "$status", "request_id": "$request_id", "host": "$http_host",'
        ' "authorization": "$http_authorization", "proxy": "$http_proxy_authorization",'
        ' "via": "$http_via", "client": "$ssl_client_s_dn"}';
    access_log access.log seen;
    server {
        listen 127.0.0.1:@port:control@;
        access_log off;
        location = /worker { return 200 $pid; }
        location = /status { stub_status; }
    }
    @blocks@
}
"""


def binary() -> str | None:
    return shutil.which("nginx", path=PATHS)


def why_not() -> str | None:
    """Why nginx does not run here, or None when it does."""
    path = binary()
    if path is None:
        return "*** nginx is not installed: sudo apt-get install nginx-light"
    try:
        done = subprocess.run(
            [path, "-V"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"*** {path} does not run: {error}"
    told = done.stdout.decode("utf-8", "replace")
    for module in ("http_ssl_module", "http_stub_status_module"):
        if module not in told:
            return f"*** {path} has no {module}: {told[:200]}"
    return None


_Running = TypeVar("_Running", bound="Nginx")


class Nginx:
    """nginx with these server blocks, while its `with` block runs.

    `@port:name@` becomes a free port, the same wherever that name is; `@name@` one of `values`.
    """

    def __init__(self, blocks: str, **values: str) -> None:
        self.blocks, self.values = blocks, values
        self.ports: dict[str, int] = {}

    def __enter__(self: _Running) -> _Running:
        for left in reversed(range(5)):
            self.folder = tempfile.TemporaryDirectory(prefix="svir-nginx-")
            try:
                self._start(Path(self.folder.name))
                return self
            except BaseException as error:  # KeyboardInterrupt too must leave nothing running
                self.__exit__()
                if not isinstance(error, PortTaken) or not left:
                    raise
        raise AssertionError

    def __exit__(self, *exc: object) -> None:
        process = getattr(self, "process", None)
        if process is not None:
            process.terminate()  # a fast shutdown, workers and all; SIGKILL would leave them
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
        self.folder.cleanup()

    def _start(self, folder: Path) -> None:
        path = binary()
        if path is None:
            raise FileNotFoundError(why_not())
        (folder / "nginx.conf").write_text(self._configuration(), encoding="utf-8")
        (folder / "logs").mkdir()  # where some builds look before they read the file
        self.log = folder / "log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [path, "-p", str(folder), "-c", "nginx.conf"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._wait(time.monotonic() + 20)

    def _configuration(self) -> str:
        self.ports = {}
        root = hasattr(os, "getuid") and os.getuid() == 0
        text = FRAME.replace("@user@", "user root;" if root else "")
        text = text.replace("@blocks@", self.blocks)
        for name in re.findall(r"@port:(\w+)@", text):
            if name not in self.ports:
                self.ports[name] = free_port()
            text = text.replace(f"@port:{name}@", str(self.ports[name]))
        for name, value in self.values.items():
            text = text.replace(f"@{name}@", value)
        left = re.search(r"@[\w:]+@", text)
        if left is not None:
            raise ValueError(f"no value for {left.group()}")
        return text

    def _wait(self, end: float) -> None:
        while True:
            ended = self.process.poll() is not None  # before the log is read, which is whole then
            words = self.log.read_text("utf-8", "replace")
            if "Address already in use" in words:
                raise PortTaken(words)
            if ended or time.monotonic() > end:
                raise RuntimeError(f"nginx did not start: {words[-2000:]}")
            if self.is_up():
                return
            time.sleep(0.01)

    def url(self, name: str, host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.ports[name]}"

    def worker(self) -> int:
        """The process that answers."""
        return int(self._ask("/worker"))

    def is_up(self) -> bool:
        """Whether it answers; once its worker was killed, not for a moment."""
        try:
            return self.worker() > 0
        except OSError:
            return False

    def is_busy(self) -> bool:
        """Whether a request is not finished yet, besides this one."""
        return self._count("Reading") + self._count("Writing") > 1

    def idle_connections(self) -> int:
        """How many it keeps open for a further request."""
        return self._count("Waiting")

    def _count(self, what: str) -> int:
        found = re.search(what + r": (\d+)", self._ask("/status"))
        assert found is not None
        return int(found.group(1))

    def seen(self) -> list[dict[str, Any]]:
        """The requests it has finished, as it logs them: perhaps a moment after their answer."""
        try:
            log = Path(self.folder.name, "access.log").read_text("utf-8", "replace")
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in log.splitlines()]

    def words(self) -> str:
        """What it said of errors."""
        return self.log.read_text("utf-8", "replace")

    def _ask(self, path: str) -> str:
        # Never through a proxy that the environment names.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(self.url("control") + path, timeout=5) as answer:
            told: bytes = answer.read()
            return told.decode("utf-8")
