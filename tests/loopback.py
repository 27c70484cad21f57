"""Peers on the loopback interface that do one thing each, readers in threads, and what is left."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable, Iterator

import svir

ROOT = Path(__file__).resolve().parent.parent

# -- Peers ----------------------------------------------------------------------------------------


class Peer:
    """A listener that runs `talk(conn)` for each connection, in a thread, and then closes it.

    An OSError of `talk` is the client's leaving, or ours: the end of the block shuts everything
    down. Any other exception is raised there again. `talk` may set an event for the test.
    """

    def __init__(self, talk: Callable[[Any], object], *, host: str = "127.0.0.1") -> None:
        self._talk = talk
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=64)
        self.port: int = self._listener.getsockname()[1]
        self.netloc = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"
        self.url, self.tls_url = f"http://{self.netloc}", f"https://{self.netloc}"
        self.connections = 0
        self._open: list[socket.socket] = []
        self._failures: list[BaseException] = []
        self._closing = False
        self._threads = [threading.Thread(target=self._accept, name="Peer", daemon=True)]

    def __enter__(self) -> Peer:
        self._threads[0].start()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self._closing = True
        with contextlib.suppress(OSError), socket.socket(self._listener.family) as last:
            last.settimeout(5)
            last.connect(self._listener.getsockname())  # ends accept() on every platform
        self._threads[0].join(10)
        self._listener.close()
        for conn in list(self._open):
            with contextlib.suppress(OSError):
                socket.socket.shutdown(conn, socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive(), "a thread of the peer did not end"
        if self._failures and error is None:
            raise self._failures[0]

    def _accept(self) -> None:
        while True:
            conn, _ = self._listener.accept()
            if self._closing:
                conn.close()
                return
            self.connections += 1
            self._open.append(conn)
            thread = threading.Thread(target=self._serve, args=(conn,), name="Peer", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, conn: socket.socket) -> None:
        with conn:
            try:
                conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._talk(conn)
            except OSError:
                pass
            except BaseException as error:  # shown when the block ends
                self._failures.append(error)
            self._open.remove(conn)


def read_head(conn: Any) -> bytes:
    """What comes up to the blank line after a head, a byte at a time: nothing of what follows."""
    data = b""
    while not data.endswith(b"\r\n\r\n"):
        byte = conn.recv(1)
        if not byte:
            raise ConnectionError("the client left")
        data += byte
    return data


def until_the_end(conn: Any) -> bytes:
    """Everything the other side sends until it closes."""
    return b"".join(iter(lambda: conn.recv(65536), b""))


@contextlib.contextmanager
def full_backlog() -> Iterator[str]:
    """The URL of a listener that answers no further connection, its queue being full."""
    listener = socket.socket()
    fillers = [socket.socket() for _ in range(4)]
    try:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        for opened in (*fillers, listener):
            opened.close()


# -- Readers --------------------------------------------------------------------------------------


class Reader:
    """Runs `read()` in a thread of its own: what it gave or raised, and when it ended."""

    def __init__(self, read: Callable[[], Any]) -> None:
        self.value: Any = None
        self.error: BaseException | None = None
        self.ended_at = 0.0
        self.thread = threading.Thread(target=self._run, args=(read,), name="Reader", daemon=True)
        self.thread.start()

    def _run(self, read: Callable[[], Any]) -> None:
        try:
            self.value = read()
        except BaseException as error:
            self.error = error.with_traceback(None)  # its frames would hold this reader
        self.ended_at = time.monotonic()

    def join(self, timeout: float = 10.0) -> bool:
        """Whether it has ended, in time."""
        self.thread.join(timeout)
        return not self.thread.is_alive()


def settle(thread: threading.Thread, timeout: float = 10.0) -> None:
    """Wait until the thread blocks inside svir: until it stays at one instruction for a while."""
    end, last, same = time.monotonic() + timeout, None, 0
    while same < 4:
        here = _place(thread) if _sleeps(thread) else None
        same, last = (same + 1 if here is not None and here == last else 0), here
        assert time.monotonic() < end, "the thread does not block"
        time.sleep(0.003)


def _place(thread: threading.Thread) -> tuple[int, int] | None:
    """The instruction the thread is at, when svir is among its callers."""
    innermost = frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None and frame.f_code.co_filename != svir.__file__:
        frame = frame.f_back
    if frame is None or innermost is None:
        return None
    return id(innermost), innermost.f_lasti


def _sleeps(thread: threading.Thread) -> bool:
    """Whether the thread waits, and not for a processor; where the system tells."""
    try:
        stat = Path(f"/proc/self/task/{thread.native_id}/stat").read_text("utf-8")
    except OSError:
        return True
    return stat.rpartition(")")[2].split()[0] == "S"


def eventually(condition: Callable[[], object], timeout: float = 10.0) -> None:
    """Wait for what nothing announces."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.002)


def read_all(opened: svir.Stream | svir.RawStream) -> Any:
    """A stream's completion, or every byte of a raw stream."""
    if isinstance(opened, svir.Stream):
        return opened.result()
    with opened:
        return b"".join(opened)


def timed(call: Callable[[], Any]) -> tuple[float, svir.Error]:
    """Seconds and error of a call that has to fail with an error of svir's own."""
    started = time.monotonic()
    try:
        value = call()
    except svir.Error as error:
        return time.monotonic() - started, error
    raise AssertionError(f"no error, but {value!r}")


# -- What is left ---------------------------------------------------------------------------------


def open_sockets() -> set[str]:
    """The sockets of this process, where /proc tells them."""
    found = set()
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):  # the descriptor of the listing itself
                found.add(os.readlink(f"/proc/self/fd/{name}"))
    return {name for name in found if name.startswith("socket:")}


@contextlib.contextmanager
def nothing_left() -> Iterator[None]:
    """Fails when a thread or a socket that the block made is still there after it.

    The garbage collector is not asked: what it has to find was not let go.
    """
    threads, sockets = set(threading.enumerate()), open_sockets()
    yield
    if not hasattr(sys, "getrefcount"):  # PyPy finalises only when it collects
        gc.collect()
    end = time.monotonic() + 5
    while True:
        left = {thread.name for thread in set(threading.enumerate()) - threads}
        more = open_sockets() - sockets
        if not left and not more:
            return
        assert time.monotonic() < end, f"left behind: threads {left}, sockets {more}"
        time.sleep(0.005)


# -- Other processes ------------------------------------------------------------------------------


def run_python(code: str, *args: str, timeout: float = 30.0) -> str:
    """What a fresh Python prints when it runs `code`. It must end well, and say no word more."""
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", code, *args]
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        command,
        capture_output=True,
        timeout=timeout,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        check=False,
    )
    told = done.stderr.decode("utf-8", "replace")
    assert (done.returncode, told) == (0, ""), f"status {done.returncode}:\n{told}"
    return done.stdout.decode("utf-8")
