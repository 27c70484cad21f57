"""The encoder: cases/encoder, the exact length, files that change, memory, admission."""

from __future__ import annotations

import base64
import builtins
import json
import os
import pathlib
import platform
import socket
import stat
import subprocess
import sys
import threading
from typing import Any, Callable

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import svir
from svir_ext.testing import MockServer, text_answer

CASES = pathlib.Path(__file__).resolve().parent / "cases" / "encoder"
BLOCK = 72 * 1024  # bytes of a file that are read at a time
PNG = b"\x89PNG\r\n\x1a\n"


def compact(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def asked(*parts: svir.Part) -> svir.Request:
    return svir.Request("m", [svir.User(*parts)])


def content_of(body: svir.Body) -> Any:
    return json.loads(bytes(body).decode("utf-8"))["messages"][0]["content"]


def in_file_tags(name: str, text: str) -> str:
    return f'<file name="{name}">\n{text}\n</file>'


# -- Cases ----------------------------------------------------------------------------------------

CASE_KEYS = {"rule", "request", "body", "error", "options", "files"}


def load(path: pathlib.Path) -> dict[str, Any]:
    case: dict[str, Any] = json.loads(path.read_text("utf-8"))
    assert set(case) <= CASE_KEYS, "keys no test reads"
    assert ("body" in case) != ("error" in case)
    return case


def write_files(files: dict[str, Any]) -> None:
    for name, content in files.items():
        path = pathlib.Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = isinstance(content, str)
        path.write_bytes(content.encode() if text else base64.b64decode(content["base64"]))


def encode_case(case: dict[str, Any]) -> svir.Body:
    request = svir.Request.from_dict(case["request"])
    options = case.get("options", {})
    assert set(options) <= {"empty_content", "learned"}
    if not options:
        return svir.encode(request)
    wire = svir.ChatCompletions(empty_content=options.get("empty_content", ""))
    return wire.encode(request, frozenset(options.get("learned", [])))


@pytest.mark.parametrize("path", sorted(CASES.glob("*.json")), ids=lambda path: path.stem)
def test_case(path: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = load(path)
    monkeypatch.chdir(tmp_path)
    write_files(case.get("files", {}))
    if "error" in case:
        with pytest.raises(svir.Error) as caught:
            encode_case(case)
        assert caught.value.kind == case["error"]["kind"]
        for words in case["error"]["message_contains"]:
            assert words in str(caught.value)
        return
    body = encode_case(case)
    wanted = case["body"]
    assert bytes(body) == (wanted.encode("utf-8") if isinstance(wanted, str) else compact(wanted))
    check_length(body)


def check_length(body: svir.Body) -> None:
    first, second = list(body), list(body)
    assert body.length == sum(map(len, first))
    assert b"".join(first) == b"".join(second) == bytes(body), "another body the second time"


def test_a_client_sends_what_encode_says() -> None:
    request = svir.Request.from_dict(load(CASES / "reasoning-details.json")["request"])
    with MockServer() as server:
        server.reply(text_answer("ok"))
        svir.Client(server.url, include_usage=False).complete(request)
        (sent,) = server.requests
    assert sent.body == bytes(svir.encode(request))
    assert sent.headers["content-length"] == str(len(sent.body))
    assert sent.headers["content-type"] == "application/json"


# What an extra must not hold, and what no JSON can: data files cannot say these.
@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"a": float("nan")}, "a cannot be written as JSON"),
        ({"a": [float("inf")]}, "a cannot be written as JSON"),
        ({"a": object()}, "a cannot be written as JSON"),
        ({"a": b"x"}, "a cannot be written as JSON"),
        ({"a": {1, 2}}, "a cannot be written as JSON"),
    ],
)
def test_what_is_not_json(extra: dict[str, Any], words: str) -> None:
    with pytest.raises(svir.ConfigError, match=words):
        svir.encode(svir.Request("m", "x", extra=extra))


@pytest.mark.parametrize(
    "key",
    [
        *("model", "messages", "stream", "n", "tools", "tool_choice", "response_format"),
        *("max_tokens", "max_completion_tokens", "temperature", "top_p", "stop", "seed"),
        *("reasoning_effort", "stream_options"),
    ],
)
def test_extra_never_overrides(key: str) -> None:
    with pytest.raises(svir.ConfigError, match=key):
        svir.Request("m", "x", extra={key: 1})


def test_deep_extra() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(svir.ConfigError, match="nested too deep"):
        svir.encode(svir.Request("m", "x", extra={"a": deep}))


# -- The exact length -----------------------------------------------------------------------------

# Every kind of character: each escape, each UTF-8 length, each border between them.
KINDS = (
    'a"\\/\b\f\n\r\t\x00\x01\x1f\x7f\x80é\u07ff\u0800€\u2028\ud7ff\ue000\ufeff\uffff😀\U0010ffff'
)
any_text = st.text(alphabet=st.sampled_from(KINDS) | st.characters(exclude_categories=["Cs"]))


@given(any_text)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(KINDS)
def test_escaped_len(text: str) -> None:
    data = text.encode("utf-8")
    assert svir.escaped_len(data) == len(json.dumps(text, ensure_ascii=False).encode("utf-8")) - 2


@given(any_text, st.data())
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_escaped_len_adds_up_over_any_split(text: str, data: st.DataObject) -> None:
    whole = text.encode("utf-8")
    cut = data.draw(st.integers(0, len(whole)))
    assert svir.escaped_len(whole[:cut]) + svir.escaped_len(whole[cut:]) == svir.escaped_len(whole)
    assert svir.escaped_len(b"") == 0


parts = (
    any_text
    | st.builds(svir.TextFile, st.text(KINDS.replace("\x00", ""), min_size=1), text=any_text)
    | st.builds(svir.Image, data=st.binary(), media_type=st.just("image/png"))
)
messages = (
    st.lists(parts, max_size=4).map(lambda found: svir.User(*found))
    | st.builds(
        svir.Assistant,
        any_text,
        tool_calls=st.lists(st.builds(svir.ToolCall, any_text, any_text, any_text), max_size=2),
        reasoning=st.lists(
            st.builds(svir.Reasoning, any_text, st.sampled_from(["reasoning", "think"])),
            max_size=2,
        ),
    )
    | st.builds(svir.ToolResult, any_text, any_text, is_error=st.booleans())
)


@given(st.lists(messages, min_size=1, max_size=4), any_text, st.booleans())
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_length(turns: list[svir.Message], system: str, send_reasoning: bool) -> None:
    body = svir.encode(
        svir.Request("m", turns, system=system, send_reasoning=send_reasoning, stop=[system])
    )
    check_length(body)
    sent = json.loads(bytes(body).decode("utf-8"))
    assert sent["messages"][0] == {"role": "system", "content": system}
    assert sent["stop"] == [system]
    for turn, wire in zip(turns, sent["messages"][1:]):
        check_turn(turn, wire)
    assert len(sent["messages"]) == len(turns) + 1


def check_turn(turn: svir.Message, wire: dict[str, Any]) -> None:
    if isinstance(turn, svir.Assistant):
        assert wire["content"] == turn.text
        sent = [call["function"] for call in wire.get("tool_calls", [])]
        wanted = [call.arguments if call.arguments.strip() else "{}" for call in turn.tool_calls]
        assert [function["arguments"] for function in sent] == wanted
    elif isinstance(turn, svir.ToolResult):
        assert wire["content"] == "error: " * turn.is_error + turn.content
    else:
        check_user(turn, wire["content"])


def check_user(turn: svir.User, content: Any) -> None:
    images = [part for part in turn.parts if isinstance(part, svir.Image)]
    text = "\n\n".join(
        part if isinstance(part, str) else in_file_tags(shown_name(part), part.text or "")
        for part in turn.parts
        if part != "" and not isinstance(part, svir.Image)
    )
    if not images:
        assert content == text
        return
    urls = [part["image_url"]["url"] for part in content if part["type"] == "image_url"]
    data = [base64.b64decode(url.partition(",")[2], validate=True) for url in urls]
    assert data == [image.data for image in images]
    texts = [part["text"] for part in content if part["type"] == "text"]
    assert texts == (
        [text] if text or len(turn.parts) > len(images) + turn.parts.count("") else []
    )
    assert content.index({"type": "text", "text": text}) == 0 if texts else True


def shown_name(file: svir.TextFile) -> str:
    path = os.fspath(file.path)
    return (os.path.basename(path) or path).replace('"', "&quot;")


@pytest.fixture
def on_disk(tmp_path: pathlib.Path) -> Callable[[bytes], pathlib.Path]:
    """Write a file of its own for each content."""

    def write(data: bytes, name: str = "a.txt") -> pathlib.Path:
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write


def check_text_file(path: pathlib.Path, text: str) -> None:
    """Measured, declared and in memory, a file goes out as the same bytes."""
    length = svir.escaped_len(text.encode("utf-8"))
    measured = svir.encode(asked(svir.TextFile(path)))
    declared = svir.encode(asked(svir.TextFile(path, escaped_len=length)))
    in_memory = svir.encode(asked(svir.TextFile(path.name, text=text)))
    assert measured.length == declared.length == in_memory.length
    assert bytes(measured) == bytes(declared) == bytes(in_memory)
    assert content_of(measured) == in_file_tags(path.name, text)
    check_length(measured)


@pytest.mark.parametrize("char", list('"\n\x01\x7fé€\u2028😀'), ids=ascii)
@pytest.mark.parametrize("before", range(6))
def test_a_character_across_the_border_of_a_block(
    on_disk: Callable[[bytes], pathlib.Path], char: str, before: int
) -> None:
    text = "a" * (BLOCK - before) + char * 3 + "b" * (BLOCK - 5) + char
    check_text_file(on_disk(text.encode("utf-8")), text)


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK + 7])
@pytest.mark.parametrize("char", ["a", "\x00"])
def test_sizes_of_text(on_disk: Callable[[bytes], pathlib.Path], size: int, char: str) -> None:
    check_text_file(on_disk(char.encode() * size), char * size)


@given(st.lists(st.tuples(any_text, st.integers(1, 3 * BLOCK)), max_size=3))
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
def test_any_text_file(tmp_path_factory: pytest.TempPathFactory, runs: Any) -> None:
    text = "".join(piece * (count // (len(piece) or 1)) for piece, count in runs)
    path = tmp_path_factory.getbasetemp() / "any.txt"
    path.write_bytes(text.encode("utf-8"))
    check_text_file(path, text)


SIZES = [0, 1, 2, 3, 4, BLOCK - 1, BLOCK, BLOCK + 1, BLOCK + 2, 2 * BLOCK, 2 * BLOCK + 1]


@pytest.mark.parametrize("size", SIZES)
def test_sizes_of_images(on_disk: Any, size: int) -> None:
    data = (bytes(range(256)) * (size // 256 + 1))[:size]
    path = on_disk(data, "a.png")
    body = svir.encode(asked(svir.Image(path)))
    check_length(body)
    (image,) = content_of(body)
    head, _, encoded = image["image_url"]["url"].partition(",")
    assert head == "data:image/png;base64"
    assert encoded == base64.b64encode(data).decode("ascii")
    assert bytes(svir.encode(asked(svir.Image(data=data, media_type="image/png")))) == bytes(body)


def test_a_body_is_read_a_block_at_a_time(on_disk: Any) -> None:
    path = on_disk(b"\x00" * (4 * BLOCK))
    body = svir.encode(
        asked(
            "x" * 10**6, svir.TextFile(path), svir.Image(data=bytes(10**6), media_type="image/png")
        )
    )
    assert max(map(len, body)) <= 6 * BLOCK
    assert repr(body) == f"<Body of {body.length} bytes>"


# -- Files that change, and what is no file -------------------------------------------------------


def text_part(path: pathlib.Path) -> svir.Part:
    return svir.TextFile(path)


def declared_part(path: pathlib.Path) -> svir.Part:
    return svir.TextFile(path, escaped_len=svir.escaped_len(path.read_bytes()))


def image_part(path: pathlib.Path) -> svir.Part:
    return svir.Image(path, media_type="image/png")


BEFORE = b"a\n" * BLOCK  # two blocks
# What the file is by the time it is sent. An image does not care about its contents.
CHANGES: dict[str, bytes | None] = {
    "longer by a byte": BEFORE + b"a",
    "longer by blocks": BEFORE * 3,
    "shorter by a byte": BEFORE[:-1],
    "shorter by a block": BEFORE[:BLOCK],
    "empty": b"",
    "gone": None,
}
TEXT_CHANGES = {
    "one escape more": BEFORE[:-2] + b"\n\n",
    "escapes of six bytes": b"\x01" + BEFORE[1:],
    "one escape less": BEFORE[:-1] + b"a",
    "not UTF-8 at the start": b"\xff" + BEFORE[1:],
    "not UTF-8 at the end": BEFORE[:-2] + b"\xc3\n",
    "cut inside a character": BEFORE[:-2] + "é".encode()[:1] + b"\n",
    # A half character at the end, and as many escapes more as it leaves out.
    "cut at the end, and of the same length": b"\n\n\n\n" + BEFORE[4:-1] + b"\xc3",
    "a surrogate": BEFORE[:-4] + b"\xed\xa0\x80\n",
}
CHANGED = [(image_part, name, data) for name, data in CHANGES.items()] + [
    (make, name, data)
    for make in (text_part, declared_part)
    for name, data in {**CHANGES, **TEXT_CHANGES}.items()
]


def change(path: pathlib.Path, data: bytes | None) -> None:
    path.unlink(missing_ok=True)
    if data is not None:
        path.write_bytes(data)


def send_out(body: svir.Body) -> tuple[int, svir.AttachmentError]:
    """How many bytes went out before the error."""
    sent: list[int] = []
    with pytest.raises(svir.AttachmentError) as caught:
        sent.extend(map(len, body))
    return sum(sent), caught.value


@pytest.mark.parametrize(
    ("make", "name", "data"),
    CHANGED,
    ids=lambda value: getattr(value, "__name__", None) or str(value)[:24],
)
def test_a_file_that_changed(
    on_disk: Any, make: Callable[[pathlib.Path], svir.Part], name: str, data: bytes | None
) -> None:
    path = on_disk(BEFORE)
    body = svir.encode(asked("before", make(path)))
    change(path, data)
    sent, error = send_out(body)
    assert sent < body.length, "it would have passed for whole"
    assert str(path) in str(error)
    assert not error.retryable
    change(path, BEFORE)
    assert len(bytes(body)) == body.length, "as it was measured, it can be sent"


def test_the_same_length_and_other_text_is_sent(on_disk: Any) -> None:
    path = on_disk(b"one\n")
    body = svir.encode(asked(svir.TextFile(path)))
    path.write_bytes(b"two\n")
    assert content_of(body) == in_file_tags("a.txt", "two\n")


@pytest.mark.parametrize("length", [3, 4, 6, 7, 18])
def test_a_declared_length_that_is_wrong(on_disk: Any, length: int) -> None:
    path = on_disk(b"a\nb")  # escapes to 4
    body = svir.encode(asked(svir.TextFile(path, escaped_len=length)))
    if length == 4:
        assert len(bytes(body)) == body.length
        return
    sent, error = send_out(body)
    assert sent < body.length
    assert "escaped_len" in str(error)


def test_a_declared_file_is_read_once(on_disk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring takes a read of its own; a declared length makes that unneeded (D39)."""
    path, reads = on_disk(b"abc"), []

    class Watched:
        def __init__(self, file: Any) -> None:
            self.file = file

        def __enter__(self) -> Watched:
            return self

        def __exit__(self, *error: object) -> None:
            self.file.close()

        def fileno(self) -> int:
            return int(self.file.fileno())

        def read(self, size: int) -> Any:
            reads.append(size)
            return self.file.read(size)

    def watched(*args: Any, **options: Any) -> Any:
        return Watched(builtins.open(*args, **options))

    monkeypatch.setattr(svir, "open", watched, raising=False)
    body = svir.encode(asked(svir.TextFile(path, escaped_len=3)))
    assert reads == []
    bytes(body)
    once = len(reads)
    assert 0 < once <= 2
    svir.encode(asked(svir.TextFile(path)))
    assert len(reads) > once


@pytest.mark.parametrize("make", [svir.TextFile, svir.Image, image_part])
def test_a_directory(tmp_path: pathlib.Path, make: Any) -> None:
    with pytest.raises(svir.AttachmentError, match=r"not a regular file|Is a directory"):
        svir.encode(asked(make(tmp_path)))


def in_time(function: Callable[[], Any], seconds: float = 5.0) -> Any:
    """What it gives or raises; a hang fails the test instead of stopping them all."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(function())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert outcome, "it hangs"
    return outcome[0]


needs_fifo = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs on this system")


@needs_fifo
@pytest.mark.parametrize("make", [svir.TextFile, svir.Image, image_part])
def test_a_fifo_is_never_waited_for(tmp_path: pathlib.Path, make: Any) -> None:
    path = tmp_path / "pipe.png"
    os.mkfifo(path)
    error = in_time(lambda: svir.encode(asked(make(path))))
    assert isinstance(error, svir.AttachmentError)
    assert "not a regular file" in str(error)


@needs_fifo
@pytest.mark.parametrize("make", [text_part, declared_part, image_part])
def test_a_file_that_became_a_fifo(on_disk: Any, make: Any) -> None:
    path = on_disk(b"abc")
    body = svir.encode(asked(make(path)))
    path.unlink()
    os.mkfifo(path)
    assert isinstance(in_time(lambda: bytes(body)), svir.AttachmentError)


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="no /dev")
@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null"])
def test_a_device(path: str) -> None:
    with pytest.raises(svir.AttachmentError, match="not a regular file"):
        svir.encode(asked(svir.TextFile(path)))


@pytest.mark.parametrize("make", [svir.TextFile, svir.Image])
@pytest.mark.parametrize("path", ["a\0.txt", "a\0.png", "", "x" * 5000])
def test_a_path_that_cannot_be(make: Any, path: str) -> None:
    with pytest.raises((svir.AttachmentError, svir.ConfigError)):
        svir.encode(asked(make(path)))


@pytest.mark.parametrize("make", [text_part, declared_part, image_part])
def test_an_unreadable_file(
    on_disk: Any, make: Any, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    path = on_disk(PNG[1:])
    part = make(path)
    body = svir.encode(asked(part))
    if os.name == "posix" and os.geteuid() != 0:
        path.chmod(0)
        request.addfinalizer(lambda: path.chmod(stat.S_IRWXU))
    else:  # root reads everything

        def refuse(*args: Any, **options: Any) -> Any:
            raise PermissionError(13, "Permission denied", str(path))

        monkeypatch.setattr(svir, "open", refuse, raising=False)
    with pytest.raises(svir.AttachmentError, match=r"a\.txt.*Permission denied"):
        svir.encode(asked(part))
    sent, error = send_out(body)
    assert sent < body.length
    assert "Permission denied" in str(error)


@pytest.mark.parametrize("data", [BEFORE + b"a", BEFORE[:-1], b"\xff" + BEFORE[1:], None])
def test_a_server_never_gets_a_whole_request(on_disk: Any, data: bytes | None) -> None:
    path = on_disk(BEFORE)

    class Changing(svir.ChatCompletions):
        """The file changes between measuring and sending."""

        def encode(self, request: svir.Request, learned: Any = frozenset()) -> svir.Body:
            body = super().encode(request, learned)
            change(path, data)
            return body

    with MockServer() as server, svir.Client(server.url, wire=Changing()) as client:
        with pytest.raises(svir.AttachmentError) as caught:
            client.complete(asked(svir.TextFile(path)))
        assert not caught.value.retryable
        assert not caught.value.in_stream
        server.wait_until(lambda: server.open_connections == 0)
        assert server.requests == []
        server.reply(text_answer("still here"))
        assert client.complete(svir.Request("m", "x")).text == "still here"
        assert server.connections == 2


def test_an_attachment_error_is_told_before_connecting(tmp_path: pathlib.Path) -> None:
    with MockServer() as server, pytest.raises(svir.AttachmentError, match="gone"):
        svir.Client(server.url).complete(asked(svir.TextFile(tmp_path / "gone.txt")))
    assert server.connections == 0


# -- Memory ---------------------------------------------------------------------------------------

MIB = 1 << 20
MEMORY = """
import sys
sys.path[:0] = [{root!r}]
import svir

def peak():
    for line in open("/proc/self/status", encoding="ascii"):
        if line.startswith("VmHWM"):
            return int(line.split()[1])

url, folder = sys.argv[1:]
client = svir.Client(url, keep_alive=False, include_usage=False)
text, image = svir.TextFile(folder + "/text.txt"), svir.Image(folder + "/image.png")
small = svir.TextFile(folder + "/small.txt")
client.complete(svir.Request("m", [svir.User(small, svir.Image(folder + "/small.png"))]))
open("/proc/self/clear_refs", "w").write("5")  # the peak starts anew
before = peak()
body = svir.encode(svir.Request("m", [svir.User(text, *[image] * 4)]))
done = client.complete(svir.Request("m", [svir.User(text, *[image] * 4)]))
assert done.text == "ok", done
print(body.length, peak() - before)
"""


class Discarding:
    """A server that counts a request's bytes and keeps none. MockServer would hold them all."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []  # what was promised, what came

    def read(self, conn: Any) -> None:
        head, buffer = b"", bytearray(MIB)
        while b"\r\n\r\n" not in head:
            head += conn.recv(65536)
        head, _, body = head.partition(b"\r\n\r\n")
        promised = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        came = len(body)
        while came < promised:
            size = conn.recv_into(buffer)
            if not size:
                break
            came += size
        conn.settimeout(0.05)
        try:
            came += len(conn.recv(1))  # a byte too many?
        except OSError:
            pass
        self.seen.append((promised, came))
        answer = b"".join(text_answer("ok"))
        conn.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + answer)


@pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK), reason="the peak is measured in /proc"
)
def test_memory(tmp_path: pathlib.Path) -> None:
    """64 MiB of text and 200 MiB of images go out, and the process grows by less than 2 MiB."""
    block = ('ascii, then é€😀 and \t"quotes"\n' * 2**15).encode("utf-8")[: MIB // 2]
    block = block.decode("utf-8", "ignore").encode("utf-8").ljust(MIB // 2)
    with open(tmp_path / "text.txt", "wb") as file:
        for _ in range(128):
            file.write(block)
    for name, size in (("small.txt", 8), ("small.png", 8), ("image.png", 50 * MIB)):
        with open(tmp_path / name, "wb") as file:
            file.truncate(size)  # sparse: it takes no room on the disk
    server = Discarding()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        script = MEMORY.format(root=str(pathlib.Path(svir.__file__).resolve().parent))
        # PyPy makes its nursery as large as half of the processor's cache, which may be 480 MiB.
        small = {**os.environ, "PYPY_GC_NURSERY": "4M"}
        command = [sys.executable, "-c", script, url, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=small) as process:
            for _ in range(2):
                conn, _ = listener.accept()
                with conn:
                    server.read(conn)
            assert process.stdout is not None
            length, grown = map(int, process.stdout.read().split())
        assert process.returncode == 0
    assert server.seen[1] == (length, length)
    text_size = 128 * svir.escaped_len(block)
    assert length > text_size + 4 * (50 * MIB * 4 // 3)
    # Another Python's garbage waits longer; what is promised is that no file is ever held.
    limit = 2048 if platform.python_implementation() == "CPython" else 32 * 1024
    assert grown < limit, f"{grown} KiB"


# -- Admission (P14, O5) --------------------------------------------------------------------------

SIZE = svir.encode(svir.Request("m", "Hi", include_usage=True)).length  # as a client asks


def admitted(client_options: dict[str, Any], request: svir.Request) -> str | None:
    """None when the request was sent, else what the error says."""
    refused: svir.ContextOverflow | None = None
    with MockServer() as server, svir.Client(server.url, **client_options) as client:
        server.default(text_answer("ok"))
        try:
            client.complete(request)
        except svir.ContextOverflow as error:
            refused = error
        assert server.connections == len(server.requests) == (1 if refused is None else 0)
    if refused is None:
        return None
    assert (refused.retryable, refused.status) == (False, None)
    return str(refused)


@pytest.mark.parametrize(
    ("size", "options", "words"),
    [
        (None, {"max_tokens": 0}, None),  # no context size, no admission
        (SIZE, {}, None),
        (SIZE - 1, {}, f"context_size={SIZE - 1}"),
        (SIZE * 10, {"max_tokens": 0}, "max_tokens=0"),
        (0, {}, "context_size=0"),
    ],
)
def test_admission(size: int | None, options: dict[str, Any], words: str | None) -> None:
    refused = admitted({"context_size": size}, svir.Request("m", "Hi", **options))
    assert (refused is None) == (words is None)
    assert words is None or words in str(refused)


@pytest.mark.parametrize("room", [0, 1])
def test_admission_reserves_the_answer(room: int) -> None:
    request = svir.Request("m", "Hi", max_tokens=100)
    size = svir.encode(request.replace(include_usage=True)).length + 100
    refused = admitted({"context_size": size - 1 + room}, request)
    assert (refused is None) == bool(room)


IMAGE_SIZE = 300_000
WITH_IMAGES = svir.Request(
    "m",
    [svir.User("Hi", svir.Image(data=bytes(IMAGE_SIZE), media_type="image/png"))] * 3,
)
IMAGES_LENGTH = svir.encode(WITH_IMAGES.replace(include_usage=True)).length
AROUND_IMAGES = IMAGES_LENGTH - 3 * IMAGE_SIZE * 4 // 3


@pytest.mark.parametrize(
    ("image_tokens", "needed"),
    [
        ({}, AROUND_IMAGES + 3 * 2048),
        ({"image_tokens": 100}, AROUND_IMAGES + 300),
        ({"image_tokens": 0}, AROUND_IMAGES),
        ({"image_tokens": None}, IMAGES_LENGTH),
    ],
)
def test_admission_of_images(image_tokens: dict[str, Any], needed: int) -> None:
    assert admitted({"context_size": needed, **image_tokens}, WITH_IMAGES) is None
    assert admitted({"context_size": needed - 1, **image_tokens}, WITH_IMAGES) is not None


def test_admission_of_a_file_that_is_not_read(on_disk: Any) -> None:
    """It is told by the length alone: a declared file need not even be UTF-8 yet."""
    path = on_disk(b"\xff" * 1000)
    file = svir.TextFile(path, escaped_len=1000)
    refused = admitted({"context_size": 1000}, svir.Request("m", [svir.User(file)]))
    assert refused is not None


@pytest.mark.parametrize(
    ("image_tokens", "tokens"), [(None, IMAGES_LENGTH), (7, AROUND_IMAGES + 21)]
)
def test_tokens_of_a_body(image_tokens: int | None, tokens: int) -> None:
    body = svir.encode(WITH_IMAGES.replace(include_usage=True))
    assert body.tokens(image_tokens) == tokens
