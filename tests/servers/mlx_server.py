"""Start the real mlx_lm.server with the tiny scripted model. Standard library only.

    with MlxServer() as server:
        ...  # server.base_url, for example http://127.0.0.1:40123

The program has an environment of its own, with what .ci/mlx.txt pins; MLX_LM_SERVER names it. It
asks nothing of any network.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

import make_tiny_model
from ports import free_port

HOW = (
    "python3 -m venv V; V/bin/pip install -r .ci/mlx.txt; export MLX_LM_SERVER=V/bin/mlx_lm.server"
)


def binary() -> str | None:
    return shutil.which(os.environ.get("MLX_LM_SERVER") or "mlx_lm.server")


def why_not() -> str | None:
    """Why mlx_lm.server does not run here, or None when it seems to."""
    return None if binary() is not None else f"*** mlx-lm is not installed: {HOW}"


def tiny_model(folder: str) -> str:
    """Write the scripted model as mlx-lm reads one; its one layer has 512 numbers a token."""
    tokens, ids, following, second, default = make_tiny_model.build()
    dim = 128 * ((len(tokens) + 127) // 128)
    embed, head = make_tiny_model.matrices(tokens, following, second, default, dim)
    make_tiny_model.write_hf(folder, tokens, ids, embed, head, dim, 32, dim // 64, 8192)
    return folder


class MlxServer:
    """mlx_lm.server on 127.0.0.1, while its `with` block runs. It serves one model.

    `model` is its path, which is the id that the server lists. `cache` is where the server looks
    for further models: it lists none at all while that folder is not there.
    """

    def __enter__(self) -> MlxServer:
        self.process: subprocess.Popen[bytes] | None = None
        self.folder = tempfile.TemporaryDirectory(prefix="svir-mlx-")
        try:
            self._start(Path(self.folder.name))
        except BaseException:  # KeyboardInterrupt too must leave nothing running
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(10)
        self.folder.cleanup()

    def _start(self, folder: Path) -> None:
        path = binary()
        if path is None:
            raise FileNotFoundError(why_not())
        self.model = os.path.realpath(tiny_model(str(folder / "tiny")))
        self.cache = folder / "home" / "hub"
        self.cache.mkdir(parents=True)
        port = free_port()
        self.base_url = f"http://127.0.0.1:{port}"
        options = ["--model", self.model, "--host", "127.0.0.1", "--port", str(port)]
        environ = {**os.environ, "HF_HOME": str(folder / "home"), "HF_HUB_OFFLINE": "1"}
        for name in ("PYTHONPATH", "PYTHONHOME", "PYTHONWARNINGS", "HF_HUB_CACHE"):
            environ.pop(name, None)
        with open(folder / "log", "wb") as log:
            self.process = subprocess.Popen(
                [path, *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ
            )
        self._wait(folder / "log", time.monotonic() + 60)

    def _wait(self, log: Path, end: float) -> None:
        assert self.process is not None
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while True:
            if self.process.poll() is not None or time.monotonic() > end:
                words = log.read_text("utf-8", "replace")[-2000:]
                raise RuntimeError(f"mlx_lm.server did not start: {words}")
            try:
                with opener.open(self.base_url + "/health", timeout=5) as answer:
                    answer.read()
                return
            except OSError:
                time.sleep(0.05)
