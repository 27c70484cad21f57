"""Start a real forward proxy, tinyproxy or squid. Standard library only.

    with Proxy("squid", password="pw") as proxy:  # without one: no password is asked for
        ...  # proxy.url, for example http://127.0.0.1:40123; proxy.asked()

It runs in a folder of its own, and is gone when the block ends.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from nginx import PATHS
from ports import PortTaken, free_port

NAMES = ("tinyproxy", "squid")
USER = "user"

TINYPROXY = """
Port {port}
Listen 127.0.0.1
Allow 127.0.0.1
Timeout 60
MaxClients 50
LogLevel Connect
LogFile "{folder}/access.log"
{password}
"""

SQUID = """
http_port 127.0.0.1:{port}
visible_hostname localhost
pid_filename none
cache deny all
cache_mem 1 MB
max_filedescriptors 1024
shutdown_lifetime 0 seconds
pinger_enable off
netdb_filename none
coredump_dir none
logformat asked %rm %ru
access_log stdio:{folder}/access.log logformat=asked
cache_log {folder}/cache.log
{user}
{password}
http_access deny all
"""

# What squid asks about a name and a password: a line each.
CHECK = """
while read -r line; do
  if [ "$line" = "{user} {password}" ]; then echo OK; else echo ERR; fi
done
"""


def binary(name: str) -> str | None:
    return shutil.which(name, path=PATHS)


def why_not(name: str) -> str | None:
    """Why this proxy does not run here, or None when it does."""
    path = binary(name)
    if path is None:
        return f"*** {name} is not installed: sudo apt-get install {name}"
    try:
        subprocess.run([path, "-v"], stdout=subprocess.DEVNULL, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return f"*** {path} does not run: {error}"
    return None


class Proxy:
    """tinyproxy or squid on a free port, while its `with` block runs."""

    def __init__(self, name: str, password: str = "") -> None:
        self.name, self.password = name, password
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Proxy:
        for left in reversed(range(5)):
            # Not pytest's: squid gives root up, and must get into the folder.
            self.folder = tempfile.TemporaryDirectory(prefix="svir-proxy-")
            try:
                self._start(Path(self.folder.name))
                return self
            except BaseException as error:  # KeyboardInterrupt too must leave nothing running
                self.__exit__()
                if not isinstance(error, PortTaken) or not left:
                    raise
        raise AssertionError

    def __exit__(self, *exc: object) -> None:
        process = self.process
        if process is not None:
            self.kill()
            for path in Path("/dev/shm").glob(f"{self._service}-*.shm"):  # squid leaves them
                path.unlink()
        self.folder.cleanup()

    def kill(self) -> None:
        """At once, in the middle of what it does."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)  # squid has a helper
            self.process.wait(10)

    def url_with(self, password: str) -> str:
        return self.url.replace("//", f"//{USER}:{password}@")

    def asked(self) -> list[str]:
        """Method and target of what it was asked for, as it logs them."""
        try:
            log = Path(self.folder.name, "access.log").read_text("utf-8", "replace")
        except FileNotFoundError:
            return []
        if self.name == "squid":  # which logs a connection without a request, too
            return [line for line in log.splitlines() if "error:transaction-end" not in line]
        return re.findall(r"Request \(file descriptor \d+\): (\S+ \S+) HTTP/1\.[01]", log)

    def words(self) -> str:
        """All it wrote: its logs, and what it said at the start."""
        names = ("access.log", "cache.log", "said")
        paths = [Path(self.folder.name, name) for name in names]
        return "".join(path.read_text("utf-8", "replace") for path in paths if path.exists())

    def _start(self, folder: Path) -> None:
        path = binary(self.name)
        if path is None:
            raise FileNotFoundError(why_not(self.name))
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._service = f"svir{os.getpid()}x{self.port}"
        options = self._squid(folder) if self.name == "squid" else self._tinyproxy(folder)
        with open(folder / "said", "wb") as said:
            self.process = subprocess.Popen(
                [path, *options],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
            )
        self._wait(time.monotonic() + 20)

    def _tinyproxy(self, folder: Path) -> list[str]:
        password = f"BasicAuth {USER} {self.password}" if self.password else ""
        text = TINYPROXY.format(port=self.port, folder=folder, password=password)
        (folder / "conf").write_text(text, encoding="utf-8")
        return ["-d", "-c", str(folder / "conf")]

    def _squid(self, folder: Path) -> list[str]:
        user, password = "", "http_access allow all"
        if os.getuid() == 0:
            user = "cache_effective_user nobody"
            folder.chmod(0o777)
        if self.password:
            check = CHECK.format(user=USER, password=self.password)
            (folder / "check.sh").write_text(check, encoding="utf-8")
            password = (
                f"auth_param basic program /bin/sh {folder}/check.sh\n"
                "auth_param basic children 1 startup=1\n"
                "acl known proxy_auth REQUIRED\nhttp_access allow known"
            )
        text = SQUID.format(port=self.port, folder=folder, user=user, password=password)
        (folder / "conf").write_text(text, encoding="utf-8")
        # The name keeps its shared memory apart from another squid's.
        return ["-N", "-n", self._service, "-f", str(folder / "conf")]

    def _wait(self, end: float) -> None:
        assert self.process is not None
        while True:
            ended = self.process.poll() is not None  # before the logs are read, whole then
            words = self.words()
            if re.search(r"[Aa]ddress already in use|Could not create listening", words):
                raise PortTaken(words)
            if ended or time.monotonic() > end:
                raise RuntimeError(f"{self.name} did not start: {words[-2000:]}")
            try:
                socket.create_connection(("127.0.0.1", self.port), 5).close()
                return
            except OSError:
                time.sleep(0.01)
