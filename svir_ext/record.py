"""Keep an exchange with a server in a file, and replay it: for a bug report, or a test.

    recorder = Recorder("bug.jsonl")
    client = svir.Client("http://localhost:1234", backend=recorder)
    client.complete(request)                      # bug.jsonl, then bug-2.jsonl for the next one

    client = svir.Client("http://localhost:1234", backend=Replay("bug.jsonl"))
    client.complete(request)                      # the same bytes in the same pieces, no server

    recording = load("bug.jsonl")
    for seconds, event in recording.events(strict=False): ...

One file is one exchange, as JSON lines in UTF-8: what was sent, the status and headers of the
answer, `[seconds, "bytes as they came"]` for each piece of its body, and how it ended. Bytes that
are not UTF-8 are `{"base64": "..."}`. Seconds count from the moment of sending.

What may be a credential is "***" in the head: all headers but a few known ones, and the values of
the URL's query. Where such a value of at least 6 characters comes again, in the request's body or
in the answer's bytes, each of its bytes is a "*". It is not found inside a compressed body, or in
parts in several events. The file still holds what was said: look it over before it goes anywhere.
"""

from __future__ import annotations

import base64
import datetime
import errno
import json
import logging
import os
import re
import threading
import time
from collections import deque
from io import FileIO
from typing import Any, Iterable, Iterator, NamedTuple, Sequence
from urllib.parse import unquote_plus, urlsplit

import svir

__all__ = ["Decoded", "Recorder", "Recording", "Replay", "lines", "load"]

_FORMAT = 1
_HIDDEN = "***"
# The other headers may hold a key, a cookie or a token (D38).
_SENT = frozenset(("accept", "accept-encoding", "content-type", "user-agent"))
_RECEIVED = frozenset(
    "cache-control connection content-encoding content-length content-type date keep-alive"
    " location retry-after retry-after-ms server transfer-encoding".split()
)
# What a terminal or an editor would act on instead of showing it.
_UNSEEN = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
_LONGEST = 2000


# -- Record ---------------------------------------------------------------------------------------


class Recorder:
    """A backend that keeps every exchange of `backend` in a file of its own.

    `path` is the first file, "bug.jsonl"; the next are "bug-2.jsonl" and so on: no file is written
    over. They are made when a request is sent, readable by their owner only, and each piece is
    written before the client gets it. A retry is an exchange, and so is a list of models.
    `files` has the paths, in order.

    `longest`: bytes to keep of each text in the request's body, where images and files are; 64 or
    more, and None keeps all. The body is read once more for it, its files too.

    Raises `svir.ConfigError` when the folder of `path` is not there. From then on the answer comes
    first: when a file cannot be written, it ends there, the call goes on, the logger "svir" has a
    warning, and `failures` says why.
    """

    def __init__(
        self,
        path: svir.FilePath,
        backend: svir.Backend | None = None,
        *,
        longest: int | None = _LONGEST,
    ) -> None:
        self._path = os.path.abspath(_path(path))
        if not os.path.isdir(os.path.dirname(self._path)) or os.path.isdir(self._path):
            raise svir.ConfigError(f"{self._path} is to be a new file in a folder that exists")
        if longest is not None and longest < 64:  # names in the body are texts as well
            raise svir.ConfigError("longest is 64 bytes or more; None keeps everything")
        self._backend = svir.HttpBackend() if backend is None else backend
        self._longest, self._number = longest, 1
        self.files: list[str] = []
        self.failures: list[str] = []

    def __repr__(self) -> str:
        return f"Recorder({self._path!r}, {len(self.files)} written)"

    def close(self) -> None:
        """Close the idle connections of the backend. The recorder can still be used."""
        close = getattr(self._backend, "close", None)
        if close is not None:
            close()

    def send(self, request: svir.HttpRequest) -> svir.HttpResponse:
        """Send by the backend, and record it."""
        log = _Log(self, request)
        log.write(_head(request, log.mask, self._longest))
        try:
            response = self._backend.send(request)
        except BaseException as error:
            log.fail(error, request)
            raise
        log.write({"response": _answer(response, log.mask), "seconds": log.seconds})
        return _Response(response, request, log)

    def _create(self) -> FileIO | None:
        """A new file. Another thread or process may take a name first."""
        stem, extension = os.path.splitext(self._path)
        while True:
            number, self._number = self._number, self._number + 1
            path = self._path if number == 1 else f"{stem}-{number}{extension}"
            try:
                file = FileIO(path, "x", opener=_for_its_owner)
            except FileExistsError:
                continue
            except OSError as error:
                self._failed(path, error)
                return None
            self.files.append(path)
            return file

    def _failed(self, path: str, error: OSError) -> None:
        said = f"cannot record to {path}: {error.strerror or type(error).__name__}"
        self.failures.append(said)
        logging.getLogger("svir").warning("%s", said)


def _for_its_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


class _Log:
    """The file of one exchange. Nothing it does raises, and it is used by one thread."""

    def __init__(self, recorder: Recorder, request: svir.HttpRequest) -> None:
        self.recorder, self.start = recorder, time.monotonic()
        self.mask = _Mask(request)
        self.file = recorder._create()
        self.held: deque[tuple[float, bytes]] = deque()  # may end in the start of a secret

    @property
    def seconds(self) -> float:
        return round(time.monotonic() - self.start, 6)

    def write(self, value: Any) -> None:
        if self.file is None:
            return
        line = _json_line(value)
        try:
            # One system call a line and no buffer, so an interrupt cannot cut a line.
            if self.file.write(line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            self.recorder._failed(self.file.name, error)
            self.close()

    def piece(self, data: bytes) -> None:
        """Written at once, unless it ends in what may become a secret with the next piece."""
        self.held.append((self.seconds, data))
        data = self.mask(b"".join(data for _, data in self.held))
        size = len(data) - self.mask.tail(data)
        at, held = 0, self.held
        self.held = deque()
        for seconds, piece in held:
            masked = data[at : at + len(piece)]
            at += len(piece)
            if at <= size and not self.held:
                self.write([seconds, _as_text(masked)])
            else:
                self.held.append((seconds, masked))

    def end(self, how: str, **more: Any) -> None:
        """How it ended, if nothing told that before."""
        while self.held:
            seconds, data = self.held.popleft()
            self.write([seconds, _as_text(data)])
        self.write({"end": how, **more, "seconds": self.seconds})
        self.close()

    def fail(self, error: BaseException, request: svir.HttpRequest) -> None:
        if _is_cancelled(request):  # what a reader meets then is only how it was woken
            self.end("closed")
        elif isinstance(error, svir.Error):
            message = str(error.args[0]) if error.args else ""
            said = {"kind": error.kind, "message": message, "unsent": error.unsent}
            self.end("error", error=said)
        else:  # its words may be anything
            self.end("error", error={"kind": None, "message": type(error).__name__})

    def close(self) -> None:
        if self.file is not None:
            file, self.file = self.file, None
            try:
                file.close()
            except OSError as error:  # a network's file system tells only now
                self.recorder._failed(file.name, error)


class _Response:
    """The backend's response, with its pieces and its end written down."""

    def __init__(self, response: svir.HttpResponse, request: svir.HttpRequest, log: _Log) -> None:
        self.status, self.headers = response.status, response.headers
        self._response, self._request, self._log = response, request, log

    def read(self, size: int, timeout: float | None) -> bytes:
        try:
            data = self._response.read(size, timeout)
        except Exception as error:
            self._log.fail(error, self._request)
            raise
        if data:
            self._log.piece(data)
        else:  # a shutdown looks like the end
            self._log.end("closed" if _is_cancelled(self._request) else "whole")
        return data

    def close(self) -> None:
        try:
            self._response.close()
        finally:
            self._log.end("closed")


def _is_cancelled(request: svir.HttpRequest) -> bool:
    try:
        request.check()
    except svir.Cancelled:
        return True
    return False


# -- What goes into the file ----------------------------------------------------------------------


class _Mask:
    """Stars for what may be a credential, byte for byte, so that all lengths stay."""

    def __init__(self, request: svir.HttpRequest) -> None:
        values = [value for name, value in request.headers.items() if name not in _SENT]
        values += [value.partition(" ")[2] for value in values]  # "Bearer ", "Basic "
        for field in urlsplit(request.url).query.split("&"):
            value = field.partition("=")[2]
            values += [value, unquote_plus(value)]
        # An answer that repeats one may have it as JSON, where PHP escapes "/" as well.
        values += [json.dumps(value)[1:-1] for value in values]
        values += [value.replace("/", "\\/") for value in values]
        # A shorter one is no secret, and may be a word, such as null, that the answer needs.
        kept = {value.encode("utf-8", "replace") for value in values if len(value) >= 6}
        self._secrets = sorted(kept, key=len, reverse=True)

    def __call__(self, data: bytes) -> bytes:
        for secret in self._secrets:
            data = data.replace(secret, b"*" * len(secret))
        return data

    def text(self, text: str) -> str:
        return self(text.encode("utf-8", "replace")).decode("utf-8", "replace")

    def tail(self, data: bytes | bytearray) -> int:
        """How many bytes at the end may be the start of a secret."""
        longest = 0
        for secret in self._secrets:
            for size in range(min(len(secret) - 1, len(data)), longest, -1):
                if data[-1] == secret[size - 1] and data.endswith(secret[:size]):
                    longest = size
                    break
        return longest

    def __repr__(self) -> str:
        return "_Mask(***)"


def _head(request: svir.HttpRequest, mask: _Mask, longest: int | None) -> dict[str, Any]:
    now = datetime.datetime.now(datetime.timezone.utc)
    sent = {
        "method": request.method,
        "url": mask.text(_open_url(request.url)),
        "headers": _open_headers(request.headers, _SENT, mask),
        "body": None if request.body is None else _open_body(request.body, mask, longest),
    }
    at = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"svir_recording": _FORMAT, "svir": svir.__version__, "at": at, "request": sent}


def _answer(response: svir.HttpResponse, mask: _Mask) -> dict[str, Any]:
    headers = _open_headers(response.headers, _RECEIVED, mask)
    return {"status": response.status, "headers": headers}


def _open_headers(headers: Any, known: Iterable[str], mask: _Mask) -> dict[str, str]:
    shown = {}
    for name, value in headers.items():
        name = name.lower()
        value = _open_url(value) if name == "location" else value
        shown[name] = mask.text(value) if name in known else _HIDDEN
    return shown


def _open_url(url: str) -> str:
    """Without a password, and with the names of the query only."""
    url, _, query = url.partition("#")[0].partition("?")
    url = re.sub(r"//[^/@]*@", "//", url)
    fields = [re.sub(r"=.*", f"={_HIDDEN}", field) for field in query.split("&") if "=" in field]
    return f"{url}?{'&'.join(fields) or _HIDDEN}" if query else url


def _open_body(body: Iterable[bytes], mask: _Mask, longest: int | None) -> Any:
    """The body as JSON, its long texts cut short; as text or base64 when it is no JSON."""
    try:
        data = b"".join(body if longest is None else _shortened(body, longest, mask))
    except svir.Error:  # a file that has changed: sending finds it as well, and says so
        return None
    data = mask(data)
    try:
        return json.loads(data.decode("utf-8"))
    except ValueError:
        return _as_text(data)


# The parts of a JSON document that matter to where a text in it ends, and may be cut.
_TOKEN = re.compile(rb'[^"\\]+|"|\\u[0-9A-Fa-f]{4}|\\[^u]|\\(?:u[0-9A-Fa-f]{0,3})?\Z|\\')


def _shortened(body: Iterable[bytes], longest: int, mask: _Mask) -> Iterator[bytes]:
    """JSON whose texts have at most `longest` bytes, and say then how many were left out."""
    text: _Text | None = None
    rest = b""
    for block in body:
        tokens = _TOKEN.findall(rest + block)
        last = tokens[-1] if tokens else b""
        # An escape may go on in the next block.
        goes_on = last == b"\\" or (last[:2] == b"\\u" and len(last) < 6)
        rest = tokens.pop() if goes_on else b""
        for token in tokens:
            if token == b'"':
                yield token if text is None else text.whole(mask) + token
                text = _Text(longest) if text is None else None
            elif text is None:
                yield token
            else:
                text.add(token)
    yield rest


class _Text:
    """One text of a JSON document, as it is written there."""

    def __init__(self, longest: int) -> None:
        self.longest, self.kept, self.cut = longest, bytearray(), 0
        self.last = b""  # token that was kept

    def add(self, token: bytes) -> None:
        if not self.kept and token.startswith(b"data:"):  # an image: nobody reads its base64
            self.longest = min(self.longest, 64)
        room = 0 if self.cut else self.longest - len(self.kept)
        fits = token[:room] if token[:1] != b"\\" or len(token) <= room else b""
        self.kept += fits
        self.last = fits or self.last
        self.cut += len(token) - len(fits)

    def whole(self, mask: _Mask) -> bytes:
        if self.cut == 0:
            return bytes(self.kept)
        if re.match(rb"\\u[Dd][89ABab]", self.last):  # half of a pair
            del self.kept[-6:]
            self.cut += 6
        # A secret is not to stay because its end was cut off; nor half a character.
        size = len(self.kept) - mask.tail(self.kept)
        kept = self.kept[:size].decode("utf-8", "ignore").encode()
        return kept + b"... (%d bytes left out)" % (self.cut + len(self.kept) - len(kept))


def _as_text(data: bytes) -> str | dict[str, str]:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode("ascii")}


def _json_line(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, separators=(", ", ": "))
    text = _UNSEEN.sub(lambda match: f"\\u{ord(match.group()):04x}", text)
    return text.encode("utf-8", "backslashreplace") + b"\n"


# -- Read -----------------------------------------------------------------------------------------


class Decoded(NamedTuple):
    """What a recording says once it is decoded: events with their seconds, and the end."""

    events: list[tuple[float, svir.Event]]
    completion: svir.Completion | None
    error: svir.Error | None


class Recording:
    """One exchange, as `load` reads it. Seconds count from the moment of sending.

    - `path`, and `at`: the file, and when it was recorded, "2026-11-30T05:07:33Z"
    - `method`, `url`, `request_headers`, `body`: what was sent; the body as JSON, or None
    - `status`, `headers`, `opened`: the answer's, and its seconds; None, {} and None without one
    - `pieces`: seconds and bytes of the answer's body
    - `end`: "whole", as its framing said; "closed" by the reader, which is usual after `[DONE]`;
      "error", which is `error`; "lost" when the file stops before the end. `seconds` is when.
    """

    def __init__(self, path: str) -> None:
        self.path, self.at = path, ""
        self.method, self.url = "", ""
        self.body: Any = None
        self.request_headers: dict[str, str] = {}
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.opened: float | None = None
        self.pieces: list[tuple[float, bytes]] = []
        self.end, self.seconds = "lost", 0.0
        self.error: svir.Error | None = None

    def __repr__(self) -> str:
        size = sum(len(data) for _, data in self.pieces)
        return f"<Recording {self.path!r}, {self.status}, {size} bytes, {self.end}>"

    def events(
        self,
        *,
        strict: bool = True,
        accept: Iterable[str] = (),
        think: svir.ThinkMode = "split",
        limits: svir.Limits | None = None,
    ) -> Iterator[tuple[float, svir.Event]]:
        """The events of the answer, each with its seconds; raises the error it ends with.

        The options are those of `svir.Client`. A `completion.timing` is that of the recording.
        """
        replay = Replay(self)
        client = svir.Client(
            "http://localhost",
            strict=strict,
            accept=accept,
            think=think,
            limits=limits,
            backend=replay,
            wire=_Timed(replay),
        )
        # Asks for nothing optional, so that a refusal is the answer and not tried again.
        with client.stream(svir.Request("recorded", "Go on.", include_usage=False)) as stream:
            for event in stream:
                yield replay.seconds, event

    def decode(
        self,
        *,
        strict: bool = True,
        accept: Iterable[str] = (),
        think: svir.ThinkMode = "split",
        limits: svir.Limits | None = None,
    ) -> Decoded:
        """The events, and then the completion or the error, which is not raised."""
        events: list[tuple[float, svir.Event]] = []
        try:
            for each in self.events(strict=strict, accept=accept, think=think, limits=limits):
                events.append(each)
        except svir.ConfigError:
            raise
        except svir.Error as error:
            return Decoded(events, None, error.with_traceback(None))
        return Decoded(events, events[-1][1].completion, None)  # type: ignore[union-attr]


class _Timed(svir.ChatCompletions):
    """Its decoder's clock shows what it showed when the bytes came."""

    def __init__(self, replay: Replay) -> None:
        super().__init__()
        self._replay = replay

    def decoder(
        self,
        *,
        strict: bool,
        accept: Iterable[str],
        think: svir.ThinkMode,
        limits: svir.Limits,
    ) -> svir.Decoder:
        """A decoder for one answer."""
        replay = self._replay
        return svir.Decoder(
            strict=strict,
            accept=accept,
            think=think,
            limits=limits,
            clock=lambda: replay.seconds,
        )


def load(path: svir.FilePath) -> Recording:
    """Read a recording. Raises `svir.ConfigError` for a file that is none, and names the line."""
    name = _path(path)
    try:
        with open(name, "rb") as file:
            data = file.read()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise svir.ConfigError(f"cannot read the recording {name}: {reason}") from None
    recording = Recording(name)
    # What follows the last line break was cut off with the program that wrote it.
    *rows, _ = data.split(b"\n")
    if not rows:
        raise svir.ConfigError(f"{name} is no recording: it has no whole line")
    for number, row in enumerate(rows, 1):
        try:
            _read_line(recording, json.loads(row.decode("utf-8-sig")), number == 1)
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            why = f": {error}" if type(error) is _NoRecording else ""
            raise svir.ConfigError(f"{name} is no recording, see its line {number}{why}") from None
    return recording


class _NoRecording(ValueError):
    """With words that are for the user."""


def _read_line(recording: Recording, line: Any, first: bool) -> None:
    if first:
        _read_head(recording, line)
    elif recording.end != "lost":
        raise _NoRecording("it follows the end; one file is one exchange")
    elif isinstance(line, list):
        if recording.status is None:
            raise _NoRecording("a piece of an answer that has not begun")
        seconds, data = line
        recording.pieces.append((_seconds(seconds), _as_bytes(data)))
        recording.seconds = seconds
    elif "response" in line:
        if recording.status is not None:
            raise _NoRecording("a second answer")
        response = line["response"]
        recording.status, recording.headers = _int(response["status"]), _texts(response["headers"])
        recording.opened = recording.seconds = _seconds(line["seconds"])
    else:
        _read_end(recording, line)


def _read_head(recording: Recording, line: Any) -> None:
    if not isinstance(line, dict) or "svir_recording" not in line:
        raise _NoRecording(
            "svir_ext.record did not write it (svir_ext.testing.recorded reads a bare stream)"
        )
    if line["svir_recording"] != _FORMAT:
        raise _NoRecording("a newer svir_ext.record wrote it")
    request = line["request"]
    recording.at = str(line["at"])
    recording.method, recording.url = str(request["method"]), str(request["url"])
    recording.request_headers, recording.body = _texts(request["headers"]), request["body"]


def _read_end(recording: Recording, line: Any) -> None:
    end = line["end"]
    if end not in ("whole", "closed", "error"):
        raise _NoRecording("an end that this version does not know")
    if end == "error":
        recording.error = _error(line["error"])
    recording.end, recording.seconds = end, _seconds(line["seconds"])


def _error(told: Any) -> svir.Error:
    kinds: Any = {kind.kind: kind for kind in svir.Error.__subclasses__()}
    kind = kinds.get(told["kind"], svir.Disconnected)
    error: svir.Error = kind(str(told["message"]), unsent=told.get("unsent") is True)
    return error


def _seconds(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < threading.TIMEOUT_MAX:
        raise _NoRecording("seconds that are none")
    return float(value)


def _int(value: Any) -> int:
    if type(value) is not int or not 200 <= value <= 999:
        raise _NoRecording("a status that is none")
    return value


def _texts(value: Any) -> dict[str, str]:
    return {str(name).lower(): str(text) for name, text in value.items()}


def _as_bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8")
    return base64.b64decode(value["base64"], validate=True)


def _path(path: Any) -> str:
    name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(name, str) or "\0" in name:
        raise svir.ConfigError(f"a recording is a file: give its path, not {type(path).__name__}")
    return name


# -- Replay ---------------------------------------------------------------------------------------


class Replay:
    """A backend that answers from recordings, one a request, in order.

    The answer is the same bytes in the same pieces, and ends in the same way: where its reader
    closed it, or the file was lost, a reader that goes on gets `svir.Truncated`. `speed` is 1 for
    the recorded timing, 2 for twice as fast; None waits for nothing.

    Only the method and the end of the path have to be those of the recording. Raises
    `svir.ConfigError` when they are not, when no recording is left, and for a file that is none.
    """

    def __init__(self, *recordings: Recording | svir.FilePath, speed: float | None = None) -> None:
        if not recordings:
            raise svir.ConfigError('Replay takes one recording or more: Replay("bug.jsonl")')
        if speed is not None and not speed > 0:
            raise svir.ConfigError("speed is more than 0; None waits for nothing")
        self._given = len(recordings)
        self._left = deque(
            each if isinstance(each, Recording) else load(each) for each in recordings
        )
        self._speed = speed
        self.seconds = 0.0
        """When the last bytes given out had come."""

    def __repr__(self) -> str:
        return f"Replay({len(self._left)} of {self._given} left)"

    def send(self, request: svir.HttpRequest) -> svir.HttpResponse:
        """The next recording's answer, or its error."""
        try:
            recording = self._left.popleft()
        except IndexError:
            raise svir.ConfigError(
                f"a request after the last of {self._given} recordings: each answers one"
            ) from None
        _check_same(recording, request)
        replayed = _Replayed(self, recording, request)
        replayed.open()
        return replayed


def _check_same(recording: Recording, request: svir.HttpRequest) -> None:
    was = recording.method, _last_name(recording.url)
    if was != (request.method, _last_name(request.url)):
        raise svir.ConfigError(
            f"{recording.path} is a recording of {recording.method} .../{was[1]},"
            f" and asked was {request.method} .../{_last_name(request.url)}"
        )


def _last_name(url: str) -> str:
    return url.partition("?")[0].rpartition("/")[2]


class _Replayed:
    """A recorded response."""

    def __init__(self, replay: Replay, recording: Recording, request: svir.HttpRequest) -> None:
        self._replay, self._recording, self._request = replay, recording, request
        self._pieces = deque(recording.pieces)
        self._start = time.monotonic()
        # Held until cancelled. An Event would deadlock in a signal handler.
        self._asleep = threading.Lock()
        self._asleep.acquire()
        request.on_cancel(self._asleep.release)
        self.status = recording.status or 0
        # A hidden value would be read as what it is not.
        self.headers = {k: v for k, v in recording.headers.items() if v != _HIDDEN}

    def open(self) -> None:
        """Wait for the headers. Raises the error that came instead."""
        recording = self._recording
        try:
            if recording.opened is None:
                self._wait(recording.seconds, self._request.timeout)
                raise _ending(recording)
            self._wait(recording.opened, self._request.timeout)
        except BaseException:
            self.close()
            raise

    def read(self, size: int, timeout: float | None) -> bytes:
        if self._pieces:
            self._wait(self._pieces[0][0], timeout)
            return self._pieces.popleft()[1]
        self._wait(self._recording.seconds, timeout)
        if self._recording.end != "whole":
            raise _ending(self._recording)
        return b""

    def close(self) -> None:
        self._request.release()
        self._pieces.clear()

    def _wait(self, seconds: float, timeout: float | None) -> None:
        """Until the recorded `seconds`, as a read would: `close()` and the timeout end it."""
        speed = self._replay._speed
        left = 0.0 if speed is None else self._start + seconds / speed - time.monotonic()
        limit = left if timeout is None else min(left, timeout)
        self._asleep.acquire(timeout=min(max(limit, 0.0), threading.TIMEOUT_MAX))
        self._request.check()
        if limit < left:
            raise svir.Timeout("nothing came in time")
        self._replay.seconds = seconds


def _ending(recording: Recording) -> svir.Error:
    """A new error each time: one that is raised again would hold the frames of the first time."""
    error = recording.error
    if error is not None:
        return type(error)(*error.args, unsent=error.unsent)
    broken = svir.Truncated if recording.pieces or recording.opened else svir.Disconnected
    return broken(f"the recording ends here ({recording.end})")


# -- Show -----------------------------------------------------------------------------------------


def lines(recording: Recording, **options: Any) -> Iterator[str]:
    """A recording as lines for people: what was sent, the events, the end.

    `options` are those of `Recording.events`. Whatever was received is escaped, so that it cannot
    act on a terminal.
    """
    yield f"{_shown(recording.method)} {_shown(recording.url)}"
    if recording.opened is not None:
        kind = recording.headers.get("content-type", "no content type")
        yield _row(recording.opened, "status", f"{recording.status} {_shown(kind)}")
    decoded = recording.decode(**options)
    for seconds, event in decoded.events:
        yield _row(seconds, event.type, _told(event))
    if decoded.error is not None:
        error = decoded.error
        yield _row(recording.seconds, "error", f"{error.kind}: {_shown(error.args[0])}")
        if error.server_message:
            yield _row(recording.seconds, "server", repr(error.server_message))
        quirks: Sequence[str] = error.quirks
    else:
        quirks = () if decoded.completion is None else decoded.completion.quirks
    if quirks:
        yield _row(recording.seconds, "quirks", ", ".join(quirks))
    how = recording.end if recording.error is None else f"error, {recording.error.kind}"
    yield _row(recording.seconds, "recorded", f"{how}, {len(recording.pieces)} pieces")


def _row(seconds: float, name: str, text: str) -> str:
    return f"{seconds:9.3f}  {name:<10} {text}"


def _told(event: svir.Event) -> str:
    if isinstance(event, svir.Completed):
        usage = event.completion.usage
        counts = (
            "" if usage is None else f", {usage.prompt_tokens}+{usage.completion_tokens} tokens"
        )
        return f"{event.completion.finish_reason}{counts}"
    if isinstance(event, svir.ToolCallDelta):
        return f"#{event.index} {event.name!r} {event.id!r} {event.arguments!r}"
    return repr(event.text)


def _shown(text: object) -> str:
    return repr(str(text))[1:-1]
