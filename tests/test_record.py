"""svir_ext.record: what is kept of an exchange, what never is, and what a replay gives."""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import pickle
import socket
import subprocess
import sys
import textwrap
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Callable, Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import svir
from harness import Case, Mode, cases
from llama_server import LlamaServer
from phases import ask_in, phases
from svir_ext import record
from svir_ext.layers import retry
from svir_ext.record import Recorder, Recording, Replay, lines, load
from svir_ext.testing import (
    CUT,
    GARBAGE,
    RESET,
    STALL,
    MockServer,
    every_split,
    text_answer,
    tool_answer,
)

URL = "http://127.0.0.1:9"
REQUEST = svir.Request("m", "Hi", include_usage=False)
WRONG: Any = 3
KEY = "sk-V3ry/SecretW0rd"
HELLO = text_answer("Hel", "lo", usage=(5, 2))


# -- Help -----------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[MockServer]:
    with MockServer() as server:
        yield server
        server.check()


class Scripted:
    """A backend without a socket: these pieces, then the end, an error to raise, or more."""

    def __init__(
        self,
        *pieces: Any,
        status: int = 200,
        headers: dict[str, str] | None = None,
    ) -> None:
        self.status = status
        self.headers = headers or {"content-type": "text/event-stream"}
        self.pieces, self.left, self.closed = pieces, list(pieces), 0

    def send(self, request: svir.HttpRequest) -> Scripted:
        if request.body is not None:
            assert len(b"".join(request.body)) == request.body.length
        self.left = list(self.pieces)
        return self

    def read(self, size: int, timeout: float | None) -> bytes:
        step = self.left.pop(0) if self.left else b""
        if isinstance(step, BaseException):
            raise step
        assert isinstance(step, bytes)
        return step

    def close(self) -> None:
        self.closed += 1


def run(client: svir.Client, request: svir.Request = REQUEST) -> Any:
    """Events and end, for comparing: all that may not depend on who sent the bytes."""
    events: list[svir.Event] = []
    try:
        with client.stream(request) as stream:
            events.extend(stream)
    except svir.Error as error:
        return events, error.kind, error.args, error.server_message, error.quirks, error.partial
    return events, stream.completion.quirks


def recorded(tmp_path: pathlib.Path, *pieces: Any, **options: Any) -> Recording:
    """What a recorder keeps of that answer."""
    recorder = Recorder(tmp_path / "one.jsonl", Scripted(*pieces, **options))
    run(svir.Client(URL, backend=recorder, strict=False))
    assert recorder.failures == []
    return load(recorder.files[-1])


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def rows(path: Any) -> list[Any]:
    data = pathlib.Path(path).read_bytes()
    assert data.endswith(b"\n")
    return [json.loads(line) for line in data.splitlines()]


# -- The file -------------------------------------------------------------------------------------


def test_the_file(tmp_path: pathlib.Path) -> None:
    """The format, in full. A change here needs a new number, and readers of the old one."""
    backend = Scripted(b"data: 1\n\n", b"\xe2\x80\xa8\x1b", b"\xc3")
    recorder = Recorder(tmp_path / "bug.jsonl", backend)
    client = svir.Client(
        URL, api_key=KEY, headers={"x-team": "b"}, query={"k": "v"}, backend=recorder, strict=False
    )
    assert run(client)[1] == "truncated"
    assert recorder.files == [str(tmp_path / "bug.jsonl")]
    head, response, *pieces, end = rows(recorder.files[0])
    assert head == {
        "svir_recording": 1,
        "svir": svir.__version__,
        "at": head["at"],
        "request": {
            "method": "POST",
            "url": URL + "/v1/chat/completions?k=***",
            "headers": {
                "user-agent": f"svir/{svir.__version__}",
                "accept-encoding": "identity",
                "accept": "text/event-stream",
                "content-type": "application/json",
                "x-team": "***",
                "authorization": "***",
            },
            "body": {
                "model": "m",
                "messages": [{"role": "user", "content": "Hi"}],
                "stream": True,
            },
        },
    }
    assert time.strptime(head["at"], "%Y-%m-%dT%H:%M:%SZ")
    given = {"status": 200, "headers": {"content-type": "text/event-stream"}}
    assert response == {"response": given, "seconds": response["seconds"]}
    assert [piece[1] for piece in pieces] == ["data: 1\n\n", "\u2028\x1b", {"base64": "ww=="}]
    assert end == {"end": "whole", "seconds": end["seconds"]}
    times = [response["seconds"], *(piece[0] for piece in pieces), end["seconds"]]
    assert times == sorted(times)


def test_the_file_is_for_people(tmp_path: pathlib.Path) -> None:
    """Letters as they are; what a terminal would act on is escaped; a line is one line."""
    backend = Scripted("é 中\x9b\u202e\u2028\x1b]".encode())
    run(svir.Client(URL, backend=Recorder(tmp_path / "a.jsonl", backend), strict=False))
    text = (tmp_path / "a.jsonl").read_text("utf-8")
    assert r'"é 中\u009b\u202e\u2028\u001b]"]' in text
    assert len(text.splitlines()) == 4
    if os.name == "posix":
        assert (tmp_path / "a.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_file_for_each_exchange(server: MockServer, tmp_path: pathlib.Path) -> None:
    """A retry, a refused field and a list of models are exchanges; nothing is written over."""
    (tmp_path / "bug-3.jsonl").write_text("mine", "utf-8")
    server.reply({"error": {"message": "later"}}, status=503, headers={"retry-after": "0"})
    server.reply({"error": {"message": "no stream_options"}}, status=400)
    server.reply(HELLO)
    recorder = Recorder(tmp_path / "bug.jsonl")
    with svir.Client(server.url, backend=recorder, layers=[retry(1)]) as client:
        assert client.complete(svir.Request("m", "Hi")).text == "Hello"
        client.list_models()
    names = [pathlib.Path(path).name for path in recorder.files]
    assert names == ["bug.jsonl", "bug-2.jsonl", "bug-4.jsonl", "bug-5.jsonl"]
    found = [load(path) for path in recorder.files]
    assert [each.status for each in found] == [503, 400, 200, 200]
    assert [each.end for each in found[:2]] == ["whole", "whole"]
    assert [each.method for each in found] == ["POST"] * 3 + ["GET"]
    assert "stream_options" in found[1].body
    assert "stream_options" not in found[2].body
    assert (tmp_path / "bug-3.jsonl").read_text("utf-8") == "mine"


def test_many_threads(server: MockServer, tmp_path: pathlib.Path) -> None:
    server.default(HELLO)
    recorder = Recorder(tmp_path / "t.jsonl")
    with svir.Client(server.url, backend=recorder) as client, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: client.complete(REQUEST).text, range(40)))
    assert answers == ["Hello"] * 40
    assert len(set(recorder.files)) == 40
    for path in recorder.files:
        assert load(path).decode().completion is not None


def test_each_piece_is_on_disk_before_the_client_has_it(
    server: MockServer, tmp_path: pathlib.Path
) -> None:
    server.reply(text_answer("Hel", STALL))
    path = tmp_path / "a.jsonl"
    client = svir.Client(server.url, backend=Recorder(path))
    with client, client.stream(REQUEST) as stream:
        next(stream)
        found = load(path)
        assert found.end == "lost"
        assert b"Hel" in b"".join(data for _, data in found.pieces)
    assert load(path).end == "closed"


# -- How it ends ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "options", "end", "kind"),
    [
        (HELLO, {}, "closed", None),
        ([*HELLO[:-1]], {}, "whole", None),
        (text_answer("Hel", CUT), {}, "error", "truncated"),
        (text_answer("Hel", RESET), {}, "error", "disconnected"),
        (text_answer("Hel", STALL), {}, "error", "timeout"),
        (text_answer("Hel", GARBAGE, "lo"), {}, "closed", "protocol"),
        ([{"error": {"message": "no"}}], {"status": 401}, "whole", "unauthorized"),
        ([b"HTTP/1.1 200 OK\r\n\r\n"], {"raw": True}, "whole", "truncated"),
        ([], {"raw": True}, "error", "disconnected"),
        ([b"nonsense\r\n"], {"raw": True}, "error", "protocol"),
        ([], {"raw": True, "hang": True}, "error", "timeout"),
        ([{"id": "x", "choices": []}], {}, "whole", "protocol"),
    ],
)  # fmt: skip
def test_ends(
    server: MockServer, tmp_path: pathlib.Path, steps: Any, options: Any, end: str, kind: Any
) -> None:
    """The recording tells how it ended; decoded and replayed it ends as it did."""
    server.reply(*steps, **options)
    settings: dict[str, Any] = {"idle_timeout": 0.3, "accept": ["end-without-done"]}
    recorder = Recorder(tmp_path / "a.jsonl")
    with svir.Client(server.url, backend=recorder, **settings) as client:
        first = run(client)
    found = load(recorder.files[0])
    assert found.end == end
    assert (first[1] if len(first) > 2 else None) == kind
    replayed = svir.Client(URL, backend=Replay(found), **settings)
    again = run(replayed)
    # The words of a timeout and of a cut are those of the reader above the backend.
    assert again == first
    decoded = found.decode(accept=["end-without-done"])
    assert [event for _, event in decoded.events] == first[0]
    assert (decoded.error and decoded.error.kind) == kind


def test_nobody_there(tmp_path: pathlib.Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        recorder = Recorder(tmp_path / "a.jsonl")
        first = run(svir.Client(f"http://127.0.0.1:{taken.getsockname()[1]}", backend=recorder))
    found = load(recorder.files[0])
    assert found.status is None
    assert found.error is not None
    assert (found.error.kind, found.error.unsent) == ("connect", True)
    again = run(svir.Client(URL, backend=Replay(found)))
    assert again[1:3] == first[1:3]
    with pytest.raises(svir.ConnectError) as caught:
        svir.Client(URL, backend=Replay(found)).complete(REQUEST)
    assert caught.value.unsent


@phases("asleep-in-a-layer")
def test_a_close_in_any_phase(phase: str, tmp_path: pathlib.Path, tls: Any) -> None:
    """The recorder neither holds a close up nor takes what woke the reader for the end."""
    with ExitStack() as stack:
        asked = ask_in(phase, stack, tls)
        recorder = Recorder(tmp_path / "a.jsonl", asked.client._backend)
        asked.client._backend = recorder
        stream = asked.stream()
        work = svir.Background(stream)
        time.sleep(0.15)
        work.cancel()
        assert work.join(5)
        assert isinstance(work.error, svir.Cancelled)
    assert recorder.failures == []
    found = load(recorder.files[0])
    assert found.end == "closed"
    assert found.error is None


def test_a_shutdown_that_looks_like_the_end(tmp_path: pathlib.Path) -> None:
    """A body without a length ends where the connection does, and close() ends the connection."""

    class Closing(Scripted):
        def read(self, size: int, timeout: float | None) -> bytes:
            data = super().read(size, timeout)
            if not data:
                stream.close()
            return data

    recorder = Recorder(tmp_path / "a.jsonl", Closing(HELLO[1]))
    stream = svir.Client(URL, backend=recorder).stream(REQUEST)
    with pytest.raises(svir.Cancelled):
        stream.result()
    assert load(tmp_path / "a.jsonl").end == "closed"


def test_an_interrupt_is_not_the_end(tmp_path: pathlib.Path) -> None:
    """After Ctrl-C a program may read on."""
    backend = Scripted(b"one", KeyboardInterrupt(), b"two")
    client = svir.Client(URL, backend=Recorder(tmp_path / "a.jsonl", backend))
    with client.send(REQUEST) as raw:
        assert next(raw) == b"one"
        with pytest.raises(KeyboardInterrupt):
            next(raw)
        assert list(raw) == [b"two"]
    found = load(tmp_path / "a.jsonl")
    assert [data for _, data in found.pieces] == [b"one", b"two"]
    assert found.end == "whole"


def test_what_is_no_error_of_svir_is_told_by_its_type(tmp_path: pathlib.Path) -> None:
    class Odd(Exception):
        pass

    client = svir.Client(URL, backend=Recorder(tmp_path / "a.jsonl", Scripted(Odd(KEY))))
    with pytest.raises(Odd):
        client.complete(REQUEST)
    assert KEY not in (tmp_path / "a.jsonl").read_text("utf-8")
    decoded = load(tmp_path / "a.jsonl").decode()
    assert isinstance(decoded.error, svir.Disconnected)
    assert "Odd" in str(decoded.error)


# -- The disk -------------------------------------------------------------------------------------


@pytest.mark.parametrize("left", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("how", ["error", "short"])
def test_a_full_disk_does_not_lose_the_answer(
    left: int, how: str, tmp_path: pathlib.Path, monkeypatch: Any, caplog: Any
) -> None:
    class Full(record.FileIO):
        lines = 0

        def write(self, data: Any) -> int:
            self.lines += 1
            if self.lines <= left:
                return super().write(data)
            if how == "short":
                return super().write(data[:3])
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(record, "FileIO", Full)
    backend = Scripted(b"".join(HELLO[:2]), b"".join(HELLO[2:]))
    recorder = Recorder(tmp_path / "a.jsonl", backend)
    assert svir.Client(URL, backend=recorder).complete(REQUEST).text == "Hello"
    assert backend.closed == 1
    (failure,) = recorder.failures  # it is not tried again
    assert failure.startswith("cannot record to ")
    assert "a.jsonl: No space left on device" in failure
    assert [(each.name, each.getMessage()) for each in caplog.records] == [("svir", failure)]
    if left > 0:
        assert load(recorder.files[0]).end == "lost"


def test_a_folder_that_goes_away(tmp_path: pathlib.Path, caplog: Any) -> None:
    (tmp_path / "sub").mkdir()
    recorder = Recorder(tmp_path / "sub" / "a.jsonl", Scripted(*HELLO))
    (tmp_path / "sub").rmdir()
    assert svir.Client(URL, backend=recorder).complete(REQUEST).text == "Hello"
    assert len(recorder.failures) == 1
    assert recorder.files == []


LIMITED = """
    import resource, signal, sys, svir
    from svir_ext.record import Recorder, load
    from svir_ext.testing import MockServer, text_answer
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
    with MockServer() as server:
        server.reply(*[step for text in "abcdefgh" for step in (text_answer(text)[1], 0.01)],
                     text_answer("i")[1:])
        recorder = Recorder(sys.argv[1])
        with svir.Client(server.url, backend=recorder) as client:
            print(client.complete(svir.Request("m", "Hi")).text, len(recorder.failures))
"""


@pytest.mark.skipif(os.name != "posix", reason="RLIMIT_FSIZE is of POSIX")
def test_a_disk_that_is_really_full(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a.jsonl"
    command = [sys.executable, "-X", "dev", "-W", "error", "-c", textwrap.dedent(LIMITED)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([*command, str(path)], capture_output=True, timeout=60, env=env)
    assert done.stdout.split() == [b"abcdefghi", b"1"], done.stderr
    assert path.stat().st_size == 2000
    found = load(path)
    assert found.end == "lost"
    events = [event for _, event in found.decode().events]
    assert "abcdefghi".startswith("".join(event.text for event in events))  # type: ignore[union-attr]
    assert len(events) >= 2


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda p: Recorder(p / "no" / "a.jsonl"), "a folder that exists"),
        (lambda p: Recorder(p), "a new file"),
        (lambda p: Recorder("a\0b"), "give its path"),
        (lambda p: Recorder(WRONG), "give its path, not int"),
        (lambda p: Recorder(p / "a", longest=10), "64 bytes or more"),
        (lambda p: Replay(), "one recording or more"),
        (lambda p: Replay(p / "no"), "cannot read the recording"),
        (lambda p: Replay(p), "cannot read the recording"),
        (lambda p: Replay(Recording("a"), speed=0), "speed is more than 0"),
        (lambda p: load(WRONG), "give its path, not int"),
    ],
)
def test_wrong_use(make: Callable[[Any], Any], said: str, tmp_path: pathlib.Path) -> None:
    with pytest.raises(svir.ConfigError, match=said):
        make(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_client_with_a_recorder_is_pickled(tmp_path: pathlib.Path) -> None:
    client = svir.Client(URL, backend=Recorder(tmp_path / "a.jsonl", Scripted(*HELLO)))
    copy = pickle.loads(pickle.dumps(client))
    assert copy.complete(REQUEST).text == client.complete(REQUEST).text == "Hello"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-2.jsonl", "a.jsonl"]


# -- Secrets --------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [KEY.encode(), KEY.replace("/", "\\/").encode()])
def test_the_key_in_the_answer(form: bytes, tmp_path: pathlib.Path) -> None:
    """Wherever two pieces part it. Its bytes become stars; all the others are as they came."""
    answer = b'data: {"error": {"message": "wrong key: ' + form + b'"}}\n\n'
    stars = answer.replace(form, b"*" * len(form))
    for number, (one, two) in enumerate(every_split(answer)):
        pieces = [piece for piece in (one, two) if piece]
        path = tmp_path / f"{number}.jsonl"
        client = svir.Client(URL, api_key=KEY, backend=Recorder(path, Scripted(*pieces)))
        assert KEY in (run(client)[3] or "")
        found = load(path)
        assert [len(data) for _, data in found.pieces] == [len(data) for data in pieces]
        assert b"".join(data for _, data in found.pieces) == stars
        assert b"V3ry" not in path.read_bytes()


def test_the_key_byte_by_byte(tmp_path: pathlib.Path) -> None:
    data = b"sk-V3ry sk-V3ry/SecretW0r " + KEY.encode() + b" sk-"
    client = svir.Client(URL, api_key=KEY, strict=False,
                         backend=Recorder(tmp_path / "a", Scripted(*cut(data, 1))))  # fmt: skip
    run(client)
    found = load(tmp_path / "a")
    kept = b"".join(data for _, data in found.pieces)
    assert kept == data.replace(KEY.encode(), b"*" * len(KEY))
    assert len(found.pieces) == len(data)


def test_secrets_everywhere(server: MockServer, tmp_path: pathlib.Path) -> None:
    secrets = [KEY, "hunter2-passw0rd", "query secr3t", "t0ken-of-a-header"]
    said = " ".join(secrets)
    server.reply(
        {"error": {"message": said}},
        status=400,
        headers={"set-cookie": "sid=c00kie", "x-trace": KEY, "server": KEY,
                 "location": "http://me:hunter2-passw0rd@x.example/?k=query+secr3t"},
    )  # fmt: skip
    client = svir.Client(
        server.url,
        api_key=KEY,
        headers={"x-proxy-token": secrets[3], "x-basic": "Basic hunter2-passw0rd"},
        query={"key": secrets[2]},
        backend=Recorder(tmp_path / "a.jsonl"),
    )
    run(client, svir.Request("m", said, system=said, include_usage=False))
    client.close()
    text = (tmp_path / "a.jsonl").read_text("utf-8")
    for secret in [*secrets, "c00kie", "query+secr3t", "query%20secr3t"]:
        assert secret not in text
    head = load(tmp_path / "a.jsonl")
    assert head.headers["set-cookie"] == "***"
    assert head.headers["location"] == "http://x.example/?k=***"
    assert "SecretW0rd" not in repr(client) + repr(head)


def test_the_key_where_a_text_is_cut(tmp_path: pathlib.Path) -> None:
    """Of a secret that straddles the cut nothing is left."""
    for size in range(60):
        path = tmp_path / f"{size}.jsonl"
        backend = Recorder(path, Scripted(*HELLO), longest=64)
        client = svir.Client(URL, api_key=KEY, backend=backend)
        client.complete(svir.Request("m", "x" * (64 - size) + KEY + "y" * 200))
        assert b"sk-" not in path.read_bytes()


def test_a_word_is_no_secret(tmp_path: pathlib.Path) -> None:
    """A local server takes any key: "null" in stars would be another answer."""
    recorder = Recorder(tmp_path / "a.jsonl", Scripted(*HELLO))
    svir.Client(URL, api_key="null", backend=recorder).complete(REQUEST)
    decoded = load(tmp_path / "a.jsonl").decode()
    assert decoded.completion is not None
    assert decoded.completion.text == "Hello"


# -- The request's body ---------------------------------------------------------------------------


def body_of(path: pathlib.Path, request: svir.Request, **options: Any) -> Any:
    recorder = Recorder(path, Scripted(*HELLO), **options)
    svir.Client(URL, backend=recorder).complete(request)
    return load(recorder.files[0]).body


def test_files_and_images_are_cut_short(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(300_000))
    (tmp_path / "a.txt").write_text('"é\\\n' * 50_000, "utf-8")
    parts = svir.Image(tmp_path / "a.png"), svir.TextFile(tmp_path / "a.txt")
    request = svir.Request("m", [svir.User("What is it?", *parts)], include_usage=False)
    short = body_of(tmp_path / "short", request)
    assert short["messages"][0]["content"][0]["text"].startswith("What is it?")
    assert (tmp_path / "short").stat().st_size < 8000
    text = json.dumps(short)
    assert "data:image/png;base64,iVBOR" in text
    assert text.count("bytes left out)") == 2
    whole = body_of(tmp_path / "whole", request, longest=None)
    assert whole == json.loads(bytes(svir.encode(request)))


class Bytes:
    """A body of another wire."""

    def __init__(self, data: bytes) -> None:
        self.data, self.length = data, len(data)

    def __iter__(self) -> Iterator[bytes]:
        yield self.data


@pytest.mark.parametrize(
    ("data", "kept"),
    [
        (b"a=1&b=2", "a=1&b=2"),
        (b"\xff\x00", {"base64": "/wA="}),
        (b'{"a": "\\', '{"a": "\\'),
        (b'"' + b"x" * 99 + b'"', "x" * 64 + "... (35 bytes left out)"),
        (b"", ""),
    ],
)
def test_a_body_that_is_no_request_of_svir(data: bytes, kept: Any, tmp_path: pathlib.Path) -> None:
    request = svir.HttpRequest("POST", URL, {}, Bytes(data))  # type: ignore[arg-type]
    Recorder(tmp_path / "a", Scripted(), longest=64).send(request).read(1, None)
    assert load(tmp_path / "a").body == kept


def test_a_file_that_has_changed_is_told_by_the_sending(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.txt").write_text("abc", "utf-8")
    body = svir.encode(svir.Request("m", [svir.User(svir.TextFile(tmp_path / "a.txt"))]))
    (tmp_path / "a.txt").write_text("abcdef", "utf-8")
    with pytest.raises(svir.AttachmentError):
        Recorder(tmp_path / "a", Scripted()).send(svir.HttpRequest("POST", URL, {}, body))
    assert load(tmp_path / "a").body is None


NO_MASK = record._Mask(svir.HttpRequest("GET", URL, {}))
TEXTS = st.text(st.sampled_from('a"\\\n\x00é中🎉/ud8'), max_size=200)


@settings(max_examples=50, deadline=None)
@given(TEXTS, TEXTS, st.booleans(), st.lists(st.integers(1, 40), max_size=30))
@example("", "8" * 5 + "\\" * 15 + "\0éé🎉🎉", True, [])  # the cut falls between two halves
def test_cutting_texts(one: str, two: str, escaped: bool, sizes: list[int]) -> None:
    """Whatever the blocks: JSON stays JSON, a text loses only its end, and says so."""
    data = json.dumps({"k": [one, two, 1.5]}, ensure_ascii=escaped).encode()
    blocks, at = [], 0
    for size in sizes:
        blocks.append(data[at : at + size])
        at += size
    cut_short = b"".join(record._shortened([*blocks, data[at:]], 64, NO_MASK))
    assert cut_short == b"".join(record._shortened([data], 64, NO_MASK))
    for was, now in zip((one, two), json.loads(cut_short)["k"]):
        kept, told, _ = now.partition("... (")
        assert (kept == was) if not told else (was.startswith(kept) and len(was) > len(kept))


# -- Replay ---------------------------------------------------------------------------------------

DECODER_CASES = cases(".sse")


@pytest.mark.parametrize("case", DECODER_CASES, ids=lambda case: case.name)
def test_a_recorded_case_ends_as_it_did(case: Case, tmp_path: pathlib.Path) -> None:
    """Recorded, replayed and decoded: every byte, every event, the same end."""
    for mode, size in itertools.product(case.modes(), (1 << 20, 7)):
        check_case(case, mode, size, tmp_path / f"{mode.name}-{size}")


def check_case(case: Case, mode: Mode, size: int, path: pathlib.Path) -> None:
    pieces = cut(case.data, size)
    first = run(svir.Client(URL, backend=Scripted(*pieces), **mode.options))
    recorder = Recorder(path, Scripted(*pieces))
    assert run(svir.Client(URL, backend=recorder, **mode.options)) == first
    found = load(path)
    assert [data for _, data in found.pieces] == pieces[: len(found.pieces)]
    assert run(svir.Client(URL, backend=Replay(found), **mode.options)) == first
    decoded = found.decode(**mode.options)
    assert [event for _, event in decoded.events] == first[0]
    assert list(lines(found, **mode.options))[-1].endswith(f"{len(found.pieces)} pieces")


def test_a_compressed_body(server: MockServer, tmp_path: pathlib.Path) -> None:
    """Bytes that are not text stay what they are, and so does the header that explains them."""
    press = zlib.compressobj(wbits=31)
    data = press.compress(b"".join(HELLO)) + press.flush()
    server.reply(data, headers={"content-encoding": "gzip"})
    with svir.Client(server.url, backend=Recorder(tmp_path / "a.jsonl")) as client:
        first = client.complete(REQUEST)
    found = load(tmp_path / "a.jsonl")
    assert b"".join(each for _, each in found.pieces) == data
    assert "base64" in (tmp_path / "a.jsonl").read_text("utf-8")
    assert found.decode().completion == first
    assert first.quirks == ("unasked-encoding",)


def test_seconds_are_those_of_the_recording(tmp_path: pathlib.Path) -> None:
    found = recorded(tmp_path, *HELLO)
    found.pieces = [(float(2 * number), data) for number, (_, data) in enumerate(found.pieces)]
    decoded = found.decode()
    assert [seconds for seconds, _ in decoded.events] == [2.0, 4.0, 10.0]
    assert decoded.completion is not None
    timing = decoded.completion.timing
    assert timing is not None
    assert (timing.first_token, timing.last_token) == (2.0, 4.0)


def test_real_timing(tmp_path: pathlib.Path) -> None:
    found = recorded(tmp_path, *HELLO)
    found.pieces = [(0.1 * number, data) for number, (_, data) in enumerate(found.pieces)]
    for speed, least in ((1, 0.5), (5, 0.1)):
        start = time.monotonic()
        client = svir.Client(URL, backend=Replay(found, speed=speed))
        assert client.complete(REQUEST).text == "Hello"
        assert time.monotonic() - start >= least - 0.02


@pytest.mark.parametrize("opened", [0.0, 3600.0], ids=["body", "headers"])
def test_a_slow_replay_can_be_ended(opened: float, tmp_path: pathlib.Path) -> None:
    """As a socket: by close() from any thread, by the idle timeout, by a deadline."""
    found = recorded(tmp_path, *HELLO)
    found.opened = opened
    found.pieces = [(3600.0, data) for _, data in found.pieces]
    for setting in ("idle_timeout", "total_timeout"):
        settings: Any = {setting: 0.05}
        with pytest.raises(svir.Timeout, match=setting):
            svir.Client(URL, backend=Replay(found, speed=1), **settings).complete(REQUEST)
    stream = svir.Client(URL, backend=Replay(found, speed=1)).stream(REQUEST)
    timer = threading.Timer(0.1, stream.close)
    timer.start()
    with pytest.raises(svir.Cancelled):
        stream.result()
    timer.join()


def test_one_recording_answers_one_request(tmp_path: pathlib.Path) -> None:
    found = recorded(tmp_path, *HELLO)
    replay = Replay(found, found.path)
    client = svir.Client("http://elsewhere.example/openai/v1", backend=replay, allow_http=True)
    assert [client.complete(REQUEST).text for _ in range(2)] == ["Hello"] * 2
    with pytest.raises(svir.ConfigError, match="after the last of 2 recordings"):
        client.complete(REQUEST)
    assert repr(replay) == "Replay(0 of 2 left)"


def test_a_recording_of_something_else(server: MockServer, tmp_path: pathlib.Path) -> None:
    with svir.Client(server.url, backend=Recorder(tmp_path / "a.jsonl")) as client:
        models = client.list_models()
    found = load(tmp_path / "a.jsonl")
    assert svir.Client(URL, backend=Replay(found)).list_models() == models
    with pytest.raises(svir.ConfigError, match=r"GET \.\.\./models, .* POST \.\.\./completions"):
        svir.Client(URL, backend=Replay(found)).complete(REQUEST)
    with pytest.raises(svir.ConfigError, match="GET"):
        found.decode()


def test_what_was_hidden_is_not_replayed(tmp_path: pathlib.Path) -> None:
    headers = {"content-type": "text/event-stream", "retry-after": "3", "set-cookie": "a=1"}
    found = recorded(tmp_path, *HELLO, headers=headers)
    response = Replay(found).send(svir.HttpRequest("POST", found.url, {}))
    assert response.headers == {"content-type": "text/event-stream", "retry-after": "3"}


def test_a_dropped_stream_leaves_nothing_open(tmp_path: pathlib.Path) -> None:
    stream = svir.Client(URL, backend=Recorder(tmp_path / "a", Scripted(*HELLO))).stream(REQUEST)
    next(stream)
    stream.close()
    assert load(tmp_path / "a").end == "closed"


# -- Files that are none --------------------------------------------------------------------------

HEAD: Any = {
    "svir_recording": 1,
    "svir": "0.1.0",
    "at": "2026-11-30T05:07:33Z",
    "request": {
        "method": "POST",
        "url": URL + "/v1/chat/completions",
        "headers": {},
        "body": None,
    },
}
OPENED: Any = {"response": {"status": 200, "headers": {}}, "seconds": 0.1}
WHOLE: Any = {"end": "whole", "seconds": 1}


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (b"", "no whole line"),
        (b"abc", "no whole line"),
        (b"data: {}\n\n", "line 1"),
        (b"\xff\xfe\n", "line 1"),
        (b"\x89PNG\r\n\x1a\n", "line 1"),
        (b"[" * 5000 + b"\n", "line 1"),
        ([1], "line 1: svir_ext.record did not write it"),
        ([{"role": "user"}], "svir_ext.testing.recorded reads a bare stream"),
        ([dict(HEAD, svir_recording=2)], "a newer svir_ext.record wrote it"),
        ([dict(HEAD, request=None)], "line 1"),
        ([dict(HEAD, request={})], "line 1"),
        ([HEAD, 3], "line 2"),
        ([HEAD, {}], "line 2"),
        ([HEAD, [0.1, "x"]], "line 2: a piece of an answer that has not begun"),
        ([HEAD, dict(OPENED, response={"status": "200", "headers": {}})], "a status that is none"),
        ([HEAD, dict(OPENED, response={"status": True, "headers": {}})], "a status that is none"),
        ([HEAD, dict(OPENED, response={"status": 200, "headers": 3})], "line 2"),
        ([HEAD, dict(OPENED, seconds=-1)], "line 2: seconds that are none"),
        ([HEAD, OPENED, ["0", "x"]], "line 3: seconds that are none"),
        ([HEAD, OPENED, [float("nan"), "x"]], "line 3: seconds that are none"),
        ([HEAD, OPENED, [1e99, "x"]], "line 3: seconds that are none"),
        ([HEAD, OPENED, [1]], "line 3"),
        ([HEAD, OPENED, [1, {"base64": "%%"}]], "line 3"),
        ([HEAD, OPENED, [1, {"base64": 3}]], "line 3"),
        ([HEAD, OPENED, [1, "\ud800"]], "line 3"),
        ([HEAD, OPENED, OPENED], "line 3: a second answer"),
        ([HEAD, OPENED, dict(WHOLE, end="so")], "line 3: an end that this version does not know"),
        ([HEAD, OPENED, {"end": "error", "seconds": 1}], "line 3"),
        ([HEAD, OPENED, WHOLE, [1, "x"]], "line 4: it follows the end"),
        ([HEAD, OPENED, WHOLE, HEAD], "line 4: it follows the end"),
    ],
)
def test_a_file_that_is_no_recording(made: Any, said: str, tmp_path: pathlib.Path) -> None:
    if isinstance(made, list):
        made = b"".join(json.dumps(line).encode() + b"\n" for line in made)
    (tmp_path / "a").write_bytes(made)
    with pytest.raises(svir.ConfigError, match="no recording") as caught:
        load(tmp_path / "a")
    assert said in str(caught.value)
    assert str(tmp_path / "a") in str(caught.value)


def test_a_recording_that_was_cut_anywhere(tmp_path: pathlib.Path) -> None:
    """A program that is killed leaves what had come. It never looks whole."""
    recorded(tmp_path, *HELLO)
    data = (tmp_path / "one.jsonl").read_bytes()
    first = data.index(b"\n")
    for size in range(first + 1, len(data), 7):
        (tmp_path / "a").write_bytes(data[:size])
        found = load(tmp_path / "a")
        assert found.end == "lost"
        decoded = found.decode()
        text = "".join(event.text for _, event in decoded.events if event.type == "text")
        assert "Hello".startswith(text)
        if decoded.completion is None:
            assert decoded.error is not None
            assert decoded.error.kind in ("truncated", "disconnected")
        else:
            assert data[:size].count(b"[DONE]") == 1


def test_any_later_end_of_line_or_mark_is_read(tmp_path: pathlib.Path) -> None:
    """A file that an editor on Windows has saved."""
    recorded(tmp_path, *HELLO)
    data = (tmp_path / "one.jsonl").read_bytes()
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbf" + data.replace(b"\n", b"\r\n"))
    assert load(tmp_path / "a").decode().completion is not None


# -- Shown ----------------------------------------------------------------------------------------


def test_lines(tmp_path: pathlib.Path) -> None:
    found = recorded(
        tmp_path,
        text_answer(reasoning="Hm.\x1b[2J")[1],
        *tool_answer(("weather", {"city": "Oslo"}), usage=(5, 2))[:-1],
        b"data: [DONE]\n\n",
    )
    found.opened, found.seconds = 0.25, 12.5
    found.pieces = [(float(number), data) for number, (_, data) in enumerate(found.pieces)]
    assert list(lines(found)) == [
        f"POST {URL}/v1/chat/completions",
        "    0.250  status     200 text/event-stream",
        "    0.000  reasoning  'Hm.\\x1b[2J'",
        "    2.000  tool_call  #0 'weather' 'call-1' ''",
        "    3.000  tool_call  #0 '' '' '{\"city\":'",
        "    4.000  tool_call  #0 '' '' ' \"Oslo\"}'",
        "    7.000  completed  tool_calls, 5+2 tokens",
        "   12.500  recorded   closed, 8 pieces",
    ]


def test_lines_of_a_failure(tmp_path: pathlib.Path) -> None:
    """Strict and lenient side by side is what a bug report is looked at for."""
    found = recorded(tmp_path, *text_answer("Hel", GARBAGE, "lo"))
    strict, lenient = list(lines(found)), list(lines(found, strict=False))
    assert any("  error      protocol: " in line for line in strict)
    assert any("  completed  stop" in line for line in lenient)
    assert any("  quirks     " in line for line in lenient)
    refused = recorded(tmp_path, b'{"error": {"message": "no \\u001b[2J"}}', status=401)
    shown = list(lines(refused))
    assert "  error      unauthorized: " in shown[2]
    assert "'no \\x1b[2J'" in shown[3]


# -- A real server --------------------------------------------------------------------------------


def test_a_real_answer(llama: LlamaServer, tmp_path: pathlib.Path) -> None:
    recorder = Recorder(tmp_path / "a.jsonl")
    with svir.Client(llama.base_url, backend=recorder) as client:
        first = client.complete(svir.Request("tiny", "Hello", max_tokens=12, temperature=0))
    found = load(recorder.files[-1])
    assert found.decode().completion == first
    assert found.status == 200
