"""What hosts ask of svir.py, rule by rule (docs/decisions.md, Host rules), and the test of each.

1. Cancelling is a shutdown of the socket, and waits for nothing.
    test_threads: test_close_wakes_the_reader, test_close_from_a_signal_handler
    test_threads: test_close_while_the_socket_is_wrapped, test_cancel_in_the_background
2. No thread outlives a call unless asked for, and then it is a daemon.
    test_threads: test_only_background_starts_a_thread, test_cancel_in_the_background
    test_threads: test_where_threads_cannot_be_daemons, test_the_interpreter_exits
    test_hosts: test_vim_quits_while_an_answer_comes, test_weechat_unloads_while_an_answer_comes
    test_hosts: test_sublime_unloads_while_an_answer_comes
    test_host_rules: test_embedded
3. No reliance on KeyboardInterrupt, on signals or on the main thread.
    test_transport: test_the_limit_of_each_wait, test_the_limit_of_the_whole
    test_threads: test_an_interrupt_leaves_no_socket, test_close_wakes_the_reader
    test_hosts: test_gdb_stops, test_vim_stops, test_weechat_stops
    test_host_rules: test_in_a_thread_that_python_did_not_start, test_no_signal_handler_is_touched
4. Few imports.
    test_file: test_imports, test_alone
    test_host_rules: test_few_imports_even_in_use, test_embedded
5. Works out of sys.modules, twice, from a zip, with any switch, with little around it.
    test_file: test_alone, test_in_a_sub_interpreter
    test_threads: test_in_a_sub_interpreter
    test_hosts: test_vim_streams, test_gdb_explains, test_weechat_streams
    test_host_rules: test_nothing_is_written, test_a_read_only_file_system
    test_host_rules: test_an_error_of_another_copy_is_told_by_its_kind
6. Never prints, never assumes a console, never opens text in the locale's encoding.
    test_file: test_habits, test_alone
    test_transport: test_a_socket_may_be_descriptor_0
    test_host_rules: test_no_console_is_touched, test_no_encoding_is_left_to_the_locale
7. ssl late, any context-like object, and what was trusted is told.
    test_file: test_alone
    test_transport: test_http_without_the_ssl_module, test_https_without_the_ssl_module
    test_transport: test_an_object_in_the_place_of_a_context, test_an_unknown_root
    test_host_rules: test_ssl_is_loaded_with_the_first_https_client
    test_host_rules: test_a_host_that_replaces_the_class_of_contexts, test_no_ca_files_at_all
8. The backend is a seam.
    test_transport: test_a_backend_of_the_caller, test_the_urllib3_backend_of_the_docs
    test_threads: test_the_aborts_of_a_backend_run_once_and_may_fail
9. A tick takes everything that has arrived.
    test_threads: test_the_loop_of_a_host, test_background_gives_the_events_as_they_arrive
    test_host_rules: test_a_tick_takes_everything
10. Workers: a client and an error can be sent to another process, and a client is shared.
    test_secrets: test_a_client_pickles, test_a_client_refuses_to_write_a_secret_out
    test_types: test_errors_pickle_and_copy
    test_threads: test_a_fork_leaves_the_pool_to_the_parent, test_random_closes
    test_host_rules: test_a_pool_of_processes, test_a_pool_of_threads
"""

from __future__ import annotations

import _thread
import ast
import concurrent.futures
import importlib.util
import os
import platform
import re
import shutil
import signal
import ssl
import subprocess
import sys
import sysconfig
import threading
from pathlib import Path
from typing import Any, Iterator

import pytest

import svir
from loopback import eventually, run_python
from svir_ext.testing import STALL, MockServer, scripted, text_answer

HERE = Path(__file__).resolve().parent
REQUEST = svir.Request("m", "Hi")
CPYTHON = pytest.mark.skipif(
    platform.python_implementation() != "CPython", reason="audit hooks are CPython's"
)


@pytest.fixture
def server() -> Iterator[MockServer]:
    with MockServer() as server:
        server.default(text_answer("Hel", "lo é"))
        yield server


def test_each_rule_has_tests() -> None:
    """The table above: every test that it names is there, and every test here is named."""
    rules: dict[str, set[str]] = {}
    number = ""
    for line in (__doc__ or "").splitlines()[1:]:
        number = (re.match(r"(\d+)\. ", line) or [number, number])[1]
        for name in re.findall(r"\btest_\w+(?=,|$)", line):
            rules.setdefault(number, set()).add(f"{line.split(':')[0].strip()}.{name}")
    assert list(rules) == [str(number) for number in range(1, 11)]
    told = set().union(*rules.values())
    there = {f"{file}.{name}" for file in {name.split(".")[0] for name in told}
             for name in names_in(file)}  # fmt: skip
    assert told <= there, told - there
    ours = {f"test_host_rules.{name}" for name in names_in("test_host_rules")}
    assert ours - told == {"test_host_rules.test_each_rule_has_tests"}


def names_in(file: str) -> list[str]:
    tree = ast.parse((HERE / f"{file}.py").read_text("utf-8"))
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [name for name in names if name.startswith("test_")]


# -- 2, 3, 4: threads, signals, imports -----------------------------------------------------------

EMBEDDING = """
#include <Python.h>
#include <signal.h>

int main(int argc, char **argv) {
    Py_InitializeEx(0); /* no signal handler: they are the host's */
    int failed = PyRun_SimpleString(argv[1]);
    printf("%d %d ", failed, signal(SIGINT, SIG_DFL) == SIG_DFL);
    fflush(stdout);
    printf("%d", Py_FinalizeEx());
    return 0;
}
"""
EMBEDDED = """
import time
import svir

client = svir.Client("{url}")
request = svir.Request("m", "Hi")
stream = client.stream(request)
print(next(stream).text, flush=True)
work = svir.Background(client.stream(request))
while not work.poll():
    time.sleep(0.001)
"""


@CPYTHON
@pytest.mark.skipif(
    os.name == "nt" or shutil.which("gcc") is None, reason="*** no gcc: NOT TESTED"
)
def test_embedded(server: MockServer, tmp_path: Path) -> None:
    """In a C program, which ends while one stream is half read and another read by a thread."""
    server.default(text_answer("a", STALL))
    (tmp_path / "host.c").write_text(EMBEDDING)
    shutil.copy(str(svir.__file__), tmp_path / "svir.py")
    made = subprocess.run(
        ["gcc", "-o", "host", "host.c", *embedding_flags()], cwd=tmp_path, capture_output=True
    )
    if b"Python.h" in made.stderr or b"-lpython" in made.stderr:
        pytest.skip("*** this Python cannot be embedded here: NOT TESTED")
    assert made.returncode == 0, made.stderr.decode()
    environ = {"PYTHONHOME": sys.base_prefix, "PYTHONPATH": str(tmp_path)}
    command = [str(tmp_path / "host"), EMBEDDED.format(url=server.url)]
    done = subprocess.run(command, env=environ, capture_output=True, timeout=30)
    told = done.stdout.decode(), done.stderr.decode()
    assert told == ("a\n0 1 0", ""), "it ran, SIGINT is still the host's, Python ended"


def embedding_flags() -> list[str]:
    version = sysconfig.get_config_var("LDVERSION") or sysconfig.get_config_var("VERSION")
    folders = [sysconfig.get_config_var(name) for name in ("LIBDIR", "LIBPL")]
    flags = [f"-I{sysconfig.get_paths()['include']}"]
    flags += [flag for folder in folders for flag in (f"-L{folder}", f"-Wl,-rpath,{folder}")]
    flags += [f"-lpython{version}"]
    for name in ("LIBS", "SYSLIBS", "LINKFORSHARED"):
        flags += (sysconfig.get_config_var(name) or "").split()
    return flags


def test_in_a_thread_that_python_did_not_start(server: MockServer) -> None:
    """A thread of QGIS or of a web server is a _DummyThread to Python, and never the main one."""
    results: list[Any] = []

    def work() -> None:
        try:
            with svir.Client(server.url) as client:
                results.append(type(threading.current_thread()).__name__)
                results.append(client.complete(REQUEST).text)
                results.append(svir.Background(client.stream(REQUEST)).result().text)
                stream = client.stream(REQUEST)
                next(stream)
                stream.close()
        except BaseException as error:
            results.append(error)
        results.append("end")

    _thread.start_new_thread(work, ())
    eventually(lambda: results[-1:] == ["end"])
    assert results == ["_DummyThread", "Hello é", "Hello é", "end"]


@pytest.mark.skipif(os.name == "nt", reason="signal masks are POSIX")
def test_no_signal_handler_is_touched(server: MockServer) -> None:
    def handlers() -> list[Any]:
        return [signal.getsignal(number) for number in sorted(signal.valid_signals())]

    before = handlers(), signal.set_wakeup_fd(-1)
    with svir.Client(server.url) as client:
        client.complete(REQUEST)
        svir.Background(client.stream(REQUEST)).result()
    assert (handlers(), signal.set_wakeup_fd(-1)) == before


IN_USE = """
import sys
import svir

for ask in ("plain", "work"):
    stream = svir.Client(sys.argv[1]).stream(svir.Request("m", "Hi", tools=[svir.Tool("t")]))
    print((stream if ask == "plain" else svir.Background(stream)).result().text)
found = {"asyncio", "subprocess", "multiprocessing", "dataclasses"} & set(sys.modules)
print(sorted(found))
"""


def test_few_imports_even_in_use(server: MockServer) -> None:
    """`subprocess` would take SIGINT from an embedding program."""
    assert run_python(IN_USE, server.url).splitlines() == ["Hello é", "Hello é", "[]"]


# -- 5: little around it --------------------------------------------------------------------------

WATCHED = """
import sys

seen = []

def hook(event, args):
    writes = event == "open" and (set(str(args[1] or "")) & set("wax+") or args[2] & 3)
    if writes or event in ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "tempfile.mkstemp"):
        seen.append((event, args))

sys.dont_write_bytecode = True
sys.addaudithook(hook)
import svir

with svir.Client(sys.argv[1]) as client:
    parts = svir.TextFile(sys.argv[2]), svir.Image(sys.argv[3])
    request = svir.Request("m", [svir.User("Hi", *parts)])
    print(client.complete(request).text, svir.Background(client.stream(request)).result().text)
    client.list_models()
print(seen)
open(sys.argv[2], "r+b").close()
print(len(seen))
"""


@CPYTHON
def test_nothing_is_written(server: MockServer, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Hi", encoding="utf-8")
    (tmp_path / "b.png").write_bytes(b"\x89PNG")
    files = [str(tmp_path / name) for name in ("a.txt", "b.png")]
    printed = run_python(WATCHED, server.url, *files).splitlines()
    assert printed == ["Hello é Hello é", "[]", "1"], "the last is the hook's own test"


READ_ONLY = """
import os, sys

sys.path.insert(0, sys.argv[2])
import svir

assert os.path.dirname(svir.__file__) == sys.argv[2]
try:
    open(sys.argv[2] + "/new", "w", encoding="utf-8")
except OSError:
    print(svir.Client(sys.argv[1]).complete(svir.Request("m", "Hi")).text)
"""


@pytest.mark.skipif(shutil.which("unshare") is None, reason="*** no unshare: NOT TESTED")
def test_a_read_only_file_system(server: MockServer, tmp_path: Path) -> None:
    """No `__pycache__` can be made beside the file."""
    shutil.copy(str(svir.__file__), tmp_path / "svir.py")
    mount = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
    command = ["unshare", "-rm", "sh", "-c", mount, str(tmp_path)]
    if subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("*** nothing can be mounted here: NOT TESTED")
    command += [sys.executable, "-X", "dev", "-W", "error", "-c", READ_ONLY]
    done = subprocess.run([*command, server.url, str(tmp_path)], capture_output=True, timeout=30)
    assert (done.stdout.decode(), done.stderr.decode()) == ("Hello é\n", "")
    assert [path.name for path in tmp_path.iterdir()] == ["svir.py"]


def test_an_error_of_another_copy_is_told_by_its_kind(server: MockServer) -> None:
    """Two plugins vendor the file: `except` does not know the other's classes, `kind` is text."""
    spec: Any = importlib.util.spec_from_file_location("other_plugin.svir", str(svir.__file__))
    other: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(other)
    server.reply({"error": {"message": "busy"}}, status=429)
    with pytest.raises(other.Error) as caught:
        other.Client(server.url).complete(other.Request("m", "Hi"))
    assert not isinstance(caught.value, svir.Error)
    assert caught.value.kind == svir.RateLimited.kind == "rate_limited"


# -- 6: no console --------------------------------------------------------------------------------

NO_CONSOLE = """
import os, sys
from svir_ext.testing import CUT, MockServer, text_answer  # they may use what they like
import svir

class Trap:
    def __getattr__(self, name):
        os.write(2, f"sys.std*.{name} was used\\n".encode())
        raise RuntimeError(name)

real = sys.stdout
sys.stdin = sys.stdout = sys.stderr = Trap()
sys.unraisablehook = lambda told: os.write(2, f"{told.exc_value!r}\\n".encode())
kinds = []
with MockServer() as server:
    server.reply(text_answer("a"))
    server.reply(text_answer("a", CUT))
    server.reply({"error": {"message": "no"}}, status=500)
    server.reply(text_answer("a", 60))
    with svir.Client(server.url) as client:
        for _ in range(3):
            work = svir.Background(client.stream(svir.Request("m", "Hi")))
            work.join()
            kinds.append(getattr(work.error, "kind", None))
        stream = client.stream(svir.Request("m", "Hi"))
        next(stream)
        del stream
sys.stdin = sys.stdout = sys.stderr = real
print(kinds)
"""


def test_no_console_is_touched() -> None:
    """Whatever happens: an answer, a cut one, a refusal, a stream that is dropped half read."""
    assert run_python(NO_CONSOLE).split() == ["[None,", "'truncated',", "'unavailable']"]


@pytest.mark.skipif(sys.version_info < (3, 10), reason="3.10 warns of it")
def test_no_encoding_is_left_to_the_locale(
    server: MockServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONWARNDEFAULTENCODING", "1")
    (tmp_path / "key").write_text("sk-1", encoding="utf-8")
    code = (
        "import sys, svir\nkey = svir.Secret.from_file(sys.argv[2])\n"
        "request = svir.Request('m', [svir.User(svir.TextFile(sys.argv[2]))])\n"
        "print(svir.Client(sys.argv[1], api_key=key).complete(request).text)\n"
        "try:\n    open(sys.argv[2])\nexcept EncodingWarning:\n    print('warned')\n"
    )
    assert run_python(code, server.url, str(tmp_path / "key")).split() == ["Hello", "é", "warned"]


# -- 7: ssl ---------------------------------------------------------------------------------------


def test_ssl_is_loaded_with_the_first_https_client() -> None:
    code = (
        "import sys, svir\nprint('ssl' in sys.modules)\n"
        "svir.Client('http://localhost')\nprint('ssl' in sys.modules)\n"
        "svir.Client('https://localhost')\nprint('ssl' in sys.modules)\n"
    )
    assert run_python(code).split() == ["False", "False", "True"]


def test_a_host_that_replaces_the_class_of_contexts(
    tls: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Anki does: what `ssl` makes is of another class, and knows no statistics."""

    real = ssl.SSLContext

    class Theirs:
        def __init__(self, protocol: Any) -> None:
            vars(self)["real"] = real(protocol)

        def __getattr__(self, name: str) -> Any:
            if name in ("cert_store_stats", "get_ca_certs"):
                raise NotImplementedError
            return getattr(vars(self)["real"], name)

        def __setattr__(self, name: str, value: Any) -> None:
            # The setters of the real class look for the name that is replaced.
            getattr(super(real, real), name).__set__(vars(self)["real"], value)

    server_context = tls.server()
    with MockServer(tls=server_context) as server:
        server.default(text_answer("a"))
        monkeypatch.setattr(ssl, "SSLContext", Theirs)
        for options in ({"cafile": tls.cafile}, {"ssl_context": trusting(tls)}):
            with svir.Client(server.url, **options) as client:
                assert client.complete(REQUEST).text == "a"
        with svir.Client(server.url) as client, pytest.raises(svir.ConnectError, match="Trusted"):
            client.complete(REQUEST)


def trusting(tls: Any) -> Any:
    """A context of the class that `ssl` has now."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(tls.cafile)
    return context


def test_no_ca_files_at_all(tls: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Making the context succeeds; only the handshake fails. Which paths, and what to pass."""
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))
    monkeypatch.setitem(sys.modules, "certifi", None)
    with MockServer(tls=tls.server()) as server, pytest.raises(svir.ConnectError) as caught:
        svir.Client(server.url).complete(REQUEST)
    paths = ssl.get_default_verify_paths()
    assert paths.cafile is None, "there is none"
    told = str(caught.value)
    assert "none.pem" in told or paths.openssl_cafile in told
    assert paths.openssl_capath in told
    assert "cafile=" in told
    assert "ssl_context=" in told


# -- 9, 10: ticks and workers ---------------------------------------------------------------------


def test_a_tick_takes_everything() -> None:
    texts = [str(number) for number in range(5000)]
    client = svir.Client("http://127.0.0.1:1", layers=[scripted(*texts)])
    work = svir.Background(client.stream(REQUEST))
    assert work.join(30)
    events = work.poll()
    assert [event.text for event in events[:-1] if event.type == "text"] == texts
    assert events[-1].type == "completed"
    assert (work.poll(), work.done) == ([], True)


WORKERS = """
import concurrent.futures, multiprocessing, sys
import svir

def ask(client, question):
    return client.complete(svir.Request("m", question))

def fail(kind):
    error = getattr(svir, kind)("odd", status=503, retry_after=1.5)
    error.partial = svir.Completion("Hel")
    raise error

def main(url):
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        client = svir.Client(url)
        print(client.complete(svir.Request("m", "here")).text)
        names = [n for n in svir.__all__ if isinstance(getattr(svir, n), type)]
        for name in [n for n in names if issubclass(getattr(svir, n), svir.Error)]:
            error = pool.submit(fail, name).exception()
            same = type(error) is getattr(svir, name) and error.partial.text == "Hel"
            print(name, same and (error.status, error.retry_after) == (503, 1.5))
        print(type(pool.submit(ask, client, "").exception()).__name__)
        print(pool.submit(ask, client, "there").result())  # the pool is whole

if __name__ == "__main__":
    main(sys.argv[1])
"""


@CPYTHON
def test_a_pool_of_processes(server: MockServer, tmp_path: Path) -> None:
    """One exception that cannot be unpickled would break the whole pool."""
    server.reply(text_answer("here"))
    server.reply({"error": {"message": "busy"}}, status=429)
    script = tmp_path / "work.py"
    script.write_text(WORKERS, encoding="utf-8")
    command = [sys.executable, "-X", "dev", "-W", "error", str(script), server.url]
    paths = [str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(command, capture_output=True, env=environ, timeout=60)
    assert (done.returncode, done.stderr.decode()) == (0, "")
    here, *errors, refused, there = done.stdout.decode("utf-8").splitlines()
    assert here == "here"
    assert len(errors) == 17
    assert {line.split()[1] for line in errors} == {"True"}
    assert refused == "RateLimited"
    assert there.startswith("Completion(text='Hello é'")


def test_a_pool_of_threads(server: MockServer) -> None:
    with svir.Client(server.url) as client, concurrent.futures.ThreadPoolExecutor(8) as pool:
        texts = pool.map(lambda _: client.complete(REQUEST).text, range(64))
        assert list(texts) == ["Hello é"] * 64
    assert server.connections <= 8
