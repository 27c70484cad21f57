# svir: one file, no dependency. Copy it anywhere. Licence: MIT OR Apache-2.0.
"""Stream answers from OpenAI-compatible model servers.

    import svir

    client = svir.Client("http://localhost:1234")
    request = svir.Request("qwen3-4b", "Why is the sky blue?")
    with client.stream(request) as stream:
        for text in stream.text():
            print(text, end="", flush=True)

The file, top to bottom; no section uses a later one:

    1. Errors       one base, sixteen kinds, and how a server's words become one of them
    2. Types        messages, tools, requests, completions, events: immutable values
    3. Encoder      a request as a body with its exact length; files are read while it is sent
    4. Decoder      bytes as they arrive, to events, to a completion
    5. Transport    the little of HTTP that is needed, on sockets, behind a seam
    6. Client       layers, streams, cancelling, what a server was learned to refuse

Letters and numbers such as C5 or D23 are the rules of docs/decoding.md and docs/decisions.md.
"""

from __future__ import annotations

import binascii
import codecs
import functools
import itertools
import json
import os
import re
import select
import socket
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence

TYPE_CHECKING = False  # but for type checkers: `typing` would be a sixth of the import
if TYPE_CHECKING:
    import ssl
    from types import TracebackType
    from typing import (
        Any,
        ClassVar,
        Dict,
        List,
        Literal,
        NoReturn,
        Optional,
        Protocol,
        Tuple,
        TypeVar,
        Union,
        overload,
    )

    from typing_extensions import Self, TypeAlias, TypedDict, Unpack, dataclass_transform

    _T = TypeVar("_T")
    _Texts = List[str]
    _TextsByName = Dict[str, str]
    _PathLike = os.PathLike[str]
    _Counts = Tuple[int, int, int, Optional[int]]  # the fields of a Usage
else:
    Protocol, _Texts, _TextsByName, _PathLike = object, list, dict, os.PathLike

    def dataclass_transform(**options):
        return lambda cls: cls  # it tells type checkers what _Value does


__version__ = "0.1.0"

# fmt: off
__all__ = [
    # 1. Errors
    "AttachmentError", "Cancelled", "ConfigError", "ConnectError", "ContentFiltered",
    "ContextOverflow", "Disconnected", "Error", "LimitExceeded", "ProtocolError", "RateLimited",
    "ServerError", "Timeout", "Truncated", "Unauthorized", "Unavailable", "Unsupported",
    # 2. Types
    "Assistant", "Completed", "Completion", "Event", "FilePath", "FinishReason", "Image",
    "JsonSchema", "Limits", "Message", "Model", "NamedTool", "Part", "Reasoning", "ReasoningDelta",
    "ReasoningEffort", "Request", "ResponseFormat", "Secret", "TextDelta", "TextFile", "Timing",
    "Tool", "ToolCall", "ToolCallDelta", "ToolChoice", "ToolResult", "Usage", "User",
    "event_from_dict", "message_from_dict",
    # 3. Encoder
    "Body", "encode", "escaped_len",
    # 4. Decoder
    "ACCEPT", "Decoder", "ThinkMode",
    # 5. Transport
    "Backend", "HttpBackend", "HttpRequest", "HttpResponse",
    # 6. Client
    "ApiKey", "Background", "Call", "ChatCompletions", "Client", "Deadline", "Layer", "RawStream",
    "Stream", "Wire", "WireDecoder",
]
# fmt: on

# -- 1. Errors -----------------------------------------------------------------------------------


class Error(Exception):
    """What svir raises. Catch a class, log the ``kind``, act on the flags.

    ``str(error)`` says what happened, where, and what to change. It never holds a key, a header's
    value or the server's own words: those are in ``server_message``, for the user's eyes.
    """

    kind: ClassVar[str] = "error"
    retryable: bool = False
    """The same request may succeed later."""
    status: int | None = None
    """The HTTP status of an answer that was not a success."""
    retry_after: float | None = None
    """Seconds the server asked to wait."""
    unsent: bool = False
    """The request never reached the server."""
    in_stream: bool = False
    """The response had opened: part of an answer may have been given out."""
    server_message: str | None = None
    """What the server said, at most 4,096 characters."""
    where: str | None = None
    """Method and URL, without the query."""
    partial: Completion | None = None
    """What had arrived: no finish reason, no tool calls."""
    quirks: tuple[str, ...] = ()
    """The known deviations met before."""

    # Everything but the message is optional, so BaseException's own pickling works: it calls the
    # class with the message and restores the attributes. A required keyword breaks process pools.
    def __init__(
        self,
        message: str,
        *,
        retryable: bool | None = None,
        status: int | None = None,
        retry_after: float | None = None,
        unsent: bool = False,
        server_message: str | None = None,
    ) -> None:
        super().__init__(message)
        if retryable is not None:
            self.retryable = retryable
        self.status = status
        self.retry_after = retry_after
        self.unsent = unsent
        self.server_message = server_message

    def __str__(self) -> str:
        message = str(self.args[0]) if self.args else ""
        return f"{message} ({self.where})" if self.where else message

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


class ConfigError(Error, ValueError):
    """A URL, header, key or request that cannot be used as given."""

    kind = "config"


class AttachmentError(Error):
    """A file that cannot be read, changed since it was measured, or is not UTF-8."""

    kind = "attachment"


class ConnectError(Error):
    """No connection could be made: nothing was sent."""

    kind = "connect"
    retryable = True


class Disconnected(Error):
    """The connection broke; the request may have reached the server."""

    kind = "disconnected"
    retryable = True


class Timeout(Error, TimeoutError):
    """A limit passed, or the server answered 408 or 504."""

    kind = "timeout"
    retryable = True


class Unauthorized(Error):
    """401 or 403, or 402: out of credit."""

    kind = "unauthorized"


class RateLimited(Error):
    """429. Wait ``retry_after`` seconds where it is given."""

    kind = "rate_limited"
    retryable = True


class Unavailable(Error):
    """A 5xx status: the server or a gateway failed."""

    kind = "unavailable"
    retryable = True


class Unsupported(Error):
    """Something the server, or svir, does not do."""

    kind = "unsupported"


class ContextOverflow(Error):
    """The conversation is longer than the model's context: shorten it."""

    kind = "context_overflow"


class ContentFiltered(Error):
    """The server's content filter blocked the prompt."""

    kind = "content_filtered"


class ServerError(Error):
    """The server reported a failure inside an answer."""

    kind = "server"


class ProtocolError(Error):
    """The answer is not this protocol."""

    kind = "protocol"


class Truncated(Error):
    """The answer ended before a finish reason and ``[DONE]``."""

    kind = "truncated"


class LimitExceeded(Error):
    """The answer is larger than ``Limits`` allows."""

    kind = "limit_exceeded"


class Cancelled(Error):
    """The stream was closed."""

    kind = "cancelled"


def _again(error: Error) -> Error:
    """The error to raise, where it is also kept: in an attribute or a local.

    An error's traceback holds frames, and they hold whoever keeps the error. Such a cycle would
    leave sockets to the garbage collector, so what is kept never has a traceback.
    """
    copy = type(error)(*error.args)
    copy.__dict__.update(error.__dict__)
    return copy


_MESSAGE_CHARS = 4096
# Servers agree on no single sign of an overflow (D30, H3); these are the ones that were seen.
_OVERFLOW_CODES = frozenset(
    ("context_length_exceeded", "context_window_exceeded", "exceed_context_size_error")
)
_OVERFLOW_WORDS = (  # patterns are compiled where they are first used: that takes long, too
    "context length|context size|context window|context budget|compacted context"
    "|prompt is too long|maximum context"
)


def _told(value: Any) -> tuple[str | None, list[Any]]:
    """The message of an error body, and the words under ``code`` and ``type`` (H2, D44)."""
    if isinstance(value, list):
        value = value[0] if value else None
    if isinstance(value, str):
        return _said(value) or None, []
    if not isinstance(value, dict):
        return None, []
    error = value.get("error")
    source = error if isinstance(error, dict) else value
    codes = [source.get("code"), source.get("type")]
    detail = value.get("detail")
    if isinstance(detail, list) and detail and isinstance(detail[0], dict):
        detail = detail[0].get("msg")  # the first validation error is the one a person reads first
    told = error.get("message") if isinstance(error, dict) else error
    for words in (told, detail, value.get("message")):
        if isinstance(words, str) and words.strip():
            return _said(words), codes
    return None, codes


def _said(words: str) -> str:
    """A server's words, bounded, and encodable whatever they hold."""
    return _encodable(words[:_MESSAGE_CHARS].strip())


def _encodable(text: str) -> str:
    """``text`` with each half of a pair that never met its other half as U+FFFD."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _has_half(text: str) -> bool:
    """Whether it holds half of a surrogate pair."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def _is_overflow(message: str | None, codes: Sequence[Any]) -> bool:
    by_code = any(isinstance(code, str) and code in _OVERFLOW_CODES for code in codes)
    by_words = message is not None and re.search(_OVERFLOW_WORDS, message, re.IGNORECASE)
    return by_code or bool(by_words)


def _server_error(value: Any) -> Error:
    """The error for a failure reported inside an answer (D29)."""
    message, codes = _told(value)
    if _is_overflow(message, codes):
        return ContextOverflow(
            "the conversation is longer than the model's context", server_message=message
        )
    return ServerError("the server reported an error in its answer", server_message=message)


def _shown(value: Any) -> str:
    """A short printable form of a word the server or the caller chose, for a message."""
    text = value if isinstance(value, str) else type(value).__name__
    return ascii(text if len(text) <= 60 else text[:57] + "...")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _bounded_int(digits: str) -> int:
    if len(digits) > 4300:  # the limit newer versions have, against quadratic time
        raise ValueError("an integer of more than 4300 digits")
    return int(digits)


_INFINITE = (float("inf"), -float("inf"))


def _finite_float(digits: str) -> float:
    value = float(digits)
    if value in _INFINITE:  # 1e999: no JSON could say it again
        raise ValueError("a number that is too large")
    return value


_has_int_limit = hasattr(sys, "get_int_max_str_digits")
_json_decoder = json.JSONDecoder(
    parse_constant=_refuse_constant,
    parse_int=None if _has_int_limit else _bounded_int,
    parse_float=_finite_float,
)


_DEEPEST = 200  # levels of a server's JSON: what walks it later stays clear of the stack's end


def _parse_json(text: str) -> Any:
    """``json.loads``, but for ``NaN``; too deep or too large a number is a ValueError too."""
    text = text.strip(" \t\r\n")
    try:
        value, end = _json_decoder.raw_decode(text)  # loads takes half as long again
    except RecursionError:
        raise ValueError("JSON that is nested too deep") from None
    if end != len(text):
        raise ValueError("JSON with more after it")
    if _is_deep(text) and not _is_shallow(value):
        raise ValueError("JSON that is nested too deep")
    return value


def _is_deep(text: str) -> bool:
    """Whether JSON may be nested too deep: it has brackets enough."""
    return len(text) > 2 * _DEEPEST and text.count("[") + text.count("{") > _DEEPEST


def _is_shallow(value: Any) -> bool:
    level = [value]
    for _ in range(_DEEPEST):
        inner = [v.values() if isinstance(v, dict) else v for v in level]
        level = [v for values in inner for v in values if isinstance(v, (dict, list)) and v]
        if not level:
            return True
    return False


def _compact_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


# -- 2. Types ------------------------------------------------------------------------------------

# A type's other name is text until somebody looks at it: see the end of the file.
FinishReason: TypeAlias = 'Literal["stop", "tool_calls", "length", "content_filter", "refusal"]'
ReasoningEffort: TypeAlias = 'Literal["none", "minimal", "low", "medium", "high", "xhigh"]'
FilePath: TypeAlias = "Union[str, _PathLike]"
_Count = int  # not negative
_new, _set = object.__new__, object.__setattr__


def _words(alias: Any) -> tuple[str, ...]:
    """The words of a Literal."""
    return tuple(alias.split('"')[1::2])


class _Signature:
    """The signature that ``help()`` shows, made when it is asked for: inspect is not imported."""

    def __get__(self, value: object, cls: type[_Value]) -> Any:
        import inspect

        make = inspect.Parameter
        if cls._positional < 0:  # User(*parts)
            return inspect.Signature([make(name, make.VAR_POSITIONAL) for name in cls._fields])
        parameters: list[Any] = []
        for place, name in enumerate(cls._fields):
            default = cls._defaults.get(name, make.empty)
            by_place = place < cls._positional
            kind = make.POSITIONAL_OR_KEYWORD if by_place else make.KEYWORD_ONLY
            parameters.append(make(name, kind, default=default))
        return inspect.Signature(parameters)


@dataclass_transform(frozen_default=True)
class _Value:
    """An immutable value: its annotations are its fields, in order, and how they are checked.

    Not a dataclass: with lazy annotations those fail in a module that is not in ``sys.modules``
    (a pasted cell, some plugin loaders), and importing them brings ``inspect``.
    """

    __slots__: ClassVar[tuple[str, ...]] = ()
    __signature__: ClassVar[Any] = _Signature()
    _fields: ClassVar[dict[str, str]]
    _defaults: ClassVar[dict[str, Any]] = {}
    _positional: ClassVar[int] = 2  # the others are taken by name only
    _apart: ClassVar[tuple[str, ...]] = ()  # outside equality
    _hints: ClassVar[dict[str, str]] = {}  # for arguments there are not, but in the API
    _tag: ClassVar[dict[str, str]] = {}  # what tells the dict form from its siblings

    def __init_subclass__(cls) -> None:
        notes = cls.__annotations__.items()
        cls._fields = {name: kind for name, kind in notes if not kind.startswith("ClassVar")}
        if not cls.__slots__:  # else the attributes are the slots' descriptors
            cls._defaults = {n: cls.__dict__[n] for n in cls._fields if n in cls.__dict__}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        cls = type(self)
        by_place = min(cls._positional, len(cls._fields))
        if len(args) > by_place:
            raise TypeError(f"{cls.__name__} takes {by_place} arguments by place: name the rest")
        given = dict(zip(cls._fields, args))
        for name, value in kwargs.items():
            if name not in cls._fields or name in given:
                hint = f": {cls._hints[name]}" if name in cls._hints else ""
                raise TypeError(f"{cls.__name__} got an unexpected argument {name!r}{hint}")
            given[name] = value
        for name, kind in cls._fields.items():
            if name in given:
                value = _checked(given[name], kind, f"{cls.__name__}.{name}")
            elif name in cls._defaults:
                value = cls._defaults[name]
                value = _copied(value, name, 0) if type(value) is dict else value
            else:
                raise TypeError(f"{cls.__name__} needs {name}")
            _set(self, name, value)
        self._validate()

    def _validate(self) -> None:
        """What the annotations do not say."""

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable: use replace({name}=...)")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable")

    def _values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._fields}

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(
            getattr(self, n) == getattr(other, n) for n in self._fields if n not in self._apart
        )

    def __hash__(self) -> int:
        return hash(
            tuple(_hashable(getattr(self, n)) for n in self._fields if n not in self._apart)
        )

    def _set_fields(self) -> dict[str, Any]:
        """The fields that differ from their defaults."""
        values, defaults = self._values(), self._defaults
        return {n: v for n, v in values.items() if n not in defaults or v != defaults[n]}

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self._set_fields().items())
        return f"{type(self).__name__}({fields})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _call_with, (type(self), self._values())

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        return _call_with(type(self), {**self._set_fields(), **changes})

    @classmethod
    def _made(cls, fields: dict[str, Any]) -> Self:
        """One whose fields need no checking: svir's own, and every one of them."""
        value = _new(cls)
        value.__dict__.update(fields)
        return value

    def to_dict(self) -> dict[str, Any]:
        """The value as plain JSON types; fields at their defaults are left out."""
        data: dict[str, Any] = dict(self._tag)
        data.update((name, _plain(value)) for name, value in self._set_fields().items())
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """What ``to_dict`` wrote; unknown keys are ignored. Raises ``ConfigError``."""
        _check(data, dict, f"the dict form of {cls.__name__}")
        for key, word in cls._tag.items():
            if data.get(key, word) != word:
                raise ConfigError(f"not the dict form of {cls.__name__}: its {key} is {word!r}")
        fields: dict[str, Any] = {}
        for name, kind in cls._fields.items():
            if name in data:
                what = f"{cls.__name__}.{name}"
                fields[name] = _checked(_from_plain(data[name], kind, what), kind, what)
        try:
            return cls._from_fields(fields)
        except TypeError as error:
            raise ConfigError(f"not a dict form: {error}") from None

    @classmethod
    def _from_fields(cls, fields: dict[str, Any]) -> Self:
        return cls(**fields)


def _call_with(function: Callable[..., _T], options: dict[str, Any]) -> _T:
    return function(**options)


def _hashable(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_hashable(item) for item in value)
    if isinstance(value, dict):
        return frozenset((key, _hashable(item)) for key, item in value.items())
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, _Value):
        return value.to_dict()
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, bytes):
        return binascii.b2a_base64(value, newline=False).decode("ascii")
    return value


def _check(value: Any, kinds: type | tuple[type, ...], what: str) -> Any:
    """``value`` when it is one of ``kinds`` (``True`` is no integer), else ConfigError."""
    kinds = kinds if isinstance(kinds, tuple) else (kinds,)
    if type(value) in kinds:  # as nearly always, and quicker told than what follows
        return value
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        wanted = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
        hint = _HINTS.get(what.partition("[")[0], "")
        raise ConfigError(f"{what} must be {wanted}, not {type(value).__name__}{hint}")
    return value


_HINTS = {  # for what a person would try first
    "Request.messages": ': svir.User("...") says something, and an answer is completion.message',
    "Request.tools": ": svir_ext.tools.Tools(function) makes them from functions",
    "User.parts": ": pass the parts one by one, User(*parts)",
    "Image.path": ": bytes are data=...",
    "ToolResult.content": ": json.dumps(...) it",
    "the request": ': svir.Request("model", "text") makes one',
    "the stream of a Background": ": client.stream(request) makes one",
}


@functools.lru_cache(maxsize=None)
def _parts_of(kind: str) -> tuple[bool, bool, str]:
    """Whether an annotation allows None, whether it is a sequence, and of what."""
    inner = kind[: -len(" | None")] if kind.endswith(" | None") else kind
    item = inner[len("Sequence[") : -1] if inner.startswith("Sequence[") else inner
    return inner != kind, item != inner, item


def _checked(value: Any, kind: str, what: str) -> Any:
    """A field's value, by its annotation: sequences become tuples, dicts are copied."""
    optional, sequence, kind = _parts_of(kind)
    if value is None and optional:
        return None
    if sequence:
        items = enumerate(_items(value, what))
        return tuple(_checked(item, kind, f"{what}[{place}]") for place, item in items)
    if kind in _CHOICES:
        return _choice(value, _CHOICES[kind], what)
    if kind == "FilePath":
        return os.fsdecode(_check(value, (str, os.PathLike), what))
    _check(value, _KINDS[kind], what)
    if isinstance(value, str):
        return value
    if isinstance(value, (int, float)) and not abs(value) < float("inf"):
        raise ConfigError(f"{what} must be finite")
    if isinstance(value, int) and kind == "_Count" and value < 0:
        raise ConfigError(f"{what} must not be negative")
    if isinstance(value, dict):
        try:
            return _copied(value, what, 0)
        except RecursionError:  # pragma: no cover - the caller's own stack is deep
            raise ConfigError(f"{what} is nested too deep") from None
    return value


def _items(value: Any, what: str) -> Iterator[Any]:
    try:
        if not isinstance(value, (str, bytes, dict)):
            return iter(value)
    except TypeError:
        pass
    raise ConfigError(f"{what} must be a list, not {type(value).__name__}")


def _copied(value: Any, what: str, depth: int) -> Any:
    """JSON's lists and dicts, copied: a value does not change with what it was made from."""
    if depth > 2 * _DEEPEST:
        raise ConfigError(f"{what} is nested too deep")
    if isinstance(value, (list, tuple)):
        return [_copied(item, what, depth + 1) for item in value]
    if isinstance(value, dict):
        for key in value:
            _check(key, str, f"a key of {what}")
        return {key: _copied(item, what, depth + 1) for key, item in value.items()}
    return value


def _choice(value: Any, choices: Sequence[str], what: str, told: Sequence[str] = ()) -> Any:
    if not isinstance(value, str) or value not in choices:
        told = ", ".join(told or choices)
        raise ConfigError(f"{what} must be one of {told}, not {_shown(value)}")
    return value


def _from_plain(value: Any, kind: str, what: str) -> Any:
    """A field's value from its dict form, by its annotation."""
    optional, sequence, kind = _parts_of(kind)
    if value is None and optional:
        return None
    if sequence:
        return [_from_plain(item, kind, what) for item in _check(value, list, what)]
    reader = _DICT_FORMS.get(kind)
    return value if reader is None else reader(value)


def _base64(value: Any) -> bytes:
    try:
        data = binascii.a2b_base64(_check(value, str, "data").encode("ascii"))
    except ValueError:  # binascii.Error is one
        data = b""
    if _plain(data) != value:  # the module passes over what is not base64
        raise ConfigError("data must be base64")
    return data


class Image(_Value):
    """An image: a path that is read while the request is sent, or ``data`` in memory.

    ``media_type`` is told by the first bytes, or the name's extension, when it is not given.
    """

    _positional = 1
    _tag = {"type": "image"}
    path: FilePath | None = None
    data: bytes | None = None
    media_type: str | None = None

    def _validate(self) -> None:
        if (self.path is None) == (self.data is None):
            raise ConfigError("an Image takes a path or data=, and not both")
        if re.match(r"[A-Za-z][A-Za-z0-9+.-]+://|data:", os.fsdecode(self.path or "")):
            raise ConfigError("svir sends files, not URLs: download the image and pass data=...")
        if not re.match(r"image/[A-Za-z0-9_.+-]+\Z", self.media_type or "image/any"):
            raise ConfigError('Image.media_type must be like "image/png"')

    def __repr__(self) -> str:
        if self.data is None:
            return super().__repr__()
        return f"Image(data=<{len(self.data)} bytes>, media_type={self.media_type!r})"


class TextFile(_Value):
    """A text file (UTF-8), sent as text inside the message: a path, or a name and its ``text``.

    ``escaped_len`` declares the length of the contents once escaped into JSON (``escaped_len()``
    measures it), so that the file is read once, while it is sent.
    """

    _positional = 1
    _tag = {"type": "text_file"}
    path: FilePath
    text: str | None = None
    escaped_len: _Count | None = None

    @property
    def name(self) -> str:
        """The name the model sees: the last part of the path."""
        return os.path.basename(self.path) or os.fsdecode(self.path)


Part: TypeAlias = "Union[str, Image, TextFile]"


class ToolCall(_Value):
    """A call the model made. ``arguments`` is the JSON text the server sent.

    ``extra`` is what else the server sent with it, and goes back with the call.
    """

    _positional = 3
    id: str
    name: str
    arguments: str = ""
    extra: dict[str, Any] = {}

    if TYPE_CHECKING:

        @overload
        def parse(self) -> Any: ...
        @overload
        def parse(self, into: Callable[[Any], _T]) -> _T: ...

    def parse(self, into: Callable[[Any], Any] | None = None) -> Any:
        """The arguments as a value; none at all are ``{}``. Raises ``ValueError``."""
        return _parse_text(self.arguments if self.arguments.strip() else "{}", into, "arguments")


def _parse_text(text: str, into: Callable[[Any], Any] | None, what: str) -> Any:
    try:
        # Every version is held to one limit on digits: arguments and answers are not trusted.
        value = json.loads(
            text,
            parse_constant=_refuse_constant,
            parse_int=_bounded_int,
            parse_float=_finite_float,
        )
    except RecursionError:
        raise ValueError(f"the {what} are nested too deep") from None
    except ValueError as error:
        raise ValueError(f"the {what} are not JSON: {error}") from None
    return value if into is None else into(value)


class Reasoning(_Value):
    """Reasoning, and the carrier it came in: a delta key, ``think`` or ``content_parts``.

    ``extra`` is opaque data (a signature, say) that an API needs back unchanged.
    """

    text: str
    source: str = "reasoning_content"
    extra: dict[str, Any] = {}


class User(_Value):
    """What the user says: texts, images and text files, in order."""

    _positional = -1
    _tag = {"role": "user"}
    parts: Sequence[Part]

    def __init__(self, *parts: Part) -> None:
        _set(self, "parts", _checked(parts, "Sequence[Part]", "User.parts"))

    def __repr__(self) -> str:
        return f"User({', '.join(map(repr, self.parts))})"

    def __reduce__(self) -> tuple[Any, ...]:
        return User, tuple(self.parts)

    def replace(self, **changes: Any) -> User:
        """A copy with other ``parts``."""
        return self._from_fields({"parts": self.parts, **changes})

    @classmethod
    def _from_fields(cls, fields: dict[str, Any]) -> User:
        parts = fields.pop("parts", None)
        if parts is None:
            raise TypeError("User needs parts")
        return cls(*_checked(parts, "Sequence[Part]", "User.parts"), **fields)


class Assistant(_Value):
    """What the model said before. ``completion.message`` is one, with nothing lost.

    ``extra`` goes back with the reasoning, when ``Request.send_reasoning`` is set.
    """

    _positional = 1
    _tag = {"role": "assistant"}
    text: str = ""
    tool_calls: Sequence[ToolCall] = ()
    reasoning: Sequence[Reasoning] = ()
    extra: dict[str, Any] = {}


class ToolResult(_Value):
    """The answer to a call. A failed one (``is_error``) is told to the model as ``error: ...``."""

    _tag = {"role": "tool"}
    call_id: str
    content: str
    is_error: bool = False


Message: TypeAlias = "Union[User, Assistant, ToolResult]"


class Tool(_Value):
    """A tool the model may call; ``parameters`` is the JSON Schema of its arguments.

    ``strict`` asks OpenAI and Azure to guarantee that arguments match it.
    """

    _positional = 3
    name: str
    description: str = ""
    parameters: dict[str, Any] = {"type": "object", "properties": {}}
    strict: bool = False

    def _validate(self) -> None:
        if not self.name:
            raise ConfigError("a Tool needs a name")


class NamedTool(_Value):
    """A tool choice: the model must call this tool."""

    name: str


class JsonSchema(_Value):
    """A response format: JSON that matches ``schema``. The name has at most 64 of A-Z a-z 0-9 _ -.

    ``strict`` asks OpenAI and Azure to guarantee it, and their rules for schemas then apply.
    """

    name: str
    schema: dict[str, Any]
    strict: bool = False

    def _validate(self) -> None:
        if not re.match(r"[A-Za-z0-9_-]{1,64}\Z", self.name):
            raise ConfigError("the name of a JsonSchema is 1 to 64 of A-Z a-z 0-9 _ -")


ToolChoice: TypeAlias = 'Union[Literal["auto", "none", "required"], NamedTool]'
ResponseFormat: TypeAlias = 'Union[Literal["text", "json_object"], JsonSchema]'

# Keys of the body that svir writes itself, and what sets them: `extra` may not, behind its back.
_SETTERS = (
    "model", "messages", "temperature", "top_p", "stop", "seed", "tools", "max_tokens",
    "tool_choice", "response_format", "reasoning_effort",
)  # fmt: skip
_OWN_KEYS = {
    **{key: f"use {key}=" for key in _SETTERS},
    "max_completion_tokens": "use max_tokens=",
    "stream_options": "use include_usage=",
    "stream": "svir always streams",
    "n": "svir reads one answer a call",
}

if TYPE_CHECKING:

    class _RequestOptions(TypedDict, total=False):
        system: str | None
        tools: Iterable[Tool]
        tool_choice: ToolChoice
        response_format: ResponseFormat
        reasoning_effort: ReasoningEffort | None
        max_tokens: int | None
        temperature: float | None
        top_p: float | None
        stop: str | Iterable[str]
        seed: int | None
        send_reasoning: bool
        include_usage: bool | None
        extra: dict[str, Any]

    class _RequestFields(_RequestOptions, total=False):
        model: str
        messages: str | Message | Iterable[Message]


class Request(_Value):
    """What is asked of a model. Only what is set is sent.

    ``messages``: a list of messages; a string is one ``User`` message.
    ``reasoning_effort``: ``"none"`` turns reasoning off where the server can.
    ``send_reasoning``: repeat earlier reasoning, under the key it arrived with.
    ``include_usage``: None leaves it to the client, which asks for usage by default.
    ``extra``: other fields of the body, as they are.
    """

    _hints = _OWN_KEYS
    model: str
    messages: Sequence[Message]
    system: str | None = None
    tools: Sequence[Tool] = ()
    tool_choice: ToolChoice = "auto"
    response_format: ResponseFormat = "text"
    reasoning_effort: ReasoningEffort | None = None
    max_tokens: _Count | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: Sequence[str] = ()
    seed: int | None = None
    send_reasoning: bool = False
    include_usage: bool | None = None
    extra: dict[str, Any] = {}

    if TYPE_CHECKING:

        def __init__(
            self,
            model: str,
            messages: str | Message | Iterable[Message],
            **fields: Unpack[_RequestOptions],
        ) -> None: ...
        def replace(self, **changes: Unpack[_RequestFields]) -> Request:  # type: ignore[override]
            ...
    else:

        def __init__(self, model, messages, *more, **fields):
            if isinstance(messages, str):
                messages = (User(messages),)
            elif isinstance(messages, (User, Assistant, ToolResult)):
                messages = (messages,)
            if isinstance(fields.get("stop"), str):
                fields["stop"] = (fields["stop"],)
            super().__init__(model, messages, *more, **fields)

    def _validate(self) -> None:
        if not self.model:
            raise ConfigError("a Request needs a model: client.list_models() tells the names")
        if isinstance(self.tool_choice, str):
            words = ("auto", "none", "required", "or NamedTool(name)")
            _choice(self.tool_choice, words[:3], "tool_choice", words)
        if isinstance(self.response_format, str):
            _choice(self.response_format, ("text", "json_object"), "response_format")
        for key in self.extra:
            if key in _OWN_KEYS:
                raise ConfigError(f"extra must not set {key!r}: {_OWN_KEYS[key]}")


class Usage(_Value):
    """Tokens, as the server counted them."""

    _positional = 4
    prompt_tokens: _Count
    completion_tokens: _Count
    total_tokens: _Count
    reasoning_tokens: _Count | None = None


class Timing(_Value):
    """When visible tokens arrived, in seconds after the call began (P7).

    ``pieces``: the chunks that showed something. ``tokens``: the tokens in them, as the server
    counted them, else one a piece.
    """

    _positional = 4
    first_token: float
    last_token: float
    pieces: _Count
    tokens: _Count

    @property
    def tokens_per_second(self) -> float | None:
        """From the first token to the last; None when there is no honest rate."""
        window = self.last_token - self.first_token
        if self.pieces < 2 or window < 0.05:
            return None
        # The first piece arrived at the window's start, so it is not part of what the window took.
        return self.tokens * (self.pieces - 1) / self.pieces / window


# Opaque data that servers need back on the assistant's turn (C10).
_SENT_BACK = ("reasoning_details", "extra_content")


class Completion(_Value):
    """An answer. Whole when ``finish_reason`` is set; an error's ``partial`` has None.

    ``text``: as the server sent it; with finish "content_filter" it may hold what was filtered.
    ``tool_calls``: whole calls, ready to run.
    ``partial_tool_calls``: calls of an answer that was cut off: for display, never to run.
    ``quirks``: names of the known deviations the server showed, in order (docs/decoding.md).
    ``extra``: the server's other fields; those of deltas are under ``extra["delta"]``.
    """

    _positional = 1
    _apart = ("timing",)
    text: str = ""
    tool_calls: Sequence[ToolCall] = ()
    partial_tool_calls: Sequence[ToolCall] = ()
    reasoning: Sequence[Reasoning] = ()
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    id: str = ""
    model: str = ""
    timing: Timing | None = None
    quirks: Sequence[str] = ()
    extra: dict[str, Any] = {}

    @property
    def message(self) -> Assistant:
        """This answer as the assistant's turn of the next request."""
        delta = self.extra.get("delta")
        delta = delta if isinstance(delta, dict) else {}
        return Assistant(
            self.text,
            tool_calls=self.tool_calls,
            reasoning=self.reasoning,
            extra={key: delta[key] for key in _SENT_BACK if key in delta},
        )

    if TYPE_CHECKING:

        @overload
        def parse(self) -> Any: ...
        @overload
        def parse(self, into: Callable[[Any], _T]) -> _T: ...

    def parse(self, into: Callable[[Any], Any] | None = None) -> Any:
        """The text read as JSON, then ``into(value)``. Raises ``ValueError``.

        Only an answer that finished with "stop" is read (D41): one that was cut off may still be
        valid JSON, and a refusal or the text beside tool calls is not the answer asked for.
        """
        if self.finish_reason != "stop":
            raise ValueError(
                f"only an answer that finished with 'stop' is parsed, not {self.finish_reason!r}"
            )
        return _parse_text(self.text, into, "contents of the answer")


# The events are made in the hot loop: slots and an __init__ of their own make them three times
# as fast as a value above.


class TextDelta(_Value):
    """A piece of the answer's text."""

    __slots__ = ("text",)
    _tag = {"type": "text"}
    type: ClassVar[Literal["text"]] = "text"
    text: str

    def __init__(self, text: str) -> None:
        _set(self, "text", text)


class ReasoningDelta(_Value):
    """A piece of reasoning; ``source`` is its carrier."""

    __slots__ = ("text", "source")
    _defaults = {"source": "reasoning_content"}
    _tag = {"type": "reasoning"}
    type: ClassVar[Literal["reasoning"]] = "reasoning"
    text: str
    source: str

    def __init__(self, text: str, source: str = "reasoning_content") -> None:
        _set(self, "text", text)
        _set(self, "source", source)


class ToolCallDelta(_Value):
    """A piece of a tool call, for display: "" is what it does not carry.

    ``index`` is the call's place in order of appearance, from 0.
    """

    __slots__ = ("index", "id", "name", "arguments")
    _positional = 4
    _defaults = {"id": "", "name": "", "arguments": ""}
    _tag = {"type": "tool_call"}
    type: ClassVar[Literal["tool_call"]] = "tool_call"
    index: _Count
    id: str
    name: str
    arguments: str

    def __init__(self, index: int, id: str = "", name: str = "", arguments: str = "") -> None:
        _set(self, "index", index)
        _set(self, "id", id)
        _set(self, "name", name)
        _set(self, "arguments", arguments)


class Completed(_Value):
    """The end of a whole answer."""

    _tag = {"type": "completed"}
    type: ClassVar[Literal["completed"]] = "completed"
    completion: Completion


Event: TypeAlias = "Union[TextDelta, ReasoningDelta, ToolCallDelta, Completed]"


def _many(cls: Any, *columns: Any) -> list[Event]:
    """Events of one class from the values of each of their fields, the first a list.

    In many at once each takes three quarters of what a call of the class does.
    """
    if len(columns[0]) < 8:
        return list(map(cls, *columns))
    events = list(map(_new, itertools.repeat(cls, len(columns[0]))))
    for name, column in zip(cls.__slots__, columns):
        deque(map(cls.__dict__[name].__set__, events, column), maxlen=0)
    return events


class Limits(_Value):
    """What an answer may be at most: bytes in all, bytes of one event, tool calls (D32, S13)."""

    _positional = 0
    wire_bytes: _Count = 64 << 20
    event_bytes: _Count = 4 << 20
    tool_calls: _Count = 64


class Model(_Value):
    """A model the server lists."""

    id: str
    name: str | None = None


def _tagged(key: str, *classes: type[_Value]) -> Callable[[Any], Any]:
    """A reader of dict forms that are told apart by ``key``."""
    by_word = {cls._tag[key]: cls for cls in classes}

    def read(data: Any) -> Any:
        word = _check(data, dict, f"what has a {key}").get(key)
        if not isinstance(word, str) or word not in by_word:
            raise ConfigError(f"unknown {key} {_shown(word)}")
        return by_word[word].from_dict(data)

    return read


_read_message = _tagged("role", User, Assistant, ToolResult)
_read_part = _tagged("type", Image, TextFile)
_read_event = _tagged("type", TextDelta, ReasoningDelta, ToolCallDelta, Completed)


def message_from_dict(data: Mapping[str, Any]) -> Message:
    """The message that ``message.to_dict()`` wrote. Raises ``ConfigError``."""
    if isinstance(data, dict) and "content" in data and data.get("role") in ("user", "assistant"):
        raise ConfigError(
            "this is the form that goes to the server; svir's own has parts or text"
            " (docs/serialization.md)"
        )
    message: Message = _read_message(data)
    return message


def event_from_dict(data: Mapping[str, Any]) -> Event:
    """The event that ``event.to_dict()`` wrote. Raises ``ConfigError``."""
    event: Event = _read_event(data)
    return event


def _or_word(reader: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda data: data if isinstance(data, str) else reader(data)


# What an annotation stands for: the types of a value, its words, its dict form where they differ.
_KINDS: dict[str, tuple[type, ...]] = {
    **{cls.__name__: (cls,) for cls in (str, bool, int, bytes, ToolCall, Reasoning, Tool)},
    **{cls.__name__: (cls,) for cls in (Usage, Timing, Completion)},
    "_Count": (int,),
    "float": (int, float),
    "dict[str, Any]": (dict,),
    "Part": (str, Image, TextFile),
    "Message": (User, Assistant, ToolResult),
    "ToolChoice": (str, NamedTool),
    "ResponseFormat": (str, JsonSchema),
}
_CHOICES = {
    "FinishReason": _words(FinishReason),
    "ReasoningEffort": _words(ReasoningEffort),
}
_DICT_FORMS: dict[str, Callable[[Any], Any]] = {
    **{
        cls.__name__: cls.from_dict
        for cls in (ToolCall, Reasoning, Tool, Usage, Timing, Completion)
    },
    "bytes": _base64,
    "Part": _or_word(_read_part),
    "Message": message_from_dict,
    "ToolChoice": _or_word(NamedTool.from_dict),
    "ResponseFormat": _or_word(JsonSchema.from_dict),
}


class Secret:
    """A key that shows in no repr, traceback, log or pickle. ``reveal()`` gives it.

    ``from_env`` and ``from_file`` read it at once, and pickle as the name they read it from.
    """

    __slots__ = ("_origin", "_value")
    _origin: tuple[str, str] | None
    _value: str

    def __init__(self, value: str) -> None:
        kind = type(value).__name__
        _set(self, "_value", value if isinstance(value, str) else "")
        _set(self, "_origin", None)
        del value  # a traceback shows what a frame holds
        if kind != "str" and not self._value:
            raise ConfigError(f"a key must be str, not {kind}")

    @classmethod
    def from_env(cls, name: str) -> Secret:
        """The key in an environment variable. Raises ``ConfigError`` when it is not set."""
        if not isinstance(name, str) or not re.match(r"[A-Za-z_][A-Za-z0-9_]*\Z", name):
            del name  # it may be the key
            raise ConfigError("Secret.from_env takes the NAME of an environment variable")
        if name not in os.environ:
            raise ConfigError(f"the environment variable {name} is not set")
        return cls(os.environ[name])._read_from("env", name)

    @classmethod
    def from_file(cls, path: FilePath) -> Secret:
        """The key in a file of at most 64 KiB. Raises ``ConfigError`` when it cannot be read."""
        name: str = _checked(path, "FilePath", "path")
        try:
            with open(name, "rb") as file:
                secret = cls(file.read(65537).decode("utf-8", "replace"))
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"cannot read the key file {name}: {reason}") from None
        if len(secret.reveal()) > 65536:
            raise ConfigError(f"the key file {name} is larger than 64 KiB")
        return secret._read_from("file", name)

    def _read_from(self, kind: str, name: str) -> Secret:
        # PowerShell writes a BOM, editors a line break.
        secret = type(self)(self._value.strip("\ufeff \t\r\n"))
        _set(secret, "_origin", (kind, name))
        if not re.match(r"[ -~]+\Z", secret._value):
            what = "is empty" if not secret._value else "has a control or non-ASCII character"
            raise ConfigError(f"{secret!r} {what}")
        return secret

    def reveal(self) -> str:
        """The key itself."""
        return self._value

    def _header(self, source: str) -> str:
        """The key, fit for a header. Raises ``ConfigError``, which names where it came from."""
        if not self._value:
            raise ConfigError(f"{source} is empty: None is no key")
        if self._value[:7].lower() == "bearer ":
            raise ConfigError(f'{source} is to be the key alone, without "Bearer "')
        if not re.match(r"[!-~]+\Z", self._value):
            raise ConfigError(
                f"{source} has a character that no key has: a blank, a line break, or one that is"
                " not ASCII"
            )
        return self._value

    def _unpicklable(self, what: str) -> str:
        return f"{what} is not pickled as it is: use Secret.from_env(...) or Secret.from_file(...)"

    def __repr__(self) -> str:
        origin = self._origin
        return "Secret(***)" if origin is None else f"Secret.from_{origin[0]}({origin[1]!r})"

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError("Secret is immutable")

    def __delattr__(self, name: str) -> None:
        raise AttributeError("Secret is immutable")

    def __eq__(self, other: object) -> bool:
        return self.reveal() == other.reveal() if isinstance(other, Secret) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.reveal())

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: Any) -> Secret:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        origin = self._origin
        if origin is None:
            raise TypeError(self._unpicklable("a key"))
        return (Secret.from_env if origin[0] == "env" else Secret.from_file), (origin[1],)


class _Wrong:
    """Stands for what was passed where a key belongs, and may be one: only its type is told."""

    def __init__(self, value: object) -> None:
        self.kind = type(value).__name__


def _hidden(value: Any) -> Any:
    """A text as a Secret; what is no text may be a key in bytes, say, and is not kept."""
    if value is None or callable(value) or isinstance(value, Secret):
        return value
    return Secret(value) if isinstance(value, str) else _Wrong(value)


def _hidden_values(values: Any) -> Any:
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        return _Wrong(values)
    return {name: _hidden(value) for name, value in values.items()}


def _secret(value: Any, what: str) -> Secret:
    if not isinstance(value, Secret):
        kind = value.kind if isinstance(value, _Wrong) else type(value).__name__
        raise ConfigError(f"{what} must be str or Secret, not {kind}")
    return value


def _tells_too_much(url: Any) -> bool:
    """Whether a base URL has a password, or a query, where some services want the key."""
    shape = r"[^?#]*[?#]|(?:[A-Za-z0-9+.-]+:)?/*[^/?#]*@"
    return isinstance(url, str) and re.match(shape, url.strip()) is not None


# -- 3. Encoder ----------------------------------------------------------------------------------

# Bytes of a file at a time: a multiple of 3, so base64 blocks join without padding. 48 KiB take an
# eighth more time; with 96 the allocator may give memory back at every block.
_BLOCK = 72 * 1024

_TWO_BYTES = b'"\\\n\r\t\b\f'  # escape to a backslash and a letter; other controls to \u00XX
_SIX_BYTES = bytes(byte for byte in range(0x20) if byte not in _TWO_BYTES)


def escaped_len(data: bytes) -> int:
    """The length of UTF-8 text once escaped into a JSON string: over a file, sum its blocks."""
    size = len(data)
    twos = size - len(data.translate(None, _TWO_BYTES))
    sixes = size - len(data.translate(None, _SIX_BYTES))
    return size + twos + 5 * sixes


def _escape(text: str) -> bytes:
    """``text`` as the inside of a JSON string, by the rule that ``escaped_len`` counts by."""
    return json.dumps(text, ensure_ascii=False)[1:-1].encode("utf-8")


class _FilePart:
    """A file in the body: its size was measured, and is verified while it is sent (P13)."""

    def __init__(self, path: str, size: int, length: int) -> None:
        self.path, self.size, self.length = path, size, length

    def encoder(self) -> Callable[[bytes, bool], bytes]:
        raise NotImplementedError  # pragma: no cover - each kind of file has its own

    def blocks(self) -> Iterator[bytes]:
        encode, sent, read = self.encoder(), 0, 0
        for block in _read_file(self.path):
            read += len(block)
            data = encode(block, read >= self.size)
            sent += len(data)
            if read > self.size or sent > self.length:
                raise self.changed()  # before a byte more than the length promised goes out
            yield data
        if read != self.size or sent != self.length:
            raise self.changed()

    def changed(self) -> AttachmentError:
        return AttachmentError(
            f"{self.path} is not what was measured: it changed, or its escaped_len is wrong"
        )


class _ImagePart(_FilePart):
    def encoder(self) -> Callable[[bytes, bool], bytes]:
        return lambda block, final: binascii.b2a_base64(block, newline=False)


class _TextPart(_FilePart):
    def encoder(self) -> Callable[[bytes, bool], bytes]:
        decoder = codecs.getincrementaldecoder("utf-8")()
        return lambda block, final: _escape(_decode_block(decoder, block, final, self.path))


def _decode_block(decoder: codecs.IncrementalDecoder, block: bytes, final: bool, path: str) -> str:
    try:
        return decoder.decode(block, final)
    except UnicodeDecodeError:
        raise AttachmentError(f"{path} is not UTF-8 text") from None


def _open_regular(path: str, flags: int) -> int:
    """Open a file, but nothing that has no size to promise; a pipe would also be waited for."""
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise AttachmentError(f"{path} is not a regular file")
    return descriptor


def _read_file(path: str) -> Generator[bytes, None, None]:
    try:
        with open(path, "rb", opener=_open_regular) as file:
            while True:
                block = file.read(_BLOCK)
                if not block:
                    return
                yield block
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: str, error: Exception) -> AttachmentError:
    return AttachmentError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}")


def _first_bytes(path: str) -> bytes:
    blocks = _read_file(path)
    head = next(blocks, b"")
    blocks.close()
    return head


def _file_size(path: str) -> int:
    try:
        with open(path, "rb", opener=_open_regular) as file:
            return os.fstat(file.fileno()).st_size
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None


_IMAGE_TYPES = {  # of svir's own: the system's table is wrong where a registry says so (Q7)
    "png": "image/png",
    "jpg": "image/jpeg",
    "jpeg": "image/jpeg",
    "gif": "image/gif",
    "webp": "image/webp",
    "bmp": "image/bmp",
    "avif": "image/avif",
    "heic": "image/heic",
    "tif": "image/tiff",
    "tiff": "image/tiff",
    "svg": "image/svg+xml",
}


def _path_of(part: Image | TextFile) -> str:
    return "" if part.path is None else os.fsdecode(part.path)


def _image_type(image: Image) -> str:
    """Q7: as given, by the first bytes, by the extension."""
    if image.media_type is not None:
        return image.media_type
    head = image.data if image.data is not None else _first_bytes(_path_of(image))
    if head.startswith(b"\x89PNG"):
        return "image/png"
    if head.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "image/webp"
    extension = _path_of(image).rpartition(".")[2].lower()
    if extension not in _IMAGE_TYPES:
        what = _path_of(image) or "the image in memory"
        raise ConfigError(f'cannot tell the media type of {what}: pass media_type="image/..."')
    return _IMAGE_TYPES[extension]


class Body:
    """A request's body: ``length`` is exact before the first byte; iterating reads the files.

    It can be iterated again. Raises ``AttachmentError`` when a file is not what was measured.
    """

    def __init__(
        self, parts: Sequence[bytes | _FilePart], images: tuple[int, int] = (0, 0)
    ) -> None:
        self._parts = parts
        self._images = images  # how many, and their bytes of base64
        self.length: int = sum(len(p) if isinstance(p, bytes) else p.length for p in parts)

    def __iter__(self) -> Iterator[bytes]:
        for part in self._parts:
            if isinstance(part, bytes):
                for start in range(0, len(part), 65536):
                    yield part[start : start + 65536]
            else:
                yield from part.blocks()

    def __bytes__(self) -> bytes:
        return b"".join(self)

    def __repr__(self) -> str:
        return f"<Body of {self.length} bytes>"

    def tokens(self, image_tokens: int | None) -> int:
        """An estimate for admission (P14), never too low for text: its bytes.

        An image counts as ``image_tokens``, or as its base64 when that is None (O5).
        """
        count, size = self._images
        return self.length if image_tokens is None else self.length - size + count * image_tokens


class _Writer:
    """Collects the parts of a body; what is in memory is joined."""

    def __init__(self) -> None:
        self.parts: list[bytes | _FilePart] = []
        self.memory: list[bytes] = []
        self.images = self.image_bytes = 0

    def raw(self, data: bytes) -> None:
        self.memory.append(data)

    def json(self, value: Any, where: str) -> None:
        try:
            self.raw(_compact_json(value).encode("utf-8"))
        except UnicodeEncodeError:
            raise _half_a_pair(value, where) from None
        except RecursionError:  # pragma: no cover - only where the caller's own stack is deep
            raise ConfigError(f"{where} is nested too deep") from None
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{where} cannot be written as JSON: {error}") from None

    def text(self, text: str, where: str) -> None:
        try:
            self.raw(_escape(text))
        except UnicodeEncodeError:
            raise _half_a_pair(text, where) from None

    def field(self, key: str, value: Any, where: str, owner: str) -> None:
        self.raw(b',"')
        self.text(key, f"a key of {owner}")
        self.raw(b'":')
        self.json(value, where)

    def file(self, part: _FilePart) -> None:
        self.parts += [b"".join(self.memory), part]
        self.memory = []

    def body(self) -> Body:
        return Body([*self.parts, b"".join(self.memory)], (self.images, self.image_bytes))

    def text_file(self, file: TextFile, where: str) -> None:
        name = _encodable(file.name.replace('"', "&quot;"))  # the system's names are not all text
        self.text(f'<file name="{name}">\n', where)
        if file.text is None:
            self.file(_text_part(file))
        else:
            self.text(file.text, where)
            length = len(self.memory[-1])
            if file.escaped_len not in (None, length):
                raise AttachmentError(
                    f"the text of {file.name} escapes to {length} bytes, not {file.escaped_len}"
                )
        self.text("\n</file>", where)

    def image(self, image: Image) -> None:
        size = len(image.data) if image.data is not None else _file_size(_path_of(image))
        media_type = _image_type(image)
        length = 4 * ((size + 2) // 3)
        self.raw(
            b'{"type":"image_url","image_url":{"url":"data:%s;base64,' % media_type.encode("ascii")
        )
        if image.data is not None:
            self.file(_MemoryImage(image.data, length))
        else:
            self.file(_ImagePart(_path_of(image), size, length))
        self.raw(b'"}}')
        self.images += 1
        self.image_bytes += length


def _half_a_pair(value: Any, where: str) -> ConfigError:
    """The error for text that UTF-8 cannot carry, with its place (Q4)."""
    todo = deque([(value, where)])
    while todo:
        value, where = todo.popleft()
        if isinstance(value, str):
            found = re.search("[\ud800-\udfff]", value)
            if found is not None:
                place = f"at offset {found.start()}"
                return ConfigError(f"{where} holds half of a surrogate pair {place}")
        elif isinstance(value, dict):
            todo += [(key, f"a key of {where}") for key in value]
            todo += [(item, f"{where}.{key}") for key, item in value.items()]
        elif isinstance(value, (list, tuple)):
            todo += [(item, f"{where}[{index}]") for index, item in enumerate(value)]
    # Not reached: nothing else is refused by UTF-8.
    return ConfigError(f"{where} holds half a pair")  # pragma: no cover - see above


class _MemoryImage(_FilePart):
    """An image in memory: its base64 is made a block at a time, never held whole."""

    def __init__(self, data: bytes, length: int) -> None:
        super().__init__("", len(data), length)
        self.data = data

    def blocks(self) -> Iterator[bytes]:
        for start in range(0, self.size, _BLOCK):
            yield binascii.b2a_base64(self.data[start : start + _BLOCK], newline=False)


def _text_part(file: TextFile) -> _TextPart:
    path, declared = _path_of(file), file.escaped_len
    size = _file_size(path)
    if declared is not None and not size <= declared <= 6 * size:  # a byte escapes to 1, 2 or 6
        raise AttachmentError(f"{path} has {size} bytes: escaped_len={declared} cannot be right")
    return _TextPart(path, size, _measure(path) if declared is None else declared)


def _measure(path: str) -> int:
    decoder, length = codecs.getincrementaldecoder("utf-8")(), 0
    for block in _read_file(path):
        _decode_block(decoder, block, False, path)
        length += escaped_len(block)
    _decode_block(decoder, b"", True, path)
    return length


def encode(request: Request) -> Body:
    """The Chat Completions body of a request, as a ``Client`` first sends it to a server.

    Usage is asked for only when ``request.include_usage`` is True. Raises ``ConfigError``,
    ``AttachmentError`` and, for a requirement that cannot be met, ``Unsupported``.
    """
    return _encode_chat(_check(request, Request, "the request"), frozenset(), "")


# What a server can be learned to refuse (D11, Q5); nothing was generated, so it is asked again.
_LEAN, _COMPLETION_TOKENS = "lean", "max_completion_tokens"


def _encode_chat(request: Request, learned: frozenset[str], empty_content: str | None) -> Body:
    _check_tool_choice(request)  # before any file is read (D40)
    if not request.messages and request.system is None:
        raise ConfigError("the request has no messages")
    out = _Writer()
    out.raw(b'{"model":')
    out.json(request.model, "model")
    out.raw(b',"messages":[')
    comma = b""
    if request.system is not None:
        out.raw(b'{"role":"system","content":"')
        out.text(request.system, "system")
        out.raw(b'"}')
        comma = b","
    for index, message in enumerate(request.messages):
        out.raw(comma)
        comma = b","
        _write_message(out, message, f"messages[{index}]", request.send_reasoning, empty_content)
    out.raw(b'],"stream":true')
    for key, value in _options(request, learned).items():
        out.field(key, value, key, "extra")
    out.raw(b"}")
    return out.body()


def _check_tool_choice(request: Request) -> None:
    names = [tool.name for tool in request.tools]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"two tools are named {_shown(twice)}")
    if request.tool_choice == "required" and not names:
        raise Unsupported('tool_choice "required" needs tools')
    if isinstance(request.tool_choice, NamedTool) and request.tool_choice.name not in names:
        raise Unsupported(f"no tool of the request is named {_shown(request.tool_choice.name)}")


def _write_message(
    out: _Writer, message: Message, where: str, reasoning: bool, empty_content: str | None
) -> None:
    if isinstance(message, User):
        _write_user(out, message, where)
    elif isinstance(message, Assistant):
        _write_assistant(out, message, where, reasoning, empty_content)
    else:
        out.raw(b'{"role":"tool","tool_call_id":"')
        out.text(message.call_id, where)
        out.raw(b'","content":"error: ' if message.is_error else b'","content":"')
        out.text(message.content, where)
        out.raw(b'"}')


def _write_user(out: _Writer, message: User, where: str) -> None:
    """A string, unless there is an image; then one text part, if any, and the images (P12)."""
    texts = [part for part in message.parts if not isinstance(part, Image) and part != ""]
    images = [part for part in message.parts if isinstance(part, Image)]
    out.raw(b'{"role":"user","content":')
    if not images:
        _write_texts(out, texts, where)
        out.raw(b"}")
        return
    comma = b"["
    if texts:
        out.raw(b'[{"type":"text","text":')
        _write_texts(out, texts, where)
        comma = b"},"
    for image in images:
        out.raw(comma)
        out.image(image)
        comma = b","
    out.raw(b"]}")


def _write_texts(out: _Writer, texts: Sequence[str | TextFile], where: str) -> None:
    out.raw(b'"')
    for index, part in enumerate(texts):
        if index:
            out.text("\n\n", where)
        if isinstance(part, TextFile):
            out.text_file(part, where)
        else:
            out.text(part, where)
    out.raw(b'"')


def _write_assistant(
    out: _Writer, message: Assistant, where: str, reasoning: bool, empty_content: str | None
) -> None:
    out.raw(b'{"role":"assistant","content":')
    if message.tool_calls and not message.text:
        out.json(empty_content, where)
    else:
        out.raw(b'"')
        out.text(message.text, where)
        out.raw(b'"')
    fields = _reasoning_fields(message) if reasoning else {}
    if message.tool_calls:
        fields["tool_calls"] = [_call_fields(call) for call in message.tool_calls]
    for key, value in fields.items():
        out.field(key, value, f"{where}, {key}", where)
    out.raw(b"}")


_NEVER_SENT_BACK = ("think", "content_parts")  # they came in no key that a request could repeat


def _reasoning_fields(message: Assistant) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for piece in message.reasoning:
        if piece.source not in _NEVER_SENT_BACK:
            fields[piece.source] = fields.get(piece.source, "") + piece.text
    fields.update(message.extra)
    for key in ("role", "content", "tool_calls"):
        if key in fields:
            raise ConfigError(f"extra or reasoning of an Assistant must not set {key!r}")
    return fields


def _call_fields(call: ToolCall) -> dict[str, Any]:
    # vLLM and gateways to Bedrock fail on "" as arguments of an earlier call.
    function = {"name": call.name, "arguments": call.arguments if call.arguments.strip() else "{}"}
    return {**call.extra, "id": call.id, "type": "function", "function": function}


def _options(request: Request, learned: frozenset[str]) -> dict[str, Any]:
    """The rest of the body: what the request sets, and nothing implied (P11, D40)."""
    lean = _LEAN in learned
    limit = _COMPLETION_TOKENS if _COMPLETION_TOKENS in learned else "max_tokens"
    choice = request.tool_choice
    fields: dict[str, Any] = {
        limit: request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "stop": list(request.stop) or None,
        "seed": request.seed,
        "tools": [_tool(tool) for tool in request.tools] or None,
        "tool_choice": _named(choice) if isinstance(choice, NamedTool) else choice,
        "response_format": _format(request.response_format),
        "reasoning_effort": None if lean else request.reasoning_effort,
        "stream_options": {"include_usage": True} if request.include_usage and not lean else None,
    }
    if choice == "auto" or (choice == "none" and not request.tools):
        del fields["tool_choice"]
    fields = {key: value for key, value in fields.items() if value is not None}
    return {**fields, **request.extra}


def _tool(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    function["parameters"] = tool.parameters
    if tool.strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _named(choice: NamedTool) -> dict[str, Any]:
    return {"type": "function", "function": {"name": choice.name}}


def _format(form: ResponseFormat) -> dict[str, Any] | None:
    if isinstance(form, JsonSchema):
        schema: dict[str, Any] = {"name": form.name, "schema": form.schema}
        if form.strict:
            schema["strict"] = True
        return {"type": "json_schema", "json_schema": schema}
    return None if form == "text" else {"type": form}


# -- 4. Decoder ----------------------------------------------------------------------------------

ThinkMode: TypeAlias = 'Literal["split", "keep", "open"]'
_THINK_MODES = _words(ThinkMode)

ACCEPT = frozenset(
    (
        "end-without-done",
        "done-without-finish",
        "changing-id",
        "any-choice-index",
        "any-content-type",
    )
)
"""Names for ``accept=``: deviations that could hide a fault, for a caller who knows the server."""

_BLANKS = b" \t\r\n"
_BLANK_CHARS = " \t\r\n"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_JSON_BODY_BYTES = 65536  # of a body that is no stream: enough for an error's words
# Seen from servers, each with one reading (F2): HF TGI, Bedrock, Gemini, Anthropic gateways.
_FINISH_ALIASES = {
    "eos": "stop",
    "eos_token": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "STOP": "stop",
    "max_tokens": "length",
    "MAX_TOKENS": "length",
}
_WIRE_FINISHES = frozenset(("stop", "tool_calls", "length", "content_filter"))
_FAILED_FINISHES = ("error", "insufficient_system_resource")  # OpenRouter, DeepSeek (C1)
_REASONING_KEYS = ("reasoning_content", "reasoning", "reasoning_text")
# Delta keys that carry nothing of the answer, with the server they were seen from (C10).
_EXTRA_DELTA_KEYS = frozenset(
    (
        "reasoning_details",  # OpenRouter, Vercel
        "annotations",  # OpenAI search
        "provider_specific_fields",  # LiteLLM
        "thinking_blocks",  # LiteLLM
        "reasoning_opaque",  # Copilot
        "token_id",  # Together
        "type",  # Snowflake
        "content_list",  # Snowflake
        "extra_content",  # Gemini
    )
)
# Top-level keys that are read, or change with every chunk and say nothing (C8).
_READ_KEYS = frozenset(("id", "model", "object", "created", "choices", "usage", "obfuscation"))
_FILTER_KEYS = ("prompt_filter_results", "prompt_annotations", "content_filter_results")
_TOP_USAGE, _ELSEWHERE = 0, 1


def _failure(value: Any) -> Error | None:
    """The error that a chunk reports, or None (C1)."""
    if isinstance(value, list):
        value = value[0] if value else None
    if not isinstance(value, dict):
        return None
    choices = value.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    if value.get("error") or value.get("object") == "error":
        return _server_error(value)
    if choices is None and (_is_words(value.get("message")) or value.get("detail")):
        return _server_error(value)
    if isinstance(first, dict) and (
        first.get("error") or first.get("finish_reason") in _FAILED_FINISHES
    ):
        return _server_error({"error": first.get("error")})
    return None


def _is_words(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _is_blocked(results: Any) -> bool:
    """A content filter's verdict: some category or list says ``filtered`` (D35)."""
    todo = [results]
    while todo:
        value = todo.pop()
        if isinstance(value, dict):
            if value.get("filtered") is True:
                return True
            todo.extend(value.values())
        elif isinstance(value, list):
            todo.extend(value)
    return False


def _read_usage(report: Any) -> tuple[_Counts | None, str | None]:
    """The counts of a usage report, or None, and the quirk it shows (U2, U3)."""
    if not isinstance(report, dict):
        return None, "odd-usage"
    details = report.get("completion_tokens_details")
    reasoning = details.get("reasoning_tokens") if isinstance(details, dict) else None
    prompt, completion = report.get("prompt_tokens"), report.get("completion_tokens")
    total = report.get("total_tokens")
    for count in (prompt, completion, total, reasoning):
        if count is not None and (type(count) is not int or not 0 <= count < 1 << 63):
            return None, "odd-usage"
    if prompt is None or completion is None:
        return None, "incomplete-usage" if report else None
    if total is None:
        return (prompt, completion, prompt + completion, reasoning), "usage-total"
    return (prompt, completion, total, reasoning), None


def _is_whole_json(arguments: str) -> bool:
    if arguments == "":
        return True
    try:
        _parse_json(arguments)
        return True
    except ValueError:
        return False


def _encodable_tree(value: Any) -> Any:
    """``value`` with every text in it encodable."""
    if isinstance(value, str):
        return _encodable(value)
    if isinstance(value, list):
        return [_encodable_tree(item) for item in value]
    if isinstance(value, dict):
        return {_encodable(key): _encodable_tree(item) for key, item in value.items()}
    return value


class _Think:
    """Splits ``<think>`` from the answer's text (D23), with the markers cut anywhere (C17)."""

    def __init__(self, mode: ThinkMode) -> None:
        self.keep = mode == "keep"
        self.inside = self.opening = self.busy = mode == "open"
        self.held = ""

    def feed(self, text: str) -> list[tuple[bool, str]]:
        """Pieces, each with whether it is reasoning. What may be a marker's start is held."""
        if self.keep or (not self.busy and "<" not in text):
            return [(False, text)]
        text, self.held = self.held + text, ""
        if self.opening:  # one leading tag repeats what the prompt's template opened
            if len(text) < 7 and "<think>".startswith(text):
                self.held = text
                return []
            self.opening = False
            text = text[7:] if text.startswith("<think>") else text
        found = [piece for piece in self.pieces(text) if piece[1]]
        self.busy = self.inside or self.held != ""  # the next piece is not simply text
        return found

    def pieces(self, text: str) -> Iterator[tuple[bool, str]]:
        start = 0
        while True:
            marker = "</think>" if self.inside else "<think>"
            end = text.find(marker, start)
            if end < 0:
                break
            yield self.inside, text[start:end]
            self.inside, start = not self.inside, end + len(marker)
        rest = text[start:]
        hold = next((n for n in range(len(marker) - 1, 0, -1) if rest.endswith(marker[:n])), 0)
        self.held = rest[len(rest) - hold :]
        yield self.inside, rest[: len(rest) - hold]

    def end(self) -> list[tuple[bool, str]]:
        """At the end, a marker that was never finished is what it looks like."""
        held, self.held = self.held, ""
        return [(self.inside, held)] if held else []


class _Pieces(_Texts):
    """The pieces of a text. Small strings take ten times their memory, so many become one, and of
    those, many again."""

    long = joined = 0  # how many at the start were joined twice, and at all

    def join(self) -> None:
        if len(self) > self.joined:
            self[self.joined :] = ["".join(self[self.joined :])]
        if len(self) > self.long + 64:
            self[self.long :] = ["".join(self[self.long :])]
            self.long = len(self)
        self.joined = len(self)


class _OpenCall:
    """A tool call being assembled."""

    def __init__(self, place: int, wire_index: int | None) -> None:
        self.place = place  # in order of appearance
        self.wire_index = wire_index
        self.id = self.name = ""
        self.arguments = _Pieces()
        self.extra: dict[str, Any] = {}
        self.shown = ("", "", 0)  # by its events: id, name, pieces of arguments
        self.events = self.id_at = 0  # how many there are, and how many came before its id

    def show(self, events: int = 1) -> None:
        self.shown = (self.id, self.name, len(self.arguments))
        self.events += events

    def partial(self, waiting: list[ToolCallDelta]) -> ToolCall | None:
        """What its events said, but for those that still wait to be given out."""
        given, (id, name, pieces) = self.events - len(waiting), self.shown
        if given <= 0:
            return None
        name = name[: len(name) - sum(len(event.name) for event in waiting)]
        arguments = "".join(self.arguments[:pieces])
        arguments = arguments[: len(arguments) - sum(len(event.arguments) for event in waiting)]
        return ToolCall(id if given > self.id_at else "", name, arguments, extra=self.extra)

    def text(self) -> str:
        return "".join(self.arguments)


class _Answer:
    """The answer being assembled: chunks in, events out. Knows nothing of bytes."""

    NAME = 4096  # characters of a tool's name: real ones have 64

    def __init__(
        self, strict: bool, accept: frozenset[str], think: ThinkMode, limits: Limits
    ) -> None:
        self.strict, self.accept, self.limits = strict, accept, limits
        self.quirks: dict[str, None] = {}  # a set that keeps its order
        self.out: deque[Event] = deque()
        self.completed: Completion | None = None
        self.think = _Think(think)
        self.text = _Pieces()
        self.reasoning: dict[str, _Pieces] = {}
        self.calls: list[_OpenCall] = []
        self.by_index: dict[int, _OpenCall] = {}
        self.last_call: _OpenCall | None = None
        self.halves: dict[Any, str] = {}  # by channel: a first half waiting for its second (C16)
        self.finish: str | None = None
        self.blocked = self.has_content = self.has_refusal = False
        self.seen_first_choice, self.choice_index = False, 0
        self.turned = False  # a call opened, or a kept field changed: frames no longer hold
        self.ids: dict[str, str] = {}  # id and model, of the first chunk that carries something
        self.first_ids: dict[str, str] = {}
        self.usage: list[_Counts | None] = [None, None]  # at the top level, elsewhere
        self.elsewhere_quirks: list[str] = []
        self.extra: dict[str, Any] = {}
        self.delta_extra: dict[str, Any] = {}
        self.kept = 0  # characters of all that is kept beside the answer
        self.now = 0.0
        self.first_at = self.last_at = 0.0
        self.pieces = self.joined = 0

    # What a deviation does

    def note(self, quirk: str) -> None:
        self.quirks[quirk] = None

    def accepts(self, name: str) -> bool:
        if name in self.accept:
            self.note(name)
            return True
        return False

    def deviates(self, quirk: str, error: Callable[[str], Error], message: str) -> None:
        """Unknown input: an error in strict mode, skipped and noted in lenient."""
        if self.strict:
            raise error(message)
        self.note(quirk)

    # A chunk

    def chunk(self, chunk: dict[str, Any], odd_text: bool) -> None:
        """Read a chunk. It is taken whole or, when this raises, not at all.

        ``odd_text`` says that it may hold half a surrogate pair.
        """
        choices = chunk.get("choices")
        if choices is not None and not isinstance(choices, list):
            raise ProtocolError("choices is not a list")
        if odd_text:
            top = {key: value for key, value in chunk.items() if key != "choices"}
            chunk = {**_encodable_tree(top), "choices": choices}
        self.read_top(chunk)
        events: list[Event] = []
        choice = self.own_choice(choices) if choices else None
        if choice is not None:
            events = self.read_choice(choice, chunk, odd_text)
        for key in ("id", "model"):
            if _is_words(chunk.get(key)):
                self.first_ids.setdefault(key, chunk[key])
        self.give(events)

    def give(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, TextDelta):
                self.text.append(event.text)
            elif isinstance(event, ReasoningDelta):
                self.reasoning.setdefault(event.source, _Pieces()).append(event.text)
            else:  # Completed is not given out here
                self.calls[event.index].show()  # type: ignore[union-attr]
        if events:
            self.first_at = self.first_at if self.pieces else self.now
            self.last_at, self.pieces = self.now, self.pieces + 1
            self.out.extend(events)

    # Chunks that only add a string each: what `chunk` would do for them

    def repeated(self, carrier: Any, texts: list[str]) -> None:
        if carrier == "content" and (self.think.busy or "<" in "".join(texts)):
            for text in texts:
                self.give(self.split(text))
            return
        if isinstance(carrier, str) and not all(texts):
            texts = [text for text in texts if text]
        if not texts:
            return
        self.first_at = self.first_at if self.pieces else self.now
        self.last_at, self.pieces = self.now, self.pieces + len(texts)
        if carrier == "content":
            self.text += texts
            self.out.extend(_many(TextDelta, texts))
        elif isinstance(carrier, str):
            self.reasoning.setdefault(carrier, _Pieces()).extend(texts)
            self.out.extend(_many(ReasoningDelta, texts, itertools.repeat(carrier)))
        else:
            carrier.arguments += filter(None, texts)
            carrier.show(len(texts))
            self.last_call = carrier
            places, none = [carrier.place] * len(texts), itertools.repeat("")
            self.out.extend(_many(ToolCallDelta, places, none, none, texts))

    def join_pieces(self) -> None:
        self.joined = self.pieces
        for texts in (self.text, *self.reasoning.values()):
            texts.join()
        for call in self.calls:
            if call.shown[2] == len(call.arguments):
                call.arguments.join()
                call.show(0)

    def read_top(self, chunk: dict[str, Any]) -> None:
        for key, value in chunk.items():
            if key not in _READ_KEYS and value is not None and (key != "error" or value):
                self.keep(self.extra, key, value)
        report = chunk.get("usage")
        if report is not None:
            self.read_report(report, _TOP_USAGE)
        groq = chunk.get("x_groq")
        if isinstance(groq, dict) and groq.get("usage") is not None:
            self.read_report(groq["usage"], _ELSEWHERE)
        elif not any(chunk.get(key) for key in ("choices", "usage", *_FILTER_KEYS)):
            self.note("no-choices")

    def keep(self, kept: dict[str, Any], key: str, value: Any) -> None:
        """Keep one of the server's other fields. All of them together have a limit, by the text
        they are: an empty list takes fifty times its two characters."""
        before = repr(kept[key]) if key in kept else ""  # by repr, as 1 == True in Python
        after = repr(value)
        self.turned = self.turned or (before != "" and before != after)
        self.count_kept(len(after) - len(before) + (0 if key in kept else len(key)))
        kept[key] = value

    def count_kept(self, size: int) -> None:
        self.kept += size
        if self.kept > self.limits.event_bytes:
            limit = self.limits.event_bytes
            raise LimitExceeded(f"other fields of more than {limit} bytes (Limits.event_bytes)")

    def read_report(self, report: Any, place: int) -> None:
        usage, quirk = _read_usage(report)
        quirks = [quirk] if quirk else []
        before = self.usage[place]
        if usage is not None:
            if before is not None:
                quirks.append("running-usage")
                if any(new < old for new, old in zip(usage[:3], before[:3])):
                    quirks.append("odd-usage")
            self.usage[place] = usage
        if place == _TOP_USAGE:
            self.quirks.update(dict.fromkeys(quirks))
        elif usage is not None:  # elsewhere only a whole report counts, and only at the end (U4)
            self.elsewhere_quirks += quirks

    def own_choice(self, choices: list[Any]) -> dict[str, Any] | None:
        """The choice that is this answer's (C5)."""
        indices = [self.index_of(choice) for choice in choices]
        if len(choices) == 1 and indices[0] != 0 and "any-choice-index" in self.accept:
            self.note("any-choice-index")
        elif indices.count(0) > 1:
            raise Unsupported("two choices in one chunk: svir reads one answer")
        elif 0 not in indices or len(choices) > 1:
            self.skip_choices(choices, 0 in indices)
            if 0 not in indices:
                return None
        place = 0 if len(choices) == 1 else indices.index(0)
        if indices[place] < self.choice_index:
            raise Unsupported("the choice index falls: those are two answers")
        self.choice_index, self.seen_first_choice = indices[place], True
        choice: dict[str, Any] = choices[place]
        return choice

    def index_of(self, choice: Any) -> int:
        if not isinstance(choice, dict):
            raise ProtocolError("a choice is not an object")
        index = choice.get("index")
        if index is None:
            self.note("missing-choice-index")
            return 0
        if type(index) is not int:
            raise ProtocolError("the index of a choice is not an integer")
        return index

    def skip_choices(self, choices: list[Any], has_first: bool) -> None:
        if not self.strict and (has_first or self.seen_first_choice):
            self.note("extra-choice")
            return
        hint = ' (accept="any-choice-index" reads this server)' if len(choices) == 1 else ""
        raise Unsupported("a choice with an index other than 0: svir reads one answer" + hint)

    def read_choice(
        self, choice: dict[str, Any], chunk: dict[str, Any], odd_text: bool
    ) -> list[Event]:
        self.blocked = self.blocked or _is_blocked(choice.get("content_filter_results"))
        if choice.get("usage") is not None:
            self.read_report(choice["usage"], _ELSEWHERE)
        finish = self.read_finish(choice.get("finish_reason"))
        delta, message = choice.get("delta"), choice.get("message")
        if delta is None:
            if "content_filter_offsets" in choice:
                return self.read_annotation(finish)
            if message is None and isinstance(choice.get("text"), str):
                raise ProtocolError(
                    "this is a stream of /v1/completions, not of /v1/chat/completions"
                )
            delta = {}
        if not isinstance(delta, dict):
            raise ProtocolError("a delta is not an object")
        events, carries = self.read_delta(delta, odd_text)
        if message is not None:
            self.check_message(message)
        if carries or finish is not None:
            self.check_ids(chunk)
        if finish is not None:
            self.set_finish(finish)
        return events

    def read_annotation(self, finish: str | None) -> list[Event]:
        """The report of an asynchronous content filter: nothing of the answer (D35)."""
        if finish not in (None, "content_filter"):
            raise Unsupported(f"a filter's annotation finishes with {_shown(finish)}")
        if finish is not None:
            self.set_finish(finish)
        return []

    def check_message(self, message: Any) -> None:
        """A whole message is ignored where the deltas carried what it has (C7)."""
        fields = message if isinstance(message, dict) else {"content": message}
        has_text = bool(fields.get("content") or fields.get("refusal"))
        carried = self.has_content or self.has_refusal
        if (has_text and not carried) or (fields.get("tool_calls") and not self.calls):
            raise ProtocolError("a whole message in place of a delta")
        self.note("message-beside-delta")

    def check_ids(self, chunk: dict[str, Any]) -> None:
        for key in ("id", "model"):
            value: Any = chunk.get(key)
            if not _is_words(value) or self.ids.setdefault(key, value) == value:
                continue
            if not self.accepts("changing-id"):
                self.deviates(
                    "changing-id",
                    ProtocolError,
                    f'the {key} changes in the answer (accept="changing-id" reads this server)',
                )

    # Finish

    def read_finish(self, reason: Any) -> str | None:
        if reason is None:
            return None
        if not isinstance(reason, str):
            raise ProtocolError("finish_reason is not a string")
        if reason in ("", "null"):
            self.note("empty-finish")
            return None
        if reason in _FINISH_ALIASES:
            self.note("finish-alias")
            return _FINISH_ALIASES[reason]
        if reason not in _WIRE_FINISHES:
            raise Unsupported(f"unknown finish_reason {_shown(reason)}")
        return reason

    def set_finish(self, reason: str) -> None:
        before = self.finish
        if before is None or (reason == "content_filter" and before != reason):
            self.finish = reason
        elif before == reason or (self.calls and {before, reason} == {"stop", "tool_calls"}):
            self.note("repeated-finish")
        elif before != "content_filter":  # a filter's block is the stronger statement (D35)
            raise ProtocolError(f"two finish reasons: {before} and {reason}")

    def refuse_after_finish(self) -> None:
        """Something of the answer comes: never after the finish (F5)."""
        if self.finish is not None:
            raise Unsupported("content after the finish reason")

    # A delta

    def read_delta(self, delta: dict[str, Any], odd_text: bool) -> tuple[list[Event], bool]:
        """The events of a delta, and whether it carries anything of the answer."""
        events: list[Event] = []
        carries = False
        for key, value in delta.items():
            if key == "content":
                events += self.read_content(value)
            elif key in _REASONING_KEYS:
                if key != "reasoning" or not value or value != delta.get("reasoning_content"):
                    events += self.read_reasoning(key, value)  # the same under both is one (D43)
            elif key == "tool_calls":
                events += self.read_calls(value, odd_text)
            elif key == "refusal":
                events += self.read_refusal(value)
            elif key == "role":
                self.check_role(value)
                continue
            elif (
                value is None
                or value in ("", [], {})
                or self.keeps_extra(key, value, delta, odd_text)
            ):
                continue
            else:
                self.deviates("skipped-delta-key", Unsupported, f"the delta carries {_shown(key)}")
            carries = carries or bool(value)
        return events, carries

    def check_role(self, role: Any) -> None:
        if role is not None and role not in ("", "assistant"):
            self.deviates("unexpected-role", ProtocolError, f"a delta with role {_shown(role)}")

    def keeps_extra(self, key: str, value: Any, delta: dict[str, Any], odd_text: bool) -> bool:
        """Whether it is a key known to carry nothing of the answer; its value is kept (C10)."""
        if key == "function_call" and delta.get("tool_calls"):  # llama-cpp-python says it twice
            self.note("extra-delta-key")
            return True
        # Snowflake repeats the text; alone, `text` may be the answer.
        if key not in _EXTRA_DELTA_KEYS and (key != "text" or not _is_words(delta.get("content"))):
            return False
        self.note("extra-delta-key")
        value = _encodable_tree(value) if odd_text else value
        before = self.delta_extra.get(key)
        if isinstance(value, list) and isinstance(before, list):
            self.count_kept(len(repr(value)))
            before.extend(value)
        else:
            self.keep(self.delta_extra, key, list(value) if isinstance(value, list) else value)
        return True

    def read_content(self, content: Any) -> list[Event]:
        if content is None or content == "" or content == []:
            return []
        if isinstance(content, str):
            return self.read_text(content)
        if not isinstance(content, list):
            raise ProtocolError("content is neither text nor a list of parts")
        self.note("content-parts")
        events: list[Event] = []
        for part in content:
            events += self.read_part(part)
        return events

    def read_text(self, text: str) -> list[Event]:
        self.refuse_after_finish()
        if self.has_refusal:
            raise ProtocolError("an answer and a refusal in one")
        self.has_content = True
        return self.split(self.pair("text", text))

    def split(self, text: str) -> list[Event]:
        return [self.piece(*piece) for piece in self.think.feed(text)] if text else []

    def piece(self, is_reasoning: bool, text: str) -> Event:
        return ReasoningDelta(text, "think") if is_reasoning else TextDelta(text)

    def read_part(self, part: Any) -> list[Event]:
        """One part of a content list: text, or reasoning (C14; Mistral, Databricks)."""
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in ("text", "thinking", "reasoning"):
            self.deviates("skipped-part", Unsupported, f"a content part of type {_shown(kind)}")
            return []
        keys = ("text",) if kind == "text" else ("thinking", "summary", "reasoning", "text")
        words = next((part[key] for key in keys if part.get(key) is not None), "")
        pieces = words if isinstance(words, list) else [words]
        texts: list[Any] = [p.get("text") if isinstance(p, dict) else p for p in pieces]
        if not all(isinstance(text, str) for text in texts):
            raise ProtocolError("a content part without text")
        text = "".join(texts)
        if not text:
            return []
        return (
            self.read_text(text) if kind == "text" else self.read_reasoning("content_parts", text)
        )

    def read_reasoning(self, source: str, text: Any) -> list[Event]:
        if text is None or text == "":
            return []
        if not isinstance(text, str):
            self.deviates("skipped-reasoning", ProtocolError, f"{source} is not text")
            return []
        self.refuse_after_finish()
        text = self.pair(source, text)
        return [ReasoningDelta(text, source)] if text else []

    def read_refusal(self, refusal: Any) -> list[Event]:
        if refusal is None or refusal == "":
            return []
        if not isinstance(refusal, str):
            raise ProtocolError("refusal is not text")
        self.refuse_after_finish()
        if self.has_content or self.calls:
            raise ProtocolError("an answer and a refusal in one")
        self.has_refusal = True
        text = self.pair("text", refusal)
        return [TextDelta(text)] if text else []

    def pair(self, channel: Any, text: str) -> str:
        """``text`` with the halves of surrogate pairs joined across pieces (C16)."""
        if channel not in self.halves and text.isascii():
            return text
        text = self.halves.pop(channel, "") + text
        if "\ud800" <= text[-1] <= "\udbff":
            self.halves[channel] = text[-1]
            text = text[:-1]
        try:
            return text.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            self.deviates(
                "lone-surrogate", ProtocolError, "half of a surrogate pair in the answer"
            )
            return _encodable(text)

    # Tool calls

    def read_calls(self, pieces: Any, odd_text: bool) -> list[Event]:
        if pieces is None or pieces == []:
            return []
        if not isinstance(pieces, list):
            raise ProtocolError("tool_calls is not a list")
        self.refuse_after_finish()
        if self.has_refusal:
            raise ProtocolError("an answer and a refusal in one")
        return [self.read_call(piece, odd_text) for piece in pieces]

    def read_call(self, piece: Any, odd_text: bool) -> Event:
        if not isinstance(piece, dict):
            raise ProtocolError("a piece of a tool call is not an object")
        if piece.get("type") not in (None, "", "function"):
            raise Unsupported(f"a tool call of type {_shown(piece['type'])}")
        function = piece.get("function")
        function = {} if function is None else function
        if not isinstance(function, dict):
            raise ProtocolError("the function of a tool call is not an object")
        id, name = self.word(piece.get("id"), "id"), self.word(function.get("name"), "name")
        if piece.get("id") == "":
            self.note("empty-id")
        call = self.find_call(piece.get("index"), id, name)
        repeats = id != "" and id == call.id
        if id and not call.id:
            call.id, call.id_at = id, call.events
        name = self.add_name(call, name, repeats)
        arguments = self.add_arguments(call, function.get("arguments"))
        for key, value in piece.items():
            if key not in ("index", "id", "type", "function") and value is not None:
                value = _encodable_tree(value) if odd_text else value
                self.keep(call.extra, _encodable(key), value)
        self.last_call = call
        return ToolCallDelta(call.place, id, name, arguments)

    def word(self, value: Any, what: str) -> str:
        """An id or a name: neither comes in halves of a character."""
        if value is None or value == "":
            return ""
        if not isinstance(value, str):
            raise ProtocolError(f"the {what} of a tool call is not a string")
        clean = _encodable(value)
        if clean != value:
            self.deviates(
                "lone-surrogate",
                ProtocolError,
                f"half of a surrogate pair in the {what} of a call",
            )
        return clean

    def find_call(self, index: Any, id: str, name: str) -> _OpenCall:
        if index is None:
            self.note("missing-index")
            known = next((call for call in self.calls if id and call.id == id), None)
            if known is None and not id:
                known = self.last_call
                if known is None:
                    raise ProtocolError("a piece of a tool call with neither index nor id")
            return known or self.open_call(None)
        if type(index) is not int:
            raise ProtocolError("the index of a tool call is not an integer")
        call = self.by_index.get(index)
        if call is None:
            return self.open_call(index)
        if id and call.id and id != call.id:
            if not name or not _is_whole_json(call.text()):
                raise ProtocolError("the id of a tool call changes")  # P10
            self.note("reused-index")  # Ollama (T2)
            return self.open_call(index)
        return call

    def open_call(self, index: int | None) -> _OpenCall:
        if len(self.calls) >= self.limits.tool_calls:
            raise LimitExceeded(
                f"more than {self.limits.tool_calls} tool calls (Limits.tool_calls)"
            )
        self.turned = True
        call = _OpenCall(len(self.calls), index)
        self.calls.append(call)
        if index is not None:
            self.by_index[index] = call
        return call

    def add_name(self, call: _OpenCall, name: str, repeats_id: bool) -> str:
        if name and name == call.name and (repeats_id or call.arguments):
            self.note("repeated-name")  # NIM, llama.cpp b5481 (T5)
            return ""
        if len(call.name) + len(name) > self.NAME:
            raise LimitExceeded(f"a tool's name of more than {self.NAME} characters")
        call.name += name
        return name

    def add_arguments(self, call: _OpenCall, arguments: Any) -> str:
        if arguments is None or arguments == "":
            return ""
        channel = ("call", call.place)
        if isinstance(arguments, dict) and not call.arguments and channel not in self.halves:
            self.note("arguments-object")  # GLM (T6)
            arguments = _compact_json(arguments)
        elif not isinstance(arguments, str):
            raise ProtocolError("the arguments of a tool call are not text")
        text = self.pair(channel, arguments)
        if text:
            call.arguments.append(text)
        return text

    # The end

    def done(self) -> None:
        """The server said ``[DONE]``."""
        if self.finish is None and not self.blocked:
            hint = ""
            if "done-without-finish" in self.accept:
                if self.arguments_are_whole():
                    self.note("done-without-finish")
                    self.complete("tool_calls" if self.calls else "stop")
                    return
            elif self.arguments_are_whole():
                hint = ' (accept="done-without-finish" reads this server)'
            raise Truncated("the answer ended without a finish reason" + hint)
        self.complete(self.finish or "content_filter")

    def end_of_input(self, whole: bool) -> None:
        """The body ended without ``[DONE]``; ``whole`` when nothing was cut."""
        hint = ""
        if whole and self.finish is not None and self.arguments_are_whole():
            if self.accepts("end-without-done"):
                self.complete(self.finish)
                return
            hint = ' (accept="end-without-done" reads this server)'
        raise Truncated("the answer was cut off before its [DONE]" + hint)

    def arguments_are_whole(self) -> bool:
        return all(_is_whole_json(call.text()) for call in self.calls)

    def complete(self, finish: str) -> None:
        self.settle_usage()
        events = self.flush(finish)
        if self.blocked:
            finish = "content_filter"
        elif self.has_refusal and finish in ("stop", "length"):
            finish = "refusal"
        elif self.calls and finish == "stop":
            finish = "tool_calls"  # D45
        if self.calls and finish == "content_filter":
            raise ProtocolError("tool calls that a content filter stopped")
        if finish == "tool_calls" and not self.calls:
            raise ProtocolError("the finish is tool_calls, without a call")
        calls = self.whole_calls() if finish == "tool_calls" else ()
        self.give(events)
        self.completed = self.completion(finish, calls)
        self.out.append(Completed._made({"completion": self.completed}))

    def settle_usage(self) -> None:
        if self.usage[_TOP_USAGE] is None and self.usage[_ELSEWHERE] is not None:
            self.usage[_TOP_USAGE] = self.usage[_ELSEWHERE]
            self.quirks.update(dict.fromkeys(["usage-elsewhere", *self.elsewhere_quirks]))

    def flush(self, finish: str) -> list[Event]:
        """What was held back: halves of characters, and a marker that never was one."""
        events: list[Event] = []
        for channel in list(self.halves):
            if finish == "length":  # the limit fell inside a character
                self.note("lone-surrogate")
            else:
                self.deviates(
                    "lone-surrogate", ProtocolError, "the answer ends in half a character"
                )
            del self.halves[channel]
            if channel == "text":
                events += [TextDelta("\ufffd")] if self.has_refusal else self.split("\ufffd")
            elif isinstance(channel, str):
                events.append(ReasoningDelta("\ufffd", channel))
            else:
                self.calls[channel[1]].arguments.append("\ufffd")
                events.append(ToolCallDelta(channel[1], arguments="\ufffd"))
        return events + [self.piece(*piece) for piece in self.think.end()]

    def whole_calls(self) -> Sequence[ToolCall]:
        """The calls, once, and only if every one is whole (D5, T3, T4)."""
        ids = [call.id for call in self.calls]
        if not all(ids) or len(set(ids)) != len(ids):
            raise ProtocolError("tool calls without an id of their own")
        if not all(call.name for call in self.calls):
            raise ProtocolError("a tool call without a name")
        calls = self.calls
        indices = sorted(call.wire_index for call in calls if call.wire_index is not None)
        if len(set(indices)) == len(
            calls
        ):  # none missing, none reused: their order is the index's
            if indices[-1] - indices[0] != len(calls) - 1:
                raise ProtocolError("a gap between the indices of the tool calls")
            if indices[0] != 0:
                self.note("index-offset")
            calls = [self.by_index[index] for index in indices]
        return [ToolCall(c.id, c.name, c.text(), extra=c.extra) for c in calls]

    def completion(
        self, finish: Any = None, calls: Sequence[ToolCall] = (), waiting: Sequence[Event] = ()
    ) -> Completion:
        """What there is, but for the events that still wait to be given out."""
        due = {"text": "", **dict.fromkeys(self.reasoning, "")}
        deltas: list[list[ToolCallDelta]] = [[] for _ in self.calls]
        for event in waiting:
            if isinstance(event, ToolCallDelta):
                deltas[event.index].append(event)
            elif isinstance(event, (TextDelta, ReasoningDelta)):
                due[getattr(event, "source", "text")] += event.text
        texts = {"text": self.text, **self.reasoning}
        text, *reasoning = (
            (name, "".join(pieces)[: -len(due[name]) or None]) for name, pieces in texts.items()
        )
        partial = [call.partial(deltas[call.place]) for call in self.calls if not calls]
        extra = {**self.extra, "delta": self.delta_extra} if self.delta_extra else self.extra
        ids, usage = {**self.first_ids, **self.ids}, self.usage[_TOP_USAGE]
        return Completion._made(
            {
                "text": text[1],
                "tool_calls": tuple(calls),
                "partial_tool_calls": tuple(call for call in partial if call is not None),
                "reasoning": tuple(Reasoning(said, source) for source, said in reasoning if said),
                "finish_reason": finish,
                "usage": None if usage is None else Usage._made(dict(zip(Usage._fields, usage))),
                "id": ids.get("id", ""),
                "model": ids.get("model", ""),
                "timing": self.timing(self.pieces - len(waiting)),
                "quirks": tuple(self.quirks),
                "extra": _copied(extra, "extra", 0),
            }
        )

    def timing(self, pieces: int) -> Timing | None:
        if pieces <= 0:
            return None
        usage, tokens = self.usage[_TOP_USAGE], pieces
        if usage is not None:
            hidden = 0 if self.reasoning else usage[3] or 0
            tokens = max(usage[1] - hidden, 0)
        times = (self.first_at, self.last_at, pieces, tokens)
        return Timing._made(dict(zip(Timing._fields, times)))

    # An answer that was not streamed

    def whole_body(self, value: dict[str, Any]) -> None:
        """Read a ``chat.completion`` object as if it had been streamed as one chunk (H6)."""
        chunk = dict(value)
        chunk["choices"] = [self.as_delta(choice) for choice in value["choices"]]
        self.chunk(chunk, odd_text=True)
        self.done()

    def as_delta(self, choice: Any) -> Any:
        if not isinstance(choice, dict) or not isinstance(choice.get("message"), dict):
            return choice
        delta = dict(choice["message"])
        calls = delta.get("tool_calls")
        if isinstance(calls, list):
            delta["tool_calls"] = [
                {"index": index, **call} if isinstance(call, dict) else call
                for index, call in enumerate(calls)
            ]
        return {**{k: v for k, v in choice.items() if k != "message"}, "delta": delta}


# The JSON parser's own functions; where a Python has not both, every line is read in full.
_scanstring: Any = getattr(json.decoder, "scanstring", None)
_scan_json: Any = getattr(_json_decoder, "scan_once", None)
_MARKER = "svir's marker"
# Inside a JSON string, without and with escaped quotes; most of them: a search for what has no end
# would take long, and a hostile line can hold many beginnings.
_NO_QUOTES = r'([^"\x00-\x1f]{0,256})'
_WITH_QUOTES = r'([^"\\\x00-\x1f]{0,128}(?:\\.[^"\\\x00-\x1f]{0,64}){0,16})'
# Another hole: that it ends in one place only keeps a search from trying all of them.
_SCALAR = r'("[^"\\\x00-\x1f]{0,64}"|[1-9][0-9]{0,15}(?![0-9]))'


class _Frame:
    """An event that a stream repeats around another string.

        data: {..."created":17,...{"content":"Hi"},"logprobs":{...}...}

    Its text is the same but for that string and, in some streams, values that are never read.
    """

    def __init__(self, carrier: Any, line: str, holes: list[tuple[int, int, bool]]) -> None:
        self.carrier = carrier  # what the string adds to: "content", a reasoning key, or a call
        cuts = [0, *(place for begin, end, _ in holes for place in (begin, end)), len(line)]
        self.head, *texts = [line[a:b] for a, b in zip(cuts[::2], cuts[1::2])]
        # The string's quotes stand in the text around it.
        self.end = texts[-1] = texts[-1] + ("\n\r\n" if line.endswith("\r") else "\n\n")
        self.rest = list(zip([is_string for _, _, is_string in holes], texts))
        self.between = self.end + self.head
        values = [line[begin:end] for begin, end, is_string in holes if not is_string]
        # Whether several can be found by one search: not where a list or an object changes.
        self.is_flat = all(re.match(_SCALAR + r"\Z", value) for value in values)
        # What stands from the first hole to the last, for the values of the holes.
        self.form = "%s".join(["", *(text.replace("%", "%%") for text in texts[:-1]), ""])
        self.column = [is_string for _, _, is_string in holes].index(True)
        self.find: Any = None
        self.inside = _NO_QUOTES  # the quicker one, until there are some
        self.least = 4 * (len(self.between) + sum(map(len, texts[:-1]))) + 512
        self.reach = self.least  # characters to search: more as it turns out to repeat

    def strings(self, text: str, at: int, last: int) -> tuple[list[str], int]:
        """The strings of the events from ``at`` on that are this one again, and their end."""
        strings: list[str] = []
        while text.startswith(self.head, at):
            after = text.find("\n", at, last) + (3 if self.end.endswith("\r\n") else 2)
            string = self.string_of(text[at:after])
            if string is None:
                break
            if self.is_flat and text.startswith(self.head, after):
                many, end = self.strings_at(text, at, min(last, at + self.reach))
                return (many, end) if many else ([string], after)
            strings.append(string)
            at = after
        return strings, at

    def string_of(self, event: str) -> str | None:
        """The string of one event, which the head begins."""
        string, at = "", len(self.head)
        if not event.endswith(self.end):
            return None  # at once: a line may begin as each of the frames does
        try:
            for is_string, text in self.rest:
                if is_string:
                    string, at = _scanstring(event, at)
                    at -= 1
                else:
                    value, at = _scan_json(event, at)
                    if isinstance(value, (dict, list)) and _is_deep(event):
                        return None
                if not event.startswith(text, at):
                    return None
                at += len(text)
        except (ValueError, StopIteration, RecursionError):
            return None
        is_whole = at == len(event) and (string.isascii() or not _has_half(string))
        return string if is_whole else None

    def strings_at(self, text: str, at: int, last: int) -> tuple[list[str], int]:
        """As ``strings``, many at once: where they stand is guessed by the lengths around them,
        and putting the text together from them shows how far that is what was received."""
        if self.find is None:
            self.find = self.finder()
        found = self.find(text, at, last)
        if not found:
            return [], at
        columns = list(zip(*found)) if len(self.rest) > 1 else [found]
        inner = list(map(self.form.__mod__, found)) if len(columns) > 1 else found
        begin, whole = at + len(self.head), self.between.join(inner)
        end = begin + len(whole)
        if not (text.startswith(whole, begin) and text.startswith(self.end, end)):
            inner = inner[: self.count(text, at, inner)]
        strings = _unescaped(list(columns[self.column][: len(inner)]))
        n = len(strings)
        if n == len(found):
            self.reach = min(4 * self.reach, 1 << 20)
            return strings, end + len(self.end)
        self.reach = self.least
        if self.inside == _NO_QUOTES and '\\"' in text[at:last]:
            self.inside, self.find = _WITH_QUOTES, None
        size = len(self.between) * n + sum(map(len, inner[:n]))
        return strings, at + size

    def finder(self) -> Callable[..., list[Any]]:
        """What finds that which would stand in the holes of events of this length; for more than
        one hole, a tuple of them each."""
        # re keeps what it compiled, and a server's events have few lengths.
        pattern = f"data:.{{{len(self.head) - 5}}}"
        for is_string, text in self.rest:
            hole, quote = (self.inside, '"') if is_string else (_SCALAR, "")
            pattern += f"{hole}{quote}.{{{len(text) - len(quote)}}}"
        return re.compile(pattern, re.DOTALL).findall

    def count(self, text: str, at: int, inner: list[str]) -> int:
        """How many of them stand in the text as this frame's, one after the other."""
        for n, string in enumerate(inner):
            if not text.startswith(self.head + string + self.end, at):
                return n
            at += len(string) + len(self.between)
        return len(inner)


def _unescaped(inner: list[str]) -> list[str]:
    """What stands inside quotes as the strings it is, up to the first that is none."""
    if "\\" not in "".join(inner):
        return inner
    strings = inner[:]
    for n in [n for n, text in enumerate(inner) if "\\" in text]:
        try:
            strings[n], _ = _scanstring(inner[n] + '"', 0)
        except ValueError:
            return strings[:n]
        if "\\u" in inner[n] and _has_half(strings[n]):
            return strings[:n]
    return strings


class _Frames:
    """Events that repeat an earlier one around a new string, read without decoding them again.

    A stream repeats one chunk's frame around a few new characters. Once an event has been decoded
    and checked in full, one with the same text before and after its string is the same chunk with
    another string. That the string stands where it seems to is proved by decoding the line once
    with a marker in its place. Only events that change nothing else are kept as frames.

    What is never read may change, too, where it is one JSON value in the same place.
    """

    LONGEST = 8192  # characters: a longer line has no small string in a large frame

    def __init__(self) -> None:
        self.frames: list[_Frame] = []
        self.hits = 0
        self.wait, self.pause = 0, 1  # events until the next one is learned from
        self.stopped = None in (_scanstring, _scan_json)
        self.unread: list[Any] = []  # the values never read, of the last event learned from

    def stop(self) -> None:
        self.forget()
        self.stopped = True

    def forget(self) -> None:
        self.frames = []

    def match(self, text: str, at: int, last: int) -> tuple[Any, list[str], int]:
        """What the events at ``at`` that repeat a frame add to, their strings, their end."""
        for frame in self.frames:
            if text.startswith(frame.head, at):
                strings, end = frame.strings(text, at, last)
                if strings:
                    self.hits += len(strings)
                    return frame.carrier, strings, end
        return None, [], at

    def settle(self, answer: _Answer) -> None:
        """Forget the frames once an event changed what they rest on, whatever form it came in."""
        if answer.finish is not None or answer.has_refusal or answer.halves or answer.turned:
            self.forget()
            answer.turned = False

    def learn(self, line: str, chunk: Any, answer: _Answer) -> None:
        """Keep the frame of a line that was read in full, if it is one."""
        if answer.finish is not None or answer.has_refusal or answer.halves:
            return  # what comes now may be refused: it is read in full
        self.wait -= 1
        if self.wait > 0 or self.stopped or len(line) > self.LONGEST:
            return
        hole = _hole(chunk, answer)
        if hole is None:
            return
        # Where frames do not repeat, learning them pauses for longer and longer.
        self.pause = 1 if self.hits >= 8 else min(self.pause * 2, 256)
        self.wait, self.hits = self.pause, 0
        carrier, path = hole
        spots = [_spot(line, chunk, each) for each in (path, *self.changing(chunk))]
        if None not in spots:
            begin, end = spots[0]
            holes = sorted([(begin + 1, end - 1, True), *((*spot, False) for spot in spots[1:])])
            self.frames = [_Frame(carrier, line, holes), *self.frames[:3]]

    def changing(self, chunk: dict[str, Any]) -> list[list[Any]]:
        """Where else the next events may differ: in padding (Azure), and in what is never read
        and was another value when an event was last learned from."""
        found: list[list[Any]] = [["obfuscation"]] if _is_words(chunk.get("obfuscation")) else []
        last, now = self.unread, [chunk.get("created"), chunk["choices"][0].get("logprobs")]
        self.unread = now
        paths: list[list[Any]] = [["created"], ["choices", 0, "logprobs"]]
        return found + [path for path, a, b in zip(paths, last, now) if a != b and b is not None]


def _hole(chunk: dict[str, Any], answer: _Answer) -> tuple[Any, list[Any]] | None:
    """What the string of a chunk adds to, and its path; None if the chunk does more."""
    choices = chunk.get("choices")
    if chunk.get("usage") or chunk.get("x_groq") or not choices or len(choices) != 1:
        return None
    choice = choices[0]
    if choice.get("index", 0) != 0 or choice.get("usage") or choice.get("message") is not None:
        return None
    if "any-choice-index" in answer.accept or not choice.get("delta"):
        return None
    full = {
        key: v for key, v in choice["delta"].items() if v is not None and v not in ("", [], {})
    }
    keys = [key for key in full if key != "role"]
    if len(keys) != 1:
        return None
    key, path = keys[0], ["choices", 0, "delta", keys[0]]
    if key == "content" or key in _REASONING_KEYS:
        return (key, path) if isinstance(choice["delta"][key], str) else None
    if key != "tool_calls" or len(choice["delta"][key]) != 1:
        return None
    piece = choice["delta"][key][0]
    function = piece.get("function") or {}
    call = answer.by_index.get(piece["index"]) if "index" in piece else None
    plain = ("index", "type", "function")
    more = any(v is not None and (v or n != "id") for n, v in piece.items() if n not in plain)
    if call is None or more or function.get("name") or not _is_words(function.get("arguments")):
        return None
    return call, [*path, 0, "function", "arguments"]


def _spot(line: str, chunk: dict[str, Any], path: list[Any]) -> Any:
    """Where the value at ``path`` begins and ends in the line: proved with a marker in its place.
    None if that cannot be told."""
    first, found = line.find("{"), re.finditer(rf'"{path[-1]}"\s*:\s*', line)
    for start in [match.end() for match in itertools.islice(found, 3)]:  # a hostile line has many
        try:
            value, end = _scan_json(line, start)
            place = marked = _scan_json(f'{line[first:start]}"{_MARKER}"{line[end:]}', 0)[0]
            for step in path[:-1]:
                place = place[step]
            if place[path[-1]] == _MARKER != value:
                place[path[-1]] = value
                return (start, end) if marked == chunk else None
        except (ValueError, StopIteration, RecursionError, LookupError, TypeError):
            continue  # pragma: no cover - none, in a line that was read in full; but never fail
    return None


class Decoder:
    """Bytes of a Chat Completions stream, in pieces of any size, to events. Does no I/O.

        decoder = svir.Decoder()
        for chunk in chunks:
            for event in decoder.feed(chunk): ...
        for event in decoder.finish(): ...

    ``strict=False`` skips unknown input and notes it in ``quirks``; ``accept`` takes names of
    ``ACCEPT``; ``think`` is "split", "keep" the tags as text, or "open" where the prompt's
    template opens the tag. The outcome never depends on how the bytes were cut (P9).
    """

    def __init__(
        self,
        *,
        strict: bool = True,
        accept: Iterable[str] = (),
        think: ThinkMode = "split",
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits = Limits() if limits is None else _check(limits, Limits, "limits")
        self._answer = _Answer(
            _check(strict, bool, "strict"),
            _accept_names(accept),
            _choice(think, _THINK_MODES, "think"),
            self._limits,
        )
        self._clock, self._start = clock, clock()
        self._queue: deque[tuple[float, bytes]] = deque()  # fed, not yet read
        self._size = 0  # of all that was read
        self._head: bytearray | None = bytearray()  # until the first byte that is no blank
        self._mark_due = True  # a byte order mark may come yet
        self._json: bytearray | None = None  # a body that is no stream (S11)
        self._tail = bytearray()  # the line that is not whole yet
        self._text, self._at = "", 0  # the whole lines of the block being read, and the place
        # Characters that are read ahead at once, and no event of more bytes than its limit.
        self._short = min(65536, self._limits.event_bytes // 4)
        self._odd = False  # there were bytes that are not UTF-8
        self._data: list[str] = []  # the data lines of the event being read
        self._data_size = 0
        self._event = ""
        self._last = ""  # the last data line, as it came
        self._frames = _Frames()
        self._lesson: tuple[str, Any] | None = None  # an event read in full, and its chunk
        self._error: Error | None = None

    @property
    def completion(self) -> Completion | None:
        """The answer, once it is whole."""
        return self._answer.completed

    @property
    def partial(self) -> Completion:
        """What has been given out so far: no finish reason, no tool calls."""
        waiting = list(self._answer.out)  # a copy: its reader may be another thread
        return self._answer.completion(waiting=waiting)

    @property
    def quirks(self) -> tuple[str, ...]:
        """The known deviations met so far."""
        return tuple(self._answer.quirks)

    def note(self, quirk: str) -> None:
        """Note a deviation that was met outside the bytes: in the headers, say."""
        self._answer.note(quirk)

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[Event]:
        """Store bytes at once; the iterator reads them, and raises after the events before."""
        if type(data) is not bytes:
            data = bytes(_check(data, (bytes, bytearray, memoryview), "what is fed"))
        if self._error is None and self._answer.completed is None:  # after the end it is dropped
            self._queue.append((self._clock() - self._start, data))
        return self._read()

    def finish(self, clean: bool = True) -> Iterator[Event]:
        """The end of the input: what is still due, else it raises ``Truncated``.

        ``clean=False`` says that the body was cut short of its HTTP framing.
        """
        yield from self._read()
        if self.completion is None:
            self._try(self._end, clean)
            yield from self._read()

    def _read(self) -> Iterator[Event]:
        # The place is the decoder's, so an iterator that is left half read loses nothing.
        out = self._answer.out
        while True:
            while out:
                yield out.popleft()
            if self._lesson is not None:  # now that its event was given out: it takes longer
                line, chunk, self._lesson = *self._lesson, None
                self._frames.learn(line, chunk, self._answer)
            if self._error is not None:
                raise _again(self._error)
            if self._at == len(self._text) and not self._queue:
                return
            self._try(self._read_on)

    def _read_on(self) -> None:
        """Read the next events or the next line, of the next block where need be."""
        if self._at == len(self._text):
            self._take()
        text, at = self._text, self._at
        if at < len(text) and (self._data or self._event or not self._read_whole(text, at)):
            end = text.index("\n", at)
            self._at = end + 1
            self._line(text[at:end])

    def _read_whole(self, text: str, at: int) -> bool:
        """Read an event of one line, as nearly all are, or several that repeat one."""
        last, frames = at + self._short, self._frames
        if frames.frames:
            carrier, strings, self._at = frames.match(text, at, last)
            if strings:
                self._answer.repeated(carrier, strings)
                return True
        end = text.find("\n", at, last)
        if end < 0 or not text.startswith("data: {", at) or not text.startswith("\n", end + 1):
            return False
        self._at = end + 2
        self._whole_event(text[at:end])
        return True

    def _try(self, step: Callable[..., None], *args: Any) -> None:
        if self._error is None and self._answer.completed is None:
            try:
                step(*args)
            except RecursionError:  # pragma: no cover - the caller's own stack is deep
                self._error = ProtocolError(
                    "an event nested too deep for what is left of the stack"
                )
            except Error as error:
                error.quirks, error.partial = self.quirks, self._answer.completion()
                self._error = _again(error)
        if self._error is not None or self._answer.completed is not None:  # nothing follows
            self._queue.clear()
            self._text, self._at = "", 0

    # Bytes to lines

    def _take(self) -> None:
        """Cut the next block into lines."""
        if self._tail:
            self._check_size(len(self._tail))  # when all before the open line has been read
        answer, limit = self._answer, self._limits.wire_bytes
        answer.now, data = self._queue.popleft()
        if answer.pieces > answer.joined + 64:
            answer.join_pieces()
        if self._size > limit:
            raise LimitExceeded(f"more than {limit} bytes (Limits.wire_bytes)")
        self._size += len(data)
        if self._size > limit:  # what came before the limit still counts (P9)
            self._queue.appendleft((answer.now, b""))
            data = data[: limit - self._size]
        data = data if self._head is None else self._begin(self._head, data)
        if self._json is not None:
            self._keep_json(self._json, data)
        else:
            self._split(data)

    def _begin(self, head: bytearray, data: bytes) -> bytes:
        """Hold the start until it shows what the body is: SSE, or JSON (S2, S11)."""
        head += data
        if self._mark_due:
            if len(head) < 3 and _BYTE_ORDER_MARK.startswith(head):
                return b""
            if head.startswith(_BYTE_ORDER_MARK):
                del head[:3]
            self._mark_due, data = False, bytes(head)  # what was held is new
        if not data.strip(_BLANKS) or not head.strip(_BLANKS):  # the new part first: it is short
            return b""
        self._head = None
        if bytes(head.lstrip(_BLANKS)[:1]) in (b"{", b"["):
            self._json = bytearray()
        return bytes(head)

    def _keep_json(self, body: bytearray, data: bytes) -> None:
        body += data
        limit = _JSON_BODY_BYTES if self._answer.strict else self._limits.event_bytes
        if len(body) > limit:
            raise ProtocolError("the server did not stream: it sent a large JSON body")

    def _split(self, block: bytes) -> None:
        if self._tail or not block.endswith(b"\n"):
            whole = block.rfind(b"\n") + 1
            if not whole:
                self._tail += block
                return
            tail, self._tail = self._tail, bytearray(block[whole:])
            block = bytes(tail) + block[:whole]
        # A line break never falls inside a character, so whole lines are whole text. What is not
        # UTF-8 is carried as lone surrogates until it is known whether it matters (S8).
        try:
            self._text, self._at = block.decode("utf-8"), 0
        except UnicodeDecodeError:
            self._text, self._at, self._odd = block.decode("utf-8", "surrogateescape"), 0, True
            self._frames.stop()

    def _check_size(self, size: int) -> None:
        limit = self._limits.event_bytes
        if self._data_size + size > limit:
            raise LimitExceeded(f"an event of more than {limit} bytes (Limits.event_bytes)")

    # Lines to events

    def _line(self, line: str) -> None:
        size = len(line) if line.isascii() else len(line.encode("utf-8", "surrogateescape"))
        self._check_size(size)
        whole, line = line, line[:-1] if line.endswith("\r") else line
        if not line:
            self._dispatch()
        elif line.startswith("data:"):
            self._last = whole
            self._data_line(line[6:] if line[5:6] == " " else line[5:], size)
        elif not line.startswith(":"):
            self._field(line, size)

    def _data_line(self, data: str, size: int) -> None:
        # [DONE] ends the stream at its line: a server may leave the connection open (S9).
        if not self._data and self._event != "ping" and data.strip(_BLANK_CHARS) == "[DONE]":
            self._check_event_type()
            self._answer.done()
            return
        self._data.append(data)
        self._data_size += size

    def _field(self, line: str, size: int) -> None:
        name, _, value = line.partition(":")
        if name == "data":
            self._data_line("", size)
        elif name == "event":
            self._event = value[1:] if value.startswith(" ") else value
        elif name not in ("id", "retry"):
            message = f"an unknown SSE field {_shown(name)}"
            self._answer.deviates("unknown-field", ProtocolError, message)

    def _check_event_type(self, value: Any = None) -> None:
        """``error`` fails the stream; another unknown type only where it holds an error (S4)."""
        if self._event in ("", "message"):
            return
        failure = _server_error(value) if self._event == "error" else _failure(value)
        if failure is not None:
            raise _again(failure)
        message = f"an unknown SSE event type {_shown(self._event)}"
        self._answer.deviates("unknown-event", ProtocolError, message)

    def _dispatch(self) -> None:
        """A blank line: the event is whole."""
        data, event = self._data, self._event
        if data:
            self._read_event(data, event)
            self._frames.settle(self._answer)
        elif event not in ("", "message", "ping"):
            self._odd_event("")
        self._data, self._data_size, self._event = [], 0, ""

    def _whole_event(self, line: str) -> None:
        """An event of one data line, as nearly all are: what its two lines would do."""
        self._last, data = line, line[6:]
        self._data = [data]
        if self._odd:
            self._payload(data)
        else:
            self._object(data)
        self._data = []

    def _read_event(self, data: list[str], event: str) -> None:
        if event not in ("", "message", "ping"):
            self._odd_event("\n".join(data))
        elif event != "ping":
            self._payload("\n".join(data))

    def _odd_event(self, payload: str) -> None:
        payload = self._replaced(payload)
        try:
            value = _parse_json(payload)
        except ValueError:
            value = payload.strip().partition("\n")[0] if self._event == "error" else None
        self._check_event_type(value)
        if isinstance(value, dict) and value.get("choices") is not None:
            self._answer.chunk(value, "\\u" in payload)
        elif payload.strip(_BLANK_CHARS) == "[DONE]":
            self._answer.done()

    def _replaced(self, text: str) -> str:
        """``text`` with U+FFFD for the bytes that are not UTF-8."""
        if not self._odd:
            return text
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")

    def _payload(self, payload: str) -> None:
        if payload[:1] != "{":
            word = payload.strip(_BLANK_CHARS)
            if word in ("", "null"):
                self._answer.note("empty-data")
                return
            if word == "[DONE]":
                self._answer.done()
                return
        text = self._replaced(payload)
        if text != payload:
            self._answer.deviates("invalid-utf8", ProtocolError, "an event that is not UTF-8")
        self._object(text)

    def _object(self, text: str) -> None:
        try:
            value = _parse_json(text)
        except ValueError:
            value = ...  # no JSON is that
        if value is ...:
            self._joined(text)
            return
        self._value(value, text)
        self._frames.settle(self._answer)
        if isinstance(value, dict) and len(self._data) == 1 and not self._event:
            self._lesson = self._last, value

    def _value(self, value: Any, text: str) -> None:
        failure = _failure(value)
        if failure is not None:
            raise _again(failure)
        if isinstance(value, dict):
            self._answer.chunk(value, "\\u" in text)
        else:
            message = "data that is not a JSON object"
            self._answer.deviates("unparseable-data", ProtocolError, message)

    def _joined(self, text: str) -> None:
        """Events that one LF separates, where two would have to (S7)."""
        values = _joined_values(text)
        if values is None:
            message = "data that is not JSON"
            self._answer.deviates("unparseable-data", ProtocolError, message)
            return
        self._answer.note("joined-events")
        for value, line in values:
            if value is None:
                self._answer.done()
                return
            self._value(value, line)

    # The end

    def _end(self, clean: bool) -> None:
        if self._json is not None:
            self._end_json(bytes(self._json), clean)
            return
        self._check_size(len(self._tail))
        if self._size == 0:
            raise Truncated("the server sent nothing")
        tail = bytes(self._tail or self._head or b"").decode("utf-8", "replace")
        done = tail.startswith("data:") and tail[5:].strip(_BLANK_CHARS) == "[DONE]"
        # Of a body cut short of its framing, nobody knows how the line would have gone on (E3).
        if done and clean and not self._data and self._event != "ping":
            self._line(tail)
            return
        half_line = not tail.startswith(":") and tail.strip("\r") != ""
        self._answer.end_of_input(clean and not (self._data or self._event or half_line))

    def _end_json(self, body: bytes, clean: bool) -> None:
        """A body that is no stream: an error, an answer that was not streamed, or neither (H6)."""
        text = body.decode("utf-8", "replace").lstrip()
        try:
            value = _json_decoder.raw_decode(text)[0]
            if not _is_shallow(value):
                raise ValueError("nested too deep")
        except (ValueError, RecursionError):
            raise ProtocolError("the server did not stream, and its JSON is broken") from None
        failure = _failure(value)
        if failure is not None:
            raise _again(failure)
        if not (isinstance(value, dict) and isinstance(value.get("choices"), list)):
            raise ProtocolError("the server sent JSON that is neither a stream nor an answer")
        if not clean:
            raise Truncated("the answer was cut off")
        message = "the server did not stream (strict=False reads it)"
        self._answer.deviates("not-streamed", ProtocolError, message)
        self._answer.whole_body(value)


def _joined_values(text: str) -> list[tuple[Any, str]] | None:
    """The object of each line, None for ``[DONE]``; None when some line is neither."""
    values: list[tuple[Any, str]] = []
    lines = text.split("\n")
    for line in lines:
        if line.strip(_BLANK_CHARS) == "[DONE]":
            values.append((None, line))
            continue
        try:
            value = _parse_json(line)
        except ValueError:
            return None
        if not isinstance(value, dict):
            return None
        values.append((value, line))
    return values if len(lines) > 1 else None


def _accept_names(accept: Any) -> frozenset[str]:
    if type(accept) is frozenset and accept <= ACCEPT:  # as a client passes on
        return accept
    names = frozenset(
        (accept,) if isinstance(accept, str) else _checked(accept, "Sequence[str]", "accept")
    )
    unknown = sorted(names - ACCEPT)
    if unknown:
        raise ConfigError(
            f"accept does not know {unknown[0]!r}; it knows {', '.join(sorted(ACCEPT))}"
        )
    return names


# -- 5. Transport --------------------------------------------------------------------------------

# Bytes at a time: little where events come one by one, as a thread that waits holds a buffer of
# that size, and much where reads are full. A short answer comes whole with its headers.
_READ, _READ_MOST, _READ_FIRST = 2048, 131072, 16384
_PEEKED = 16384  # bytes of a body in which its first byte that is no blank has to be


class _Control:
    """What ends a stream's waits from outside: ``close()`` from any thread, and deadlines.

    ``close()`` may come in a signal handler, between any two steps of the thread that reads: the
    lock lets its own thread in, and nothing here relies on being undisturbed.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.cancelled = False
        self.aborts: list[Callable[[], object]] = []
        self.deadlines: list[tuple[float, str]] = []  # when, and what to say
        self.idles: list[tuple[float, str]] = []  # seconds, and what to say
        self.heard: tuple[Any, str] | None = None  # the decoder of an open answer, and where
        self.running: list[Any] = []  # what the layers were given, from the outermost inwards
        self.direct = False  # whether no layer stands between the decoder and the stream: then
        self.ready: Any = ()  # what was read and not yet given out, a deque
        # Held until cancelled. An Event would deadlock in a signal handler.
        self.asleep = threading.Lock()
        self.asleep.acquire()

    def cancel(self) -> None:
        with self.lock:
            if not self.cancelled:
                self.cancelled = True
                try:
                    self.asleep.release()
                except RuntimeError:  # pragma: no cover - a signal handler was here in between
                    pass
            # The reader takes its callbacks back before it closes its socket, and waits for this:
            # so none of them can meet a descriptor that is another connection's by now.
            self.wake()

    def wake(self) -> None:
        while self.aborts:
            try:
                self.aborts.pop()()
            except Exception:  # it only wakes a reader, who then tells what happened
                pass

    def on_cancel(self, abort: Callable[[], object]) -> None:
        with self.lock:
            self.aborts.append(abort)
            if self.cancelled:
                self.wake()

    def release(self, aborts: list[Callable[[], object]]) -> None:
        with self.lock:
            self.aborts = [abort for abort in self.aborts if abort not in aborts]

    def check(self) -> None:
        if self.cancelled:
            raise Cancelled("the stream was closed")

    def sleep(self, seconds: float) -> None:
        limit, message = self.limit(seconds)
        limit = min(seconds if limit is None else limit, threading.TIMEOUT_MAX)
        if self.asleep.acquire(timeout=max(0.0, limit)):
            self.asleep.release()
        self.check()
        if limit < seconds:
            raise Timeout(message)

    def limit(
        self, seconds: float | None, idles: Sequence[tuple[float, str]] = ()
    ) -> tuple[float | None, str]:
        """How long the next wait may take, and what to say after it, if it is not ``seconds``.
        Raises ``Timeout``."""
        message = ""
        for most, text in idles:
            if seconds is None or most < seconds:
                seconds, message = most, text
        for at, text in self.deadlines:
            left = at - time.monotonic()
            if left <= 0:
                raise Timeout(text)
            if seconds is None or left < seconds:
                seconds, message = left, text
        return seconds, message

    def expired(self) -> str | None:
        now = time.monotonic() + 0.005  # a wait up to a deadline may end a moment before it
        return next((text for at, text in self.deadlines if at <= now), None)


class HttpRequest:
    """What a ``Backend`` is to send. The values of its headers are withheld from its repr."""

    def __init__(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: Body | None = None,
        *,
        connect_timeout: float | None = 10.0,
        idle_timeout: float | None = 300.0,
        control: Any = None,
    ) -> None:
        self.method = method
        self.url = url
        self.headers: dict[str, str] = _Headers(headers)
        """Lower-case names; Content-Length is the backend's to write, from ``body.length``."""
        self.body = body
        self._control: _Control = _Control() if control is None else control
        self._connect_timeout, self._idle_timeout = connect_timeout, idle_timeout
        self._aborts: list[Callable[[], object]] = []

    @property
    def connect_timeout(self) -> float | None:
        """Seconds that connecting may take from now; None is no limit. Raises ``Timeout``."""
        return self._control.limit(self._connect_timeout)[0]

    @property
    def timeout(self) -> float | None:
        """Seconds that the next wait may take from now; None is no limit. Raises ``Timeout``."""
        return self._wait()[0]

    def _wait(self) -> tuple[float | None, str]:
        return self._control.limit(self._idle_timeout, self._control.idles)

    def _late(self, message: str) -> str:
        """What to say after a wait that was too long."""
        silent = f"nothing came for {self._idle_timeout} s: idle_timeout= sets the limit"
        return self._control.expired() or message or silent

    def on_cancel(self, abort: Callable[[], object]) -> None:
        """Call ``abort`` from another thread when the stream is closed: it must wake a read."""
        self._aborts.append(abort)
        self._control.on_cancel(abort)

    def release(self) -> None:
        """Forget what ``on_cancel`` was given: before its socket is closed."""
        self._control.release(self._aborts)

    def check(self) -> None:
        """Raise ``Cancelled`` when the stream was closed."""
        self._control.check()

    def __repr__(self) -> str:
        return f"HttpRequest({self.method!r}, {_without_query(self.url)!r}, {self.headers!r})"


_HEADER_NAME = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+\Z"


def _is_header_value(value: str) -> bool:
    return value.isascii() and value.replace("\t", " ").isprintable()


class _Headers(_TextsByName):
    """Headers whose values show in no repr: any may be a credential (D38)."""

    def __repr__(self) -> str:
        open_names = ("accept", "content-type", "user-agent")
        return repr({name: self[name] if name in open_names else "***" for name in self})


def _without_query(url: str) -> str:
    return url.partition("?")[0].partition("#")[0]


class HttpResponse(Protocol):
    """An answer as it arrives. ``headers`` has lower-case names."""

    @property
    def status(self) -> int:
        """The HTTP status, not a 1xx."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """By lower-case name."""
        ...

    def read(self, size: int, timeout: float | None) -> bytes:
        """Bytes as soon as there are some, about ``size``; ``b""`` at the end of a whole body.

        Raises ``Truncated`` for a body cut short of its framing, ``Timeout``, ``Disconnected``.
        """
        ...

    def close(self) -> None:
        """Give the connection up; called once, by the thread that reads."""
        ...


class Backend(Protocol):
    """The little of HTTP that svir uses. Redirects are never followed, nothing is sent twice."""

    def send(self, request: HttpRequest) -> HttpResponse:
        """Send the request, and return once the headers of the answer are here."""
        ...


def _import_ssl() -> Any:
    """ssl, only when it is needed: plain http works without it."""
    try:
        import ssl
    except ImportError:
        raise ConfigError("https needs the ssl module, which this Python does not have") from None
    return ssl


class HttpBackend:
    """HTTP/1.1 on sockets, with a small pool of idle connections.

    ``proxy``: "http://host:port", or with "user:password@"; https goes through CONNECT.
    ``cafile``: a file of CA certificates to trust as well as the system's (and certifi's).
    ``ssl_context``: used as it is. ``unix_socket``: a path to connect to, whatever the URL's host.
    """

    def __init__(
        self,
        *,
        proxy: str | Secret | None = None,
        cafile: FilePath | None = None,
        ssl_context: ssl.SSLContext | None = None,
        unix_socket: FilePath | None = None,
        keep_alive: bool = True,
    ) -> None:
        proxy = _hidden(proxy)
        self._proxy = None if proxy is None else _Proxy(proxy)
        self._cafile: str | None = _checked(cafile, "FilePath | None", "cafile")
        if self._cafile is not None and not os.path.isfile(self._cafile):
            raise ConfigError(f"cafile {self._cafile} is not a file")
        if self._cafile is not None and ssl_context is not None:
            raise ConfigError("pass cafile or ssl_context, not both")
        self._ssl_context = ssl_context
        self._made_context: Any = None
        self._unix_socket: str | None = _checked(unix_socket, "FilePath | None", "unix_socket")
        if self._unix_socket is not None and proxy is not None:
            raise ConfigError("pass proxy or unix_socket, not both")
        self._keep_alive = _check(keep_alive, bool, "keep_alive")
        self._pool = _Pool()

    def __reduce__(self) -> tuple[Any, ...]:
        options = {
            "proxy": None if self._proxy is None else self._proxy.to_pickle(),
            "cafile": self._cafile,
            "ssl_context": self._ssl_context,
            "unix_socket": self._unix_socket,
            "keep_alive": self._keep_alive,
        }
        return _call_with, (type(self), options)

    def __repr__(self) -> str:
        return "HttpBackend()"

    def __del__(self) -> None:
        # Not the pool's close(): at the end of the interpreter this module's names are gone.
        for connection in getattr(getattr(self, "_pool", None), "idle", ()):
            connection.sock.close()

    def close(self) -> None:
        """Close the idle connections."""
        self._pool.close()

    def send(self, request: HttpRequest) -> HttpResponse:
        """Send the request, and return once the headers of the answer are here."""
        where = _address(request.url)
        try:
            connection = self._pool.take(where.key) or self._connect(where, request)
        except Timeout as error:
            error.unsent = True
            raise
        try:
            request.on_cancel(connection.abort)
            return self._exchange(connection, where, request)
        except BaseException:
            request.release()
            connection.close()
            raise

    def _connect(self, where: _Address, request: HttpRequest) -> _Connection:
        context = self._context(_import_ssl()) if where.tls else None
        end = _after(request.connect_timeout)
        if self._unix_socket is not None:
            sock = _connect_unix(self._unix_socket, end)
        elif self._proxy is not None:
            sock = _race(self._proxy.host, self._proxy.port, end, request)
        else:
            sock = _race(where.host, where.port, end, request)
        try:
            if sock.family in (socket.AF_INET, socket.AF_INET6):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            request.on_cancel(lambda: _shutdown(sock))
            if where.tls and self._proxy is not None:
                self._proxy.tunnel(sock, where, end)
            if context is not None:
                # Wrapping moves the descriptor, and must not meet a socket that was shut down.
                request.release()
                request.check()
                sock = _wrap(context, sock, where)
                request.on_cancel(lambda: _shutdown(sock))
                request.check()
                self._shake_hands(sock, where, end)
            request.check()
        except BaseException:
            request.release()
            sock.close()
            raise
        request.release()  # the connection has an abort of its own
        return _Connection(sock, where, self._pool)

    def _exchange(
        self, connection: _Connection, where: _Address, request: HttpRequest
    ) -> HttpResponse:
        head = self._head(where, request)
        failed = connection.send(head, request)
        try:  # a server may answer and close while the body is still being sent (H12)
            return connection.answer(request, failed is None, self._keep_alive)
        except Disconnected:
            if failed is None:
                raise
        raise Disconnected(f"the connection broke while the request was sent: {failed}")

    def _head(self, where: _Address, request: HttpRequest) -> _Hidden:
        target = where.target
        headers = _Headers({"host": where.netloc, **request.headers})
        if request.body is not None:
            headers["content-length"] = str(request.body.length)
        if not self._keep_alive:
            headers["connection"] = "close"
        if self._proxy is not None and not where.tls:
            target = f"http://{where.netloc}{target}"
            headers.update(self._proxy.headers())
        for name in headers:  # no value in a local: see _Hidden
            if not re.match(_HEADER_NAME, name):
                raise ConfigError("the name of a header cannot be sent as it is")
            if not _is_header_value(headers[name]):
                raise ConfigError(f"the value of the header {name} cannot be sent as it is")
        start = f"{request.method} {target} HTTP/1.1"
        if not re.match(r"[A-Z]+ [!-~]+ HTTP/1.1\Z", start):
            raise ConfigError("the method or the URL of a request cannot be sent as it is")
        return _head_bytes(start, headers)

    def _shake_hands(self, sock: Any, where: _Address, end: float | None) -> None:
        ssl, retryable = _import_ssl(), True
        try:
            sock.settimeout(_left(end))
            sock.do_handshake()
            return
        except ssl.SSLCertVerificationError as error:
            reason = (getattr(error, "verify_message", "") or str(error)).rstrip(".")
            failed = (
                f"the certificate of {where.host} was not accepted: {reason}."
                f" Trusted: {self._trusted(ssl)}. Pass cafile= or ssl_context= for another CA"
            )
            retryable = False
        except socket.timeout:
            failed = f"no TLS handshake with {where.host} within connect_timeout=: is it https?"
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or str(error)
            failed = (
                f"the TLS handshake with {where.host} failed: {reason}. Is it an https server?"
            )
        raise ConnectError(failed, unsent=True, retryable=retryable)

    def _context(self, ssl: Any) -> Any:
        if self._ssl_context is not None:
            return self._ssl_context
        if self._made_context is None:
            context = ssl.create_default_context()
            for file in (self._cafile, _certifi()):
                try:
                    if file is not None:
                        context.load_verify_locations(file)
                except (OSError, ValueError) as error:
                    raise ConfigError(
                        f"cannot load the CA certificates of {file}: {error}"
                    ) from None
            self._made_context = context
        return self._made_context

    def _trusted(self, ssl: Any) -> str:
        if self._ssl_context is not None:
            return "what the caller's ssl_context holds"
        paths = ssl.get_default_verify_paths()
        tried = [paths.cafile or paths.openssl_cafile, paths.capath or paths.openssl_capath]
        return ", ".join(str(path) for path in (*tried, _certifi(), self._cafile) if path)


def _wrap(context: Any, sock: socket.socket, where: _Address) -> Any:
    try:
        # The handshake comes later: close() can only wake a socket that is known by then.
        return context.wrap_socket(sock, server_hostname=where.host, do_handshake_on_connect=False)
    except (OSError, ValueError) as error:
        failed = f"TLS with {where.host} is not possible: {error}"
    raise ConnectError(failed, unsent=True)


def _certifi() -> str | None:
    try:
        import certifi
    except ImportError:
        return None
    return certifi.where()


def _head_bytes(start: str, headers: Mapping[str, str]) -> _Hidden:
    lines = [start, *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return _Hidden("\r\n".join(lines).encode("ascii"))


class _Hidden:
    """Bytes that hold a key: no traceback shows them."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def __repr__(self) -> str:
        return "<withheld>"


class _Address:
    """The parts of a URL, checked by the client."""

    def __init__(self, url: str) -> None:
        scheme, _, rest = url.partition("://")
        self.netloc, slash, path = rest.partition("/")
        self.tls = scheme == "https"
        self.target = slash + path or "/"
        match = re.match(r"\[?([!-~]+?)\]?(?::([0-9]{1,5}))?\Z", self.netloc)
        if match is None or scheme not in ("http", "https"):
            raise ConfigError("the URL of a request cannot be used as it is")
        self.host, port = match.groups()
        self.port = int(port) if port else (443 if self.tls else 80)
        self.key = (self.tls, self.host, self.port)


_address = functools.lru_cache(maxsize=16)(_Address)

_PROXY_HINT = 'it asks for a password, as proxy="http://user:password@host:port"'


class _Proxy:
    """An HTTP proxy, given by name: the environment is never asked."""

    def __init__(self, url: Any) -> None:
        self.url = _secret(_hidden(url), "proxy")
        shape = r"http://([!-?A-~]*@)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?/?\Z"
        fits = re.match(shape, self.url.reveal()) is not None
        # No local holds more than the host: a traceback may show what a frame holds.
        place = _Address(re.sub(r"//[^@]*@", "//", self.url.reveal())) if fits else None
        if place is None or place.port > 65535:
            raise ConfigError(
                'proxy must be like "http://host:3128" or "http://user:password@host:3128"'
            )
        self.host, self.port = place.host, place.port
        self.credentials: Secret | None = None
        if "@" in self.url.reveal():
            self.credentials = Secret(re.sub(r"http://|@.*", "", self.url.reveal()))

    def to_pickle(self) -> str | Secret:
        return self.url if self.credentials is not None else self.url.reveal()

    def headers(self) -> dict[str, str]:
        if self.credentials is None:
            return {}
        from urllib.parse import unquote_to_bytes

        word = binascii.b2a_base64(unquote_to_bytes(self.credentials.reveal()), newline=False)
        return {"proxy-authorization": "Basic " + word.decode("ascii")}

    def connect_head(self, where: _Address) -> _Hidden:
        host = f"[{where.host}]" if ":" in where.host else where.host
        place = f"{host}:{where.port}"
        return _head_bytes(f"CONNECT {place} HTTP/1.1", {"host": place, **self.headers()})

    def tunnel(self, sock: socket.socket, where: _Address, end: float | None) -> None:
        head = self.connect_head(where)

        def receive() -> bytes:
            # A wait never fails where something is always there.
            if end is not None and time.monotonic() >= end:
                raise socket.timeout("timed out")
            return _receive(sock, _READ, _left(end))

        try:
            sock.settimeout(_left(end))
            sock.sendall(head.data)
            status = _read_head(receive)[0].status
            failed = f"the proxy answered {status} to CONNECT {where.host}:{where.port}"
            if status in (401, 407):
                failed += f": {_PROXY_HINT}"
        except (OSError, Error) as error:
            status, failed = (
                0,
                f"the proxy {self.host}:{self.port} did not answer CONNECT: {error}",
            )
        if not 200 <= status < 300:
            raise ConnectError(failed, unsent=True, retryable=not 400 <= status < 500)


def _after(seconds: float | None) -> float | None:
    return None if seconds is None else time.monotonic() + seconds


def _left(end: float | None) -> float | None:
    return None if end is None else max(0.001, end - time.monotonic())


def _connect_unix(path: str, end: float | None) -> socket.socket:
    if not hasattr(socket, "AF_UNIX"):
        raise ConfigError("this system has no UNIX sockets")
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(_left(end))
        sock.connect(path)
        return sock
    except OSError as error:
        failed = f"cannot connect to the UNIX socket {path}: {error.strerror or error}"
    except BaseException:
        sock.close()
        raise
    sock.close()
    raise ConnectError(failed, unsent=True)


def _addresses(host: str, port: int) -> list[Any]:
    try:
        found = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConnectError(f"cannot find the host {host}: {reason}", unsent=True) from None
    if (
        host == "localhost"
    ):  # a hosts file may list one loopback only; a server may listen on either
        families = [info[0] for info in found]
        if socket.AF_INET not in families:
            found.append((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port)))
        if socket.AF_INET6 not in families and socket.has_ipv6:
            found.append((socket.AF_INET6, socket.SOCK_STREAM, 0, "", ("::1", port, 0, 0)))
        found.sort(key=lambda info: info[0] != socket.AF_INET)
    return found


def _race(host: str, port: int, end: float | None, request: HttpRequest) -> socket.socket:
    """Connect to the address that answers first: the next one is tried 0.25 s after the last, or
    when that failed, so a silent IPv6 route is not waited out (Q11). The last failure is told."""
    todo, failed, next_at = _addresses(host, port), "", 0.0
    request.check()  # a lookup cannot be interrupted, and may have taken long
    if end is not None and time.monotonic() >= end:
        todo, failed = [], "no answer within connect_timeout="
    open_socks: list[socket.socket] = []
    try:
        while True:
            now = time.monotonic()
            if todo and (now >= next_at or not open_socks):
                sock, failed = _start_connect(todo.pop(0), failed)
                open_socks += [sock] if sock is not None else []
                next_at = now + 0.25
                continue
            if not open_socks:
                break
            wait = min(0.05, next_at - now) if todo else 0.05  # short, so that close() is noticed
            for sock in _writable(open_socks, wait):
                error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                open_socks.remove(sock)
                if not error:
                    return sock
                sock.close()
                failed, next_at = os.strerror(error), 0.0
            request.check()
            if end is not None and time.monotonic() >= end:
                failed = "no answer within connect_timeout="
                break
    finally:
        for sock in open_socks:
            sock.close()
    hint = ". Is the server running?" if "refused" in failed.lower() else ""
    raise ConnectError(f"cannot connect to {host}:{port}: {failed}{hint}", unsent=True)


def _start_connect(info: Any, failed: str) -> tuple[socket.socket | None, str]:
    try:
        sock = socket.socket(*info[:3])
    except OSError as error:  # a family this system was built without
        return None, str(error.strerror)
    sock.setblocking(False)
    try:
        sock.connect(info[4])
    except (BlockingIOError, InterruptedError):
        pass
    except OSError as error:
        sock.close()
        return None, str(error.strerror)
    return sock, failed


_READABLE, _WRITABLE = 1, 4  # as POLLIN and POLLOUT


def _poll(
    socks: Sequence[socket.socket], read: bool, write: bool, seconds: float | None
) -> dict[int, int]:
    """Events by descriptor. ``select`` alone cannot take descriptors above 1,023 on POSIX."""
    if hasattr(select, "poll"):
        poll = select.poll()
        for sock in socks:
            poll.register(sock, (select.POLLIN if read else 0) | (select.POLLOUT if write else 0))
        return dict(poll.poll(None if seconds is None else max(0, int(seconds * 1000 + 0.999))))
    ready = select.select(socks if read else [], socks if write else [], socks, seconds)
    found = {sock.fileno(): _READABLE for sock in ready[0]}
    for sock in (*ready[1], *ready[2]):
        found[sock.fileno()] = found.get(sock.fileno(), 0) | _WRITABLE
    return found


def _writable(socks: Sequence[socket.socket], seconds: float) -> list[socket.socket]:
    found = _poll(socks, False, True, seconds)
    return [sock for sock in socks if sock.fileno() in found]


def _shutdown(sock: socket.socket) -> None:
    """Wake whoever reads ``sock``. Only shutdown does: close() waits for the reader or wakes
    nobody. SSLSocket's own would first forget that it speaks TLS."""
    method = socket.socket.shutdown if isinstance(sock, socket.socket) else type(sock).shutdown
    method(sock, socket.SHUT_RDWR)


def _is_ragged_end(error: OSError) -> bool:
    """TLS that ends without close_notify: the body's framing tells whether it was whole (H13)."""
    return "UNEXPECTED_EOF" in str(getattr(error, "reason", "")).upper()


def _receive(sock: Any, size: int, timeout: float | None) -> bytes:
    if sock.gettimeout() != timeout:  # setting it is a system call
        sock.settimeout(timeout)
    try:
        data: bytes = sock.recv(size)
    except OSError as error:
        if not _is_ragged_end(error):
            raise
        data = b""
    return data


def _let_kernel_wait(sock: Any, seconds: float | None) -> bool:
    """Have the kernel limit the waits on a socket, where it can. That is one system call for each,
    not two: of hundreds of streams in threads, it saves a fifth of the processor's time.

    Not in the main thread, where a signal's handler runs, and the wait begins anew after it; nor
    for TLS, or a socket of gevent's, which never waits in the kernel.
    """
    if seconds is None or type(sock).__module__ != "socket" or os.name != "posix":
        return False
    if threading.get_ident() == threading.main_thread().ident:
        return False
    if not _set_kernel_limit(sock, max(1, int(min(seconds, 1e9) * 1e6))):
        return False  # pragma: no cover - see there
    sock.settimeout(None)
    return True


def _set_kernel_limit(sock: socket.socket, microseconds: int) -> bool:
    """Have a blocking read fail after so long; 0 is no limit. Whether that is possible."""
    import struct

    limit = struct.pack("ll", *divmod(microseconds, 1000000))
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        return True
    except OSError:  # it is closed, or a struct timeval has another layout here
        return False


class _Head:
    """The status line and the headers of an answer. Raises ``ProtocolError`` (H10)."""

    LONGEST, MOST = 65536, 100  # bytes, and lines

    def __init__(self, data: bytes) -> None:
        first, *lines = data.decode("latin-1").replace("\r\n", "\n").split("\n")
        found = re.match(r"HTTP/1\.(\d) +([1-9]\d\d)(?: .*)?\Z", first)
        if found is None:
            raise ProtocolError(f"the answer is not HTTP: {_shown(first)}")
        if found.group(2) == "101":
            raise ProtocolError("the answer switches protocols")
        self.version, self.status = int(found.group(1)), int(found.group(2))
        self.headers: dict[str, str] = {}
        name = ""
        for line in lines:
            if line[:1] in (" ", "\t") and name:  # an old way to go on with the line before
                self.headers[name] = f"{self.headers[name]} {line.strip()}".strip()
            else:
                name = self.add(line)

    def add(self, line: str) -> str:
        name, colon, value = line.partition(":")
        name, value = name.strip().lower(), value.strip()
        if not colon or not name:
            raise ProtocolError(
                f"the answer is not HTTP: a header line without a colon, {_shown(line)}"
            )
        before = self.headers.get(name)
        self.headers[name] = value if before is None else f"{before}, {value}"
        return name

    @property
    def keeps_alive(self) -> bool:
        options = self.headers.get("connection", "").lower()
        if self.version == 0:
            return "keep-alive" in options or "keep-alive" in self.headers
        return "close" not in options


_HEAD_END = rb"\n\r?\n"


def _read_head(
    receive: Callable[[], bytes], data: bytes = b"", hint: str = ""
) -> tuple[_Head, bytes]:
    """The head of the answer, after any 1xx, and what came after it."""
    seen = 0
    while True:
        end = re.compile(_HEAD_END).search(data, max(0, seen - 2))
        size = len(data) if end is None else end.start()
        if size > _Head.LONGEST or data.count(b"\n", 0, size) > _Head.MOST + (end is None):
            raise ProtocolError("the answer is not HTTP: too many headers, or too long ones")
        if end is not None:
            head, data, seen = _Head(data[:size].rstrip(b"\r")), data[end.end() :], 0
            if head.status >= 200:
                return head, data
            continue
        if data.startswith(b"\x15"):  # an alert
            raise ProtocolError("the server speaks TLS: is it an https server?")
        if not data.startswith(b"HTTP/"[: len(data)]):
            raise ProtocolError("the answer is not HTTP: is the port right?")
        more, seen = receive(), len(data)
        if not more:
            when = "the end of an answer's headers" if data else f"it answered{hint}"
            raise Disconnected(f"the server closed the connection before {when}")
        data += more


def _informs(start: bytes) -> bool:
    """Whether it may begin a 1xx, which is no answer yet."""
    return any(word.startswith(start[:10]) for word in (b"HTTP/1.1 1", b"HTTP/1.0 1"))


class _Connection:
    """A connection to a server, for one exchange after another."""

    def __init__(self, sock: socket.socket, where: _Address, pool: _Pool) -> None:
        self.sock, self.where, self.pool = sock, where, pool
        self.key = where.key
        self.pid = os.getpid()
        self.aborted = False
        self.ahead = b""  # of the answer, read while the request was sent
        self.unfinished: _Response | None = None  # the end of its body may still be to come
        self.idle_since = self.usable_until = 0.0

    @property
    def is_own(self) -> bool:
        """Not one that a fork copied: that one is the parent's, to read and to shut down."""
        return self.pid == os.getpid()

    def abort(self) -> None:
        if self.is_own:
            self.aborted = True
            _shutdown(self.sock)

    def close(self) -> None:
        self.sock.close()

    def send(self, head: _Hidden, request: HttpRequest) -> str | None:
        """Send it all; or why that ended early: a failure, or an answer that is already there."""
        blocks = iter(request.body) if request.body is not None else iter(())
        try:
            first = memoryview(head.data + next(blocks, b""))
            early = self.send_block(first, request, _WRITABLE)  # there can be no answer yet
            while not early:
                block = next(blocks, None)
                if block is None:
                    return None
                early = self.send_block(memoryview(block), request)
            return "the server answered before it had the request"
        except Error:  # a Timeout is an OSError, too
            raise
        except socket.timeout:
            pass
        except OSError as error:
            return error.strerror or type(error).__name__
        raise Timeout("the server took nothing of the request in time")

    def send_block(self, view: memoryview, request: HttpRequest, ready: int = 0) -> bool:
        """Whether the server answers already: then it wants no more (H12)."""
        if not isinstance(self.sock, socket.socket) or self.where.tls:
            return self.send_tls(view, request)
        self.sock.settimeout(0)
        end = _after(request.timeout)
        while view:
            if not ready:
                ready = _poll([self.sock], True, True, _left(end)).get(self.sock.fileno(), 0)
            if ready & _READABLE and self.is_answered():
                return True
            if ready & ~_READABLE:  # it takes more, or has failed: sending tells
                try:
                    view = view[self.sock.send(view) :]
                    end = _after(request.timeout) if view else end
                except BlockingIOError:  # pragma: no cover - the kernel took its offer back
                    pass
            elif end is not None and time.monotonic() >= end:
                raise socket.timeout("timed out")
            else:  # a part of a 1xx answer, mostly
                time.sleep(0.001)
            ready = 0
        return False

    def send_tls(self, view: memoryview, request: HttpRequest) -> bool:
        """As ``send_block``. TLS may be readable for reasons of its own: a look costs a read."""
        end = _after(request.timeout)
        while view:
            self.sock.settimeout(min(1.0, _left(end) or 1.0))
            try:
                view = view[self.sock.send(view[:65536]) :]
                end = _after(request.timeout)
            except socket.timeout:
                if self.has_answer():
                    return True
                if end is not None and time.monotonic() >= end:
                    raise socket.timeout("timed out") from None
        return False

    def has_answer(self) -> bool:
        """As ``is_answered``, with what is there read."""
        try:
            data = _receive(self.sock, _READ, 0)
        except OSError:  # nothing
            return False
        self.ahead += data
        while data and _informs(self.ahead):
            size = self.ahead.find(b"\r\n\r\n") + 4
            if size == 3:
                return False
            self.ahead = self.ahead[size:]
        return True

    def is_answered(self) -> bool:
        """Whether an answer can be read, or the end; a whole 1xx is taken out of the way."""
        start = self.sock.recv(4096, socket.MSG_PEEK)
        if not start or not _informs(start):
            return True
        size = start.find(b"\r\n\r\n") + 4
        if size > 3:
            self.sock.recv(size)
        return False

    def answer(self, request: HttpRequest, sent: bool, keep_alive: bool) -> HttpResponse:
        hint = "" if self.where.tls else ": is it an https server?"
        try:
            ahead, self.ahead = self.ahead, b""
            head, rest = _read_head(
                lambda: _receive(self.sock, _READ_FIRST, request.timeout), ahead, hint
            )
        except Error:
            raise
        except socket.timeout:
            raise Timeout("no answer came in time") from None
        except OSError as error:
            failed = (error.strerror or type(error).__name__) + hint
        else:
            return _Response(self, head, rest, sent and keep_alive)
        raise Disconnected(f"the connection broke before the answer: {failed}")


class _Pool:
    """Idle connections, newest first. Never shared between processes: a fork starts its own."""

    SIZE = 16
    MOMENT = 0.03  # seconds that the first connection of a server is watched before its reuse
    SOON = 1.0  # seconds after an answer: who closes by then promised Keep-Alive in vain

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.pid = os.getpid()
        # A stream may be closed by a signal handler or the garbage collector, inside take or put.
        self.lock = threading.RLock()
        self.idle: list[_Connection] = []
        self.proven: set[Any] = set()  # servers that were seen to keep a connection open
        self.closers: set[Any] = set()  # and those that were seen to close one soon

    def check_fork(self) -> None:
        if self.pid != os.getpid():
            inherited = self.idle
            self.reset()  # the lock too: a thread that held it does not exist here
            for connection in inherited:
                connection.close()  # the copy of its descriptor: the parent's stays open

    def take(self, key: Any) -> _Connection | None:
        self.check_fork()
        while True:
            with self.lock:  # pragma: no branch - it is left by return, or goes on below
                found = next((c for c in reversed(self.idle) if c.key == key), None)
                if found is None:
                    return None
                try:
                    self.idle.remove(found)
                except ValueError:  # pragma: no cover - taken meanwhile, by a signal handler
                    continue
            is_open = self.is_open(found)
            if is_open:
                self.proven.add(key)
                return found
            if is_open is False and time.monotonic() < found.idle_since + self.SOON:
                self.closers.add(key)
            found.close()

    def is_open(self, connection: _Connection) -> bool | None:
        """Nothing is due on an idle connection: what can be read is its end. None where the end
        of the last answer is still to come.

        llama-server says Keep-Alive and closes after each stream, a moment later. A request that
        meets that moment is lost. So the first time, a server is given the moment to show it, and
        of one that was seen to close soon no connection is kept.
        """
        now = time.monotonic()
        if now >= connection.usable_until:
            return None
        wait = 0.0 if connection.key in self.proven else self.MOMENT
        unfinished, connection.unfinished = connection.unfinished, None
        if unfinished is None:
            wait = max(0.0, wait - (now - connection.idle_since))
        else:
            _poll([connection.sock], True, False, wait)
            ends = unfinished.ends_now(connection)
            if not ends:
                return ends
        return not _poll([connection.sock], True, False, wait)

    def put(self, connection: _Connection, seconds: float) -> None:
        self.check_fork()
        if connection.key in self.closers:
            connection.close()
            return
        connection.idle_since = time.monotonic()
        connection.usable_until = connection.idle_since + seconds
        with self.lock:
            self.idle.append(connection)
            dropped = self.idle.pop(0) if len(self.idle) > self.SIZE else None
        if dropped is not None:
            dropped.close()

    def close(self) -> None:
        self.check_fork()
        with self.lock:
            dropped, self.idle = self.idle, []
        for connection in dropped:
            connection.close()


class _Response:
    """The body of an answer by its framing: chunked, a length, or until the connection closes."""

    def __init__(self, connection: _Connection, head: _Head, ahead: bytes, reuse: bool) -> None:
        self.connection: _Connection | None = connection
        self.status, self.headers = head.status, head.headers
        self.ahead = ahead  # what came with the headers
        self.waits: tuple[float | None, int] = -1.0, 0  # the last wait's limit and thread
        self.in_kernel: bool | None = None  # whether the kernel keeps it; None: not tried yet
        self.answered = False  # nothing but the end of the body is still to come
        self.ended = self.surplus = False
        self.chunks = _Chunks() if self.is_chunked() else None
        self.left = None if self.chunks is not None else self.content_length()
        # Many servers close after an error, and say so nowhere.
        self.reuse = reuse and head.keeps_alive and head.status != 204 and 200 <= head.status < 300
        self.ended = self.left == 0

    def is_chunked(self) -> bool:
        coding = self.headers.get("transfer-encoding", "identity").lower()
        if coding not in ("chunked", "identity"):
            raise ProtocolError(f"a transfer encoding svir does not read: {_shown(coding)}")
        return coding == "chunked"

    def content_length(self) -> int | None:
        if self.status in (204, 304):
            return 0
        values = {value.strip() for value in self.headers.get("content-length", "").split(",")}
        if values == {""}:
            return None
        length = values.pop()
        if values or not re.match(r"[0-9]{1,18}\Z", length):
            raise ProtocolError("the answer has no single Content-Length")
        return int(length)

    def read(self, size: int, timeout: float | None) -> bytes:
        end = None if timeout is None else time.monotonic() + timeout
        while not self.ended:
            raw, self.ahead = self.ahead, b""
            if not raw:
                raw = self.receive(size, timeout)
            if not raw:
                self.ended, self.reuse = True, False
                if self.chunks is not None or self.left is not None:
                    raise Truncated("the connection ended inside the body")
                break
            data = self.take(raw)
            if data:
                return data
            timeout = _left(end)  # it was framing only
        return b""

    def receive(self, size: int, timeout: float | None) -> bytes:
        connection = self.connection
        if connection is None:
            raise Disconnected("the response was closed")
        if self.chunks is not None and self.chunks.failed is not None:
            raise _again(self.chunks.failed)
        waits = timeout, threading.get_ident()
        if waits != self.waits:
            self.take_wait_back(connection.sock)
            self.waits = waits
        elif self.in_kernel is None:  # a limit that was asked for before will be again
            self.in_kernel = _let_kernel_wait(connection.sock, timeout)
        try:
            if self.in_kernel:
                return connection.sock.recv(size)
            return _receive(connection.sock, size, timeout)
        except (socket.timeout, BlockingIOError):
            raise Timeout("nothing came in time") from None
        except OSError as error:
            failed = error.strerror or type(error).__name__
        raise Disconnected(f"the connection broke inside the answer: {failed}")

    def take_wait_back(self, sock: Any) -> None:
        """Else a wait with no limit, of a later answer, say, would have this one."""
        if self.in_kernel:
            _set_kernel_limit(sock, 0)
        self.in_kernel = None

    def take(self, raw: bytes) -> bytes:
        """The body's bytes in what was received."""
        if self.chunks is not None:
            data = self.chunks.feed(raw)
            self.ended, self.surplus = self.chunks.ended, self.chunks.surplus
            return data
        if self.left is None:
            return raw
        data = raw[: self.left]
        self.surplus = len(raw) > self.left
        self.left -= len(data)
        self.ended = self.left == 0
        return data

    def close(self) -> None:
        connection, seconds = self.connection, self.idle_seconds()
        if connection is None:
            return
        self.connection = None
        usable = self.reuse and connection.is_own and not connection.aborted and not self.ahead
        self.ahead = b""
        if self.chunks is None:
            usable = usable and self.left is not None
        else:
            usable = usable and self.chunks.failed is None
        ends = self.ends_now(connection) if usable else False
        # A proxy sends the body's end a moment after [DONE]: it is looked for at the next use.
        if seconds > 0 and (ends or (ends is None and self.answered)):
            self.take_wait_back(connection.sock)
            connection.unfinished = None if ends else self
            connection.pool.put(connection, seconds)
        else:
            connection.close()

    def ends_now(self, connection: _Connection) -> bool | None:
        """Whether the body ends here (E4): None if that is to come. Nothing is waited for."""
        try:
            for _ in range(4):  # blanks may come without end
                if self.ended:
                    return not self.surplus
                raw = _receive(connection.sock, _READ, 0)
                if not raw or self.take(raw).strip(_BLANKS):
                    return False
            return False
        except OSError as error:
            is_early = type(error).__name__ in ("BlockingIOError", "SSLWantReadError")
            return None if is_early else False
        except Error:
            return False

    def idle_seconds(self) -> float:
        promise = self.headers.get("keep-alive", "")
        match = re.search(r"timeout\s*=\s*(\d{1,6})", promise, re.I) if promise else None
        return float(match.group(1)) - 1 if match else 4.0


# The sizes of chunks by their lines, with the line break of the chunk before: b"\r\n10c\r\n".
# A stream's chunks have few sizes, so most are looked up, with what has to stand before them.
_sizes: dict[bytes, int] = {}


class _Chunks:
    """Chunked framing, from pieces cut anywhere. ``http.client`` hides a cut (E3)."""

    LINE = 8192  # bytes of a size line with its extensions, and of all trailers

    def __init__(self) -> None:
        self.state = "size"  # then "data", and at last "trailer"
        self.left = 0  # bytes of the chunk that are still to come
        # What is not whole yet: a size line stands behind the line break of the chunk before it.
        self.line = b"\r\n"
        self.width = 7  # of the last size line, with both its line breaks; at first, what is usual
        self.trailers = 0
        self.ended = self.surplus = False
        self.failed: Error | None = None

    def feed(self, raw: bytes) -> bytes:
        """The data in what was received; what is wrong after it is raised by the next call."""
        if self.line == b"\r\n":  # between two chunks
            # One whole, as a server sends an event: what the rest would do with it.
            size = _sizes.get(self.line + raw[: self.width - 2])
            if size is not None and len(raw) == self.width + size and raw.endswith(b"\r\n"):
                return raw[self.width - 2 : -2]
        out: list[bytes] = []
        if self.failed is None:
            try:
                self.read(raw, out)
            except Error as error:
                self.failed = _again(error)
        if self.failed is not None and not any(out):
            raise _again(self.failed)
        return b"".join(out)

    def read(self, raw: bytes, out: list[bytes]) -> None:
        raw, self.line, at = self.line + raw, b"", 0
        while at < len(raw) and not self.ended:
            if self.state == "data":
                piece = raw[at : at + self.left]
                out.append(piece)
                at += len(piece)
                self.left -= len(piece)
                if self.left:
                    break
                self.state = "size"
            if self.state == "size":
                at = self.read_usual(raw, at, out)
                if len(raw) - at == 2 and raw.endswith(b"\r\n"):  # as most reads end
                    self.line = b"\r\n"
                    break
            end = self.line_end(raw, at)
            if end < 0:
                self.line = raw[at:]
                self.check(len(self.line) - 3)  # with the line breaks before it and behind it
                break
            self.read_line(raw[at : end + 1])
            at = end + 1
        self.surplus = self.ended and at < len(raw)

    def read_usual(self, raw: bytes, at: int, out: list[bytes]) -> int:
        """Take the chunks that are whole and whose size was seen before; where they end."""
        size_of, width, whole = _sizes.get, self.width, len(raw)
        while True:
            size = size_of(raw[at : at + width])
            if size is None:
                return at
            start = at + width
            if start + size > whole:
                return at
            at = start + size
            out.append(raw[start:at])

    def line_end(self, raw: bytes, at: int) -> int:
        end = raw.find(b"\n", at)
        if self.state == "size" and end >= 0:
            if raw[at:end] not in (b"", b"\r"):
                raise ProtocolError("a chunk is longer than its size")
            end = raw.find(b"\n", end + 1)
        return end

    def check(self, size: int) -> None:
        if size > self.LINE:
            raise ProtocolError("a line of the chunked framing is too long")

    def read_line(self, line: bytes) -> None:
        text = line[:-2] if line.endswith(b"\r\n") else line[:-1]
        if self.state == "size":
            text = text.partition(b"\n")[2]
        self.check(len(text) + 1)
        if self.state == "size":
            self.left = self.read_size(text)
            self.state = "data" if self.left else "trailer"
            if line == b"\r\n%x\r\n" % self.left and 0 < self.left < 4096:
                _sizes[line], self.width = self.left, len(line)
        else:
            self.trailers += len(text)
            self.check(self.trailers)
            self.ended = not text

    def read_size(self, line: bytes) -> int:
        digits = line.partition(b";")[0].strip(b" \t")
        if not 1 <= len(digits) <= 16 or digits.strip(b"0123456789ABCDEFabcdef"):
            raise ProtocolError("a bad chunk size")
        return int(digits, 16)


# -- 6. Client -----------------------------------------------------------------------------------

_ERROR_BYTES = 65536  # of an error's body, at most
_ERROR_SECONDS = 0.3  # that an error is held up by its body, where its kind does not depend on it
_LISTING_BYTES = 4 << 20
_KIND_BY_BODY = (400, 404, 413, 422, 429)


class WireDecoder(Protocol):
    """What a ``Wire`` reads an answer with; ``Decoder`` is one, and says what each member does."""

    @property
    def completion(self) -> Completion | None:
        """The answer, once it is whole."""
        ...

    @property
    def partial(self) -> Completion:
        """What has been given out so far."""
        ...

    @property
    def quirks(self) -> tuple[str, ...]:
        """The known deviations met so far."""
        ...

    def note(self, quirk: str) -> None:
        """Note a deviation met outside the bytes."""
        ...

    def feed(self, data: bytes) -> Iterator[Event]:
        """Store bytes; the iterator gives their events, then raises what is wrong with them."""
        ...

    def finish(self, clean: bool = True) -> Iterator[Event]:
        """The end of the input; ``clean=False`` when it was cut short."""
        ...


class Wire(Protocol):
    """A server API. ``ChatCompletions`` is one; another plugs in as ``Client(wire=...)``."""

    path: str
    models_path: str

    def encode(self, request: Request, learned: frozenset[str]) -> Body:
        """The body; ``learned`` holds the names that ``adapt`` gave for this server."""
        ...

    def decoder(
        self, *, strict: bool, accept: Iterable[str], think: ThinkMode, limits: Limits
    ) -> WireDecoder:
        """A decoder for one answer."""
        ...

    def headers(self, key: str | None) -> dict[str, str]:
        """The headers that carry the key, and any the API asks for."""
        ...

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> Error:
        """The error for a status that is not a success."""
        ...

    def adapt(
        self, request: Request, error: Error, body: bytes, learned: frozenset[str]
    ) -> frozenset[str] | None:
        """``learned`` and one name more, when leaving something out may mend this refusal."""
        ...

    def models(self, listing: Any) -> list[Model]:
        """The models in the JSON that ``models_path`` answers with."""
        ...


class ChatCompletions:
    """The OpenAI-compatible Chat Completions API."""

    path = "/chat/completions"
    models_path = "/models"

    def __init__(self, *, empty_content: str | None = "") -> None:
        self._empty_content = _check(empty_content, (str, type(None)), "empty_content")

    def encode(self, request: Request, learned: frozenset[str] = frozenset()) -> Body:
        """The body of a request."""
        return _encode_chat(request, learned, self._empty_content)

    def decoder(
        self, *, strict: bool, accept: Iterable[str], think: ThinkMode, limits: Limits
    ) -> WireDecoder:
        """A decoder for one answer."""
        return Decoder(strict=strict, accept=accept, think=think, limits=limits)

    def headers(self, key: str | None) -> dict[str, str]:
        """The key as a bearer token."""
        return {} if key is None else {"authorization": f"Bearer {key}"}

    def error(self, status: int, headers: Mapping[str, str], body: bytes) -> Error:
        """The error for a status that is not a success (H1)."""
        value = _body_value(body)
        message, codes = _told(value)
        error = _status_error(status, headers, value, message, codes)
        error.status, error.server_message = status, message
        error.retry_after = _retry_after(headers)
        return error

    def adapt(
        self, request: Request, error: Error, body: bytes, learned: frozenset[str]
    ) -> frozenset[str] | None:
        """Without the optional fields (D11), or with OpenAI's newer name for the limit (Q5)."""
        if error.kind != "unsupported" or error.status not in (400, 422):
            return None
        told = _body_value(body)
        told = told.get("error") if isinstance(told, dict) else None
        told = told if isinstance(told, dict) else {}
        renamed = (told.get("code"), told.get("param")) == ("unsupported_parameter", "max_tokens")
        if renamed and request.max_tokens is not None and _COMPLETION_TOKENS not in learned:
            return learned | {_COMPLETION_TOKENS}
        if (request.include_usage or request.reasoning_effort) and _LEAN not in learned:
            return learned | {_LEAN}
        return None

    def models(self, listing: Any) -> list[Model]:
        """The models of a listing; one without an id is passed over."""
        entries = listing.get("data") if isinstance(listing, dict) else listing
        if not isinstance(entries, list):
            raise ProtocolError("the answer is not a list of models")
        found = [
            entry for entry in entries if isinstance(entry, dict) and _is_words(entry.get("id"))
        ]
        names = [_encodable(e["name"]) if _is_words(e.get("name")) else None for e in found]
        return [Model(_encodable(entry["id"]), name) for entry, name in zip(found, names)]


def _body_value(body: bytes) -> Any:
    """An error's body: JSON, or the first line of its text, or the title of its page."""
    text = body.decode("utf-8", "replace").strip("\ufeff \t\r\n\x00")
    try:
        return _parse_json(text)
    except ValueError:
        title = re.match(r"<[^\0]{0,2000}?<(?:title|h1)[^>]{0,200}>([^<]{1,2000})<", text, re.I)
        return " ".join(title.group(1).split()) if title else text.partition("\n")[0].strip()


def _status_error(
    status: int,
    headers: Mapping[str, str],
    value: Any,
    message: str | None,
    codes: Sequence[Any],
) -> Error:
    if status in (401, 402, 403):
        why = "out of credit" if status == 402 else "is the API key right?"
        return Unauthorized(f"the server answered {status}: {why}")
    if status == 407:
        return Unauthorized(f"the proxy answered 407: {_PROXY_HINT}")
    if status == 429:
        spent = "insufficient_quota" in [code for code in codes if isinstance(code, str)]  # H4
        return RateLimited("the server answered 429: too many requests", retryable=not spent)
    if status in (408, 504):
        return Timeout(f"the server answered {status}: it took too long")
    if status >= 500:
        return Unavailable(f"the server answered {status}: it failed or is not ready")
    if status in (400, 413, 422):
        if _is_overflow(message, codes):
            return ContextOverflow("the conversation is longer than the model's context")
        if "content_filter" in [code for code in codes[:1] if isinstance(code, str)]:
            return ContentFiltered("the server's content filter blocked the prompt")
        return Unsupported(
            f"the server refused the request with {status}: server_message says why"
        )
    if status == 404:
        named = isinstance(value, dict) and (
            isinstance(value.get("error"), dict) or value.get("object") == "error"
        )
        if named:
            return Unsupported(
                "the server answered 404: is the model's name right (list_models() tells), and the"
                " base URL?"
            )
        return ProtocolError(
            "the server answered 404: is the base URL right, and the model's name?"
        )
    if 300 <= status < 400:
        return _redirect(status, headers)
    return ProtocolError(f"the server answered {status}, which this API does not")


def _redirect(status: int, headers: Mapping[str, str]) -> Error:
    place = _without_query(headers.get("location", ""))
    place = _shown(re.sub(r"//[^/@]*@", "//", place))[1:-1] if place else "no Location"
    return ProtocolError(
        f"the server answered {status}, to {place}: redirects are not followed, as they would take"
        " the key elsewhere. Give the base URL it wants: https, the slash, /v1"
    )


_NUMBER = r"[0-9]{1,9}(?:\.[0-9]{1,9})?\Z"


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait: a number, or a date against the server's own clock (H5)."""
    in_ms = headers.get("retry-after-ms", "").strip()
    if re.match(_NUMBER, in_ms):
        return float(in_ms) / 1000
    value = headers.get("retry-after", "").strip()
    if re.match(_NUMBER, value):
        return float(value)
    at = _http_date(value)
    if at is None:
        return None
    now = _http_date(headers.get("date", ""))
    return max(0.0, at - (time.time() if now is None else now))


def _http_date(value: str) -> float | None:
    from email.utils import mktime_tz, parsedate_tz

    try:
        parsed = parsedate_tz(value)
        return None if parsed is None else float(mktime_tz(parsed))
    except (ValueError, OverflowError, TypeError, IndexError):
        return None


class _Inflater:
    """A gzip or deflate body, decoded as it streams (H8), never more than a block at a time."""

    def __init__(self, coding: str) -> None:
        try:
            import zlib
        except ImportError:
            raise ProtocolError(f"the body is {coding}, and this Python has no zlib") from None
        self.zlib: Any = zlib
        self.is_gzip = coding != "deflate"
        self.stream: Any = zlib.decompressobj(31) if self.is_gzip else None
        self.rest = b""
        self.taken = self.given = 0

    def feed(self, data: bytes) -> bytes:
        """The next block of what is held and ``data``; ``b""`` when there is no more yet."""
        self.taken += len(data)
        data, self.rest = self.rest + data, b""
        if self.stream is None:
            if len(data) < 2:
                self.rest = data
                return b""
            wrapped = data[0] & 15 == 8 and (data[0] << 8 | data[1]) % 31 == 0
            self.stream = self.zlib.decompressobj(15 if wrapped else -15)
        out = b""
        while data and not out:
            if self.stream.eof:  # another member follows, or what does not belong to the body
                self.stream = self.zlib.decompressobj(31)
                if not self.is_gzip:
                    raise ProtocolError("the body goes on after its compressed end")
            data, out = self.inflate(data)
        self.rest = data
        self.given += len(out)
        # Compressed data that gives nothing would pass every limit on what it gives.
        if self.taken > 2 * self.given + (1 << 20):
            raise ProtocolError("the body's compression is broken")
        return out

    def inflate(self, data: bytes) -> tuple[bytes, bytes]:
        try:
            out: bytes = self.stream.decompress(data, 65536)
        except self.zlib.error:
            raise ProtocolError("the body's compression is broken") from None
        return self.stream.unconsumed_tail or self.stream.unused_data, out

    @property
    def whole(self) -> bool:
        return self.stream is not None and bool(self.stream.eof)


class _Exchange:
    """A response above the seam: its limits, its compression, its end."""

    def __init__(self, response: HttpResponse, request: HttpRequest) -> None:
        self.response, self.request, self.control = response, request, request._control
        self.status = response.status
        self.headers: dict[str, str] = {k.lower(): v for k, v in response.headers.items()}
        self.whole = True  # until the framing tells otherwise
        self.ended = self.closed = False
        self.ahead = b""  # read to see what it is
        self.size = _READ
        self.inflater: _Inflater | None = None

    def read(self) -> bytes:
        """Bytes as they arrive; ``b""`` at the end, and then ``whole`` tells how it ended."""
        control, seconds, message = self.control, self.request._idle_timeout, ""
        if control.cancelled:
            control.check()
        if control.deadlines or control.idles:
            seconds, message = control.limit(seconds, control.idles)
        try:
            data = self.response.read(self.size, seconds)
            self.size = _READ if 2 * len(data) < self.size else _READ_MOST
        except Truncated:
            self.whole, data = False, b""
        except Timeout:
            control.check()
            raise Timeout(self.request._late(message)) from None
        except Error:
            control.check()
            raise
        if not data:
            control.check()  # a shutdown looks like the end
            self.ended = True
        return data

    def inflate(self) -> bool:
        """Read what the headers say is compressed; whether it is."""
        coding = self.headers.get("content-encoding", "").strip().lower()
        if coding in ("", "identity"):
            return False
        if coding not in ("gzip", "x-gzip", "deflate"):
            raise ProtocolError(
                f"the body has an encoding that was not asked for: {_shown(coding)}"
            )
        self.inflater = _Inflater(coding)
        return True

    @property
    def is_decoded(self) -> bool:
        """Whether ``read_decoded`` gives anything but what ``read`` does."""
        return self.inflater is not None or self.ahead != b""

    def read_decoded(self) -> bytes:
        if self.ahead:
            data, self.ahead = self.ahead, b""
            return data
        if self.inflater is None:
            return self.read()
        data = self.inflater.feed(b"") if self.inflater.rest else b""
        while not data and not self.ended:
            data = self.inflater.feed(self.read())
        if not data:
            self.whole = self.whole and self.inflater.whole
        return data

    def peek(self) -> bytes:
        """The body from its first byte that is no blank: enough to tell what it is."""
        ahead = start = b""
        while len(start) < 6 and start[:1] not in (b"{", b"[") and len(ahead) < _PEEKED:
            data = self.read_decoded()
            if not data:
                break
            ahead += data
            start = ahead.lstrip(_BYTE_ORDER_MARK + _BLANKS)
        self.ahead = ahead
        return start

    def error_body(self) -> bytes:
        """An error's body, waited for only as long as it is worth (P4)."""
        patient = self.status in _KIND_BY_BODY
        body = b""
        try:
            self.inflate()
            with Deadline(self.control.deadlines, 30.0 if patient else _ERROR_SECONDS, ""):
                while len(body) < _ERROR_BYTES:
                    data = self.read_decoded()
                    if not data:
                        break
                    body += data
        except Cancelled:
            raise
        except Error:  # the status is the error; what came of the body is its message
            pass
        return body[:_ERROR_BYTES]

    def close(self, answered: bool = False) -> None:
        if not self.closed:
            self.closed = True
            self.request.release()
            if answered and isinstance(self.response, _Response):
                self.response.answered = True
            self.response.close()


class Deadline:
    """A limit on the waits of a stream, from ``with call.deadline(...)`` until ``clear()``."""

    def __init__(self, limits: list[Any], seconds: float | None, message: str) -> None:
        self._limits, self._seconds, self._message = limits, seconds, message
        self._entry: tuple[float, str] | None = None

    def __enter__(self) -> Deadline:
        if self._seconds is not None:
            self._entry = self._limit(self._seconds)
            self._limits.append(self._entry)
        return self

    def _limit(self, seconds: float) -> tuple[float, str]:
        return time.monotonic() + seconds, self._message

    def clear(self) -> None:
        """The limit was kept: it bounds nothing any more."""
        if self._entry is not None:
            self._limits.remove(self._entry)
            self._entry = None

    def __exit__(self, *error: object) -> None:
        self.clear()


class _Idle(Deadline):
    """A limit on each wait for the server, not on all of them together."""

    def _limit(self, seconds: float) -> tuple[float, str]:
        return seconds, self._message


class Call:
    """The rest of the stack, as a layer gets it: ``call(request)`` runs it, again if need be."""

    def __init__(self, client: Client, control: Any, depth: int = 0) -> None:
        self._client, self._control, self._depth = client, control, depth

    def __call__(self, request: Request) -> Iterator[Event]:
        if self._depth == 0:  # another client's, with its own limit on the whole
            events = self._client._start(request, self._control)
        else:
            events = self._client._run(request, self._control, self._depth)
        self._control.running.append(events)
        return events

    def sleep(self, seconds: float) -> None:
        """Wait. Raises ``Cancelled`` when the stream is closed, ``Timeout`` at a deadline."""
        self._control.sleep(seconds)

    def deadline(self, seconds: float | None, message: str) -> Deadline:
        """``with call.deadline(60, "no token") as d:`` bounds the waits until ``d.clear()``."""
        return Deadline(self._control.deadlines, seconds, message)

    def idle(self, seconds: float | None, message: str) -> Deadline:
        """``with call.idle(10, "silent"):`` bounds each wait for the server's next byte."""
        return _Idle(self._control.idles, seconds, message)

    def through(self, client: Client) -> Call:
        """A call of another client, layers and all, that ends when this stream is closed."""
        return Call(client, self._control)


Layer: TypeAlias = "Callable[[Request, Call], Iterator[Event]]"


class Stream:
    """The events of one answer. Nothing is sent before the first is asked for; it sends once.

    Ends with ``Completed``. A stream that failed raises its error again. Also takes any iterable
    of events, for tests.
    """

    def __init__(self, events: Iterable[Event], *, control: Any = None) -> None:
        self._events = iter(events)
        self._control: _Control = _Control() if control is None else control
        self._reading = threading.Lock()  # held while an event is read
        self._completion: Completion | None = None
        self._failure: Error | None = None

    def __iter__(self) -> Iterator[Event]:
        if not self._control.direct:
            return self
        # What has failed goes on to fail, which a generator alone does not.
        return itertools.chain(self._given(), iter(self.__next__, None))

    def _given(self) -> Iterator[Event]:
        """As ``next`` again and again; but what was read already is taken past the lock and past
        what read it, which cost an event as much as making it."""
        control = self._control
        while True:
            try:
                event = self.__next__()
            except StopIteration:
                return
            yield event
            ready = control.ready
            while ready and not control.cancelled:
                try:
                    event = ready.popleft()
                except IndexError:  # pragma: no cover - another thread took it
                    break
                if type(event) is Completed:
                    self._completion = event.completion
                yield event

    def __next__(self) -> Event:
        if self._failure is not None:
            raise _again(self._failure)
        if not self._reading.acquire(False):  # whoever reads may be this thread, below a layer
            raise self._disturbed()
        try:
            event = next(self._events)
        except StopIteration:
            if self._completion is not None:
                raise
            self._failure = self._unfinished()
        except Error as error:
            self._failure = _again(error)
            raise
        else:
            if type(event) is Completed:
                self._completion = event.completion
            return event
        finally:
            self._reading.release()
        raise _again(self._failure)

    def _disturbed(self) -> Exception:
        if self._completion is not None:  # pragma: no cover - it is being closed right now
            return StopIteration()
        if self._control.cancelled:
            return self._unfinished()
        return RuntimeError("the stream is being read already")

    def _unfinished(self) -> Error:
        if not self._control.cancelled:
            return Truncated(
                "the stream ended without Completed: a layer must pass it on, or its error"
            )
        error = Cancelled("the stream was closed")
        if self._control.heard is not None:
            decoder, error.where = self._control.heard
            error.partial, error.quirks, error.in_stream = decoder.partial, decoder.quirks, True
        return error

    @property
    def completion(self) -> Completion:
        """The answer. Never waits: raises ``RuntimeError`` while the answer is not whole."""
        if self._completion is None:
            over = self._failure is not None or self._control.cancelled
            raise RuntimeError(
                "the stream ended before the answer was whole"
                if over
                else "the stream has not completed: read it to its end, or call result()"
            )
        return self._completion

    def text(self) -> Iterator[str]:
        """The answer's text, in pieces as it arrives."""
        for event in self:
            if isinstance(event, TextDelta):
                yield event.text

    def result(self) -> Completion:
        """Read the rest; the answer."""
        for _ in self:
            pass
        return self.completion

    def close(self) -> None:
        """Stop, from any thread, at any time: the reader gets ``Cancelled``. Never waits."""
        if self._completion is None:
            self._control.cancel()
        if self._reading.acquire(blocking=False):  # else its reader wakes, and ends it
            try:
                self._close_all()
            finally:
                self._reading.release()

    def __del__(self) -> None:
        # What a layer reads with a plain `for` is not closed by dropping the layer; and PyPy drops
        # one thing at each collection, the socket last.
        control = getattr(self, "_control", None)
        if control is not None and (control.running or control.heard):
            self._close_all()

    def _close_all(self) -> None:
        # A layer that reads with a plain `for` closes nothing, and PyPy drops things late.
        for events in (self._events, *self._control.running):
            close = getattr(events, "close", None)
            try:
                if close is not None:
                    close()
            except Exception:  # a layer fails while it ends: nobody asked for more than the end
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class RawStream:
    """The server's bytes, unchanged (D20). Sent on entry: status and refusals are settled there.

        with client.send(request) as raw:
            for chunk in raw: ...

    A compressed body stays so: pass ``headers["content-encoding"]`` on.
    """

    def __init__(
        self,
        open_exchange: Callable[[Any], Any],
        limit: Callable[[Any], Deadline],
        errors_say: Any,
    ) -> None:
        self._control = _Control()
        self._limit = limit(self._control)
        self._errors_say = errors_say
        self._open = open_exchange
        self._exchange: _Exchange | None = None
        self._reading = threading.Lock()  # held while it is opened or read
        self._failure: Error | None = None

    def __enter__(self) -> Self:
        self._start_reading()
        try:
            self._enter()
        finally:
            self._reading.release()
        return self

    def _start_reading(self) -> None:
        if not self._reading.acquire(blocking=False):
            self._control.check()
            raise RuntimeError("the stream is being read already")

    def _enter(self) -> None:
        if self._failure is not None:
            raise _again(self._failure)
        if self._exchange is None:
            try:
                self._limit.__enter__()
                self._exchange = self._open(self._control)
            except Error as error:
                self._failure = _again(error)
                raise

    def _opened(self) -> _Exchange:
        if self._exchange is None:
            raise RuntimeError("the request is sent on entry: with client.send(request) as raw:")
        return self._exchange

    @property
    def status(self) -> int:
        """The status of the answer: a success."""
        return self._opened().status

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the answer, with lower-case names."""
        return self._opened().headers

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        self._start_reading()
        try:
            self._enter()
            data = self._read(self._opened())
        finally:
            self._reading.release()
        if not data:
            raise StopIteration
        return data

    def _read(self, exchange: _Exchange) -> bytes:
        try:
            with self._errors_say:
                data = b"" if exchange.ended else exchange.read()
                if not data and not exchange.whole:
                    raise Truncated("the body was cut short")
                return data
        except Error as error:
            error.in_stream = True
            self._failure = _again(error)
            exchange.close()
            raise

    def close(self) -> None:
        """Stop, from any thread. Never waits."""
        exchange = self._exchange
        if exchange is None or not exchange.ended:
            self._control.cancel()
        if self._reading.acquire(blocking=False):  # else its reader wakes, and ends it
            try:
                if exchange is not None:
                    exchange.close()
            finally:
                self._reading.release()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_exchange", None) is not None:
            self.close()


class Background:
    """Reads a stream in a daemon thread, for a host whose main loop must not wait.

    Call ``poll()`` from the host's timer until ``done``; ``cancel()`` and ``join()`` on unload.
    """

    def __init__(self, stream: Stream) -> None:
        self._stream: Stream = _check(stream, Stream, "the stream of a Background")
        self._queue: deque[Event] = deque()
        self._ended = False
        self._error: BaseException | None = None
        self._thread = self._make_thread()
        self._thread.start()

    def _make_thread(self) -> threading.Thread:
        try:
            return threading.Thread(target=self._read, name="svir", daemon=True)
        except RuntimeError:  # an isolated sub-interpreter has no daemon threads
            return threading.Thread(target=self._read, name="svir", daemon=False)

    def _read(self) -> None:
        try:
            with self._stream:
                self._queue.extend(self._stream)
        except BaseException as error:  # result() raises it in the host's thread
            self._error = error
        self._ended = True
        del self  # else the error's traceback would hold what holds the error

    def poll(self, limit: int | None = None) -> list[Event]:
        """The events that have arrived, ``limit`` at most. Never waits, never raises."""
        events: list[Event] = []
        try:
            while limit is None or len(events) < limit:
                events.append(self._queue.popleft())
        except IndexError:  # nothing more, or another thread was quicker
            pass
        return events

    @property
    def done(self) -> bool:
        """Whether the stream has ended and everything has been polled."""
        return self._ended and not self._queue

    @property
    def error(self) -> BaseException | None:
        """Why the stream failed, or None."""
        return self._error

    def result(self) -> Completion:
        """Wait for the end: the answer, or raises the stream's error."""
        self._thread.join()
        if self._error is None:
            return self._stream.completion
        try:
            raise self._error
        finally:
            del self  # as in _read

    def cancel(self) -> None:
        """Stop, as ``Stream.close()``."""
        self._stream.close()

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the thread, ``timeout`` seconds at most; whether it has ended."""
        self._thread.join(timeout)
        return not self._thread.is_alive()


# Written by svir, or part of how a request is framed (D38).
_OWN_HEADERS = frozenset(
    (
        "authorization",
        "content-type",
        "content-length",
        "accept",
        "accept-encoding",
        "host",
        "transfer-encoding",
        "connection",
        "expect",
        "te",
        "trailer",
        "upgrade",
        "proxy-authorization",
        "proxy-connection",
    )
)

ApiKey: TypeAlias = "Union[str, Secret, Callable[[], Union[str, Secret]], None]"


class Client:
    """A server that speaks Chat Completions. Immutable, and shared between threads.

    The server:
    ``base_url``: with or without ``/v1``; a path with a version in it is used as written.
    ``api_key``: text, a ``Secret``, or a function that is asked before every request.
    ``headers``, ``query``: added to every request; the values of headers are kept secret.
    ``exact_url``: use the base URL as it is. ``allow_http``: plain http off this machine.

    What is asked:
    ``layers``: functions around a call, the first is the outermost.
    ``include_usage``: ask for token counts. ``empty_content``: what a turn of only calls has as
    its text, "" or None. ``context_size``: refuse what cannot fit it, with an image counted as
    ``image_tokens`` (None: as its bytes).

    What is accepted (docs/decoding.md):
    ``strict=False`` skips unknown input; ``accept`` takes names of ``ACCEPT``; ``think`` is
    "split", "keep" or "open"; ``limits`` bounds an answer.

    Waiting, in seconds, None is no limit:
    ``connect_timeout``; ``idle_timeout``, without a byte from the server; ``total_timeout``.

    The connection: ``proxy``, ``cafile``, ``ssl_context``, ``unix_socket`` and ``keep_alive`` as
    in ``HttpBackend``, or a ``backend`` of your own. ``wire``: another server API.

    Raises ``ConfigError`` for what cannot be used.
    """

    def __init__(
        self,
        base_url: str,
        *,
        # The server
        api_key: ApiKey = None,
        headers: Mapping[str, str | Secret] | None = None,
        query: Mapping[str, str] | None = None,
        exact_url: bool = False,
        allow_http: bool = False,
        # What is asked, and around it
        layers: Iterable[Layer] = (),
        include_usage: bool = True,
        empty_content: str | None = "",
        context_size: int | None = None,
        image_tokens: int | None = 2048,
        # What is accepted
        strict: bool = True,
        accept: Iterable[str] = (),
        think: ThinkMode = "split",
        limits: Limits | None = None,
        # Waiting, in seconds; None is no limit
        connect_timeout: float | None = 10.0,
        idle_timeout: float | None = 300.0,
        total_timeout: float | None = None,
        # The connection
        proxy: str | Secret | None = None,
        cafile: FilePath | None = None,
        ssl_context: ssl.SSLContext | None = None,
        unix_socket: FilePath | None = None,
        keep_alive: bool = True,
        backend: Backend | None = None,
        # The API
        wire: Wire | None = None,
    ) -> None:
        given = {
            name: value for name, value in locals().items() if name not in ("self", "base_url")
        }
        # From here on no frame holds a key or password as text, whatever fails (Q3).
        given["api_key"] = api_key = _hidden(api_key)
        given["headers"] = headers = _hidden_values(headers)
        given["proxy"] = proxy = _hidden(proxy)
        base_url = _hidden(base_url) if _tells_too_much(base_url) else base_url
        own: dict[str, Any] = {
            "proxy": proxy,
            "cafile": cafile,
            "ssl_context": ssl_context,
            "unix_socket": unix_socket,
        }
        options = {name: value for name, value in own.items() if value is not None}
        if backend is not None and (options or not keep_alive):
            raise ConfigError(
                f"{', '.join(options) or 'keep_alive'}: set it on the backend you pass"
            )
        if wire is not None and empty_content != "":
            raise ConfigError("empty_content: set it on the wire you pass")
        self._base_url = _base_url(base_url, exact_url, allow_http or unix_socket is not None)
        self._given = given
        if self._base_url.startswith("https:") and backend is None:
            _import_ssl()
        self._key = _api_key(api_key)
        self._headers = _caller_headers(headers)
        self._query = _caller_query(query)
        if not isinstance(layers, Iterable):
            raise ConfigError("layers must be a list, as layers=[retry(2)]")
        self._layers: tuple[Layer, ...] = tuple(layers)
        for layer in self._layers:
            if not callable(layer):
                raise ConfigError(
                    f"a layer is a function of a request and a call, not {_shown(layer)}"
                )
        self._include_usage = _check(include_usage, bool, "include_usage")
        self._context_size = _checked(context_size, "_Count | None", "context_size")
        self._image_tokens = _checked(image_tokens, "_Count | None", "image_tokens")
        self._strict = _check(strict, bool, "strict")
        self._accept = _accept_names(accept)
        self._think: ThinkMode = _choice(think, _THINK_MODES, "think")
        self._limits = Limits() if limits is None else _check(limits, Limits, "limits")
        self._connect_timeout = _seconds(connect_timeout, "connect_timeout")
        self._idle_timeout = _seconds(idle_timeout, "idle_timeout")
        self._total_timeout = _seconds(total_timeout, "total_timeout")
        if backend is None:
            backend = built = HttpBackend(keep_alive=keep_alive, **options)
            given["proxy"] = built._proxy and built._proxy.to_pickle()
            in_the_open = self._base_url.startswith("http:") and not allow_http
            if in_the_open and built._proxy and not _is_loopback(built._proxy.host):
                raise ConfigError(
                    "plain http through a proxy sends key and text in the open: allow_http=True"
                    " permits it"
                )
        self._backend: Backend = backend
        self._wire: Wire = ChatCompletions(empty_content=empty_content) if wire is None else wire
        self._learned: frozenset[str] = frozenset()  # what this server was seen to refuse (D11)

    # Calls

    def stream(self, request: Request) -> Stream:
        """The answer as events. Sends nothing until the first is asked for."""
        _check(request, Request, "the request")
        control = _Control()
        control.direct = not self._layers
        return Stream(self._start(request, control), control=control)

    def complete(self, request: Request) -> Completion:
        """The whole answer."""
        with self.stream(request) as stream:
            return stream.result()

    def send(self, request: Request) -> RawStream:
        """The answer as the server's bytes. Layers work on events, and are not run."""
        _check(request, Request, "the request")
        say = self._errors_say("POST", self._wire.path)
        return RawStream(lambda control: self._open(request, control), self._total, say)

    def list_models(self) -> list[Model]:
        """Every model the server lists."""
        control = _Control()
        with self._errors_say("GET", self._wire.models_path), self._total(control):
            exchange = self._exchange("GET", self._wire.models_path, None, control)
            try:
                if not 200 <= exchange.status < 300:
                    raise self._wire.error(
                        exchange.status, exchange.headers, exchange.error_body()
                    )
                return self._wire.models(_listing(exchange))
            finally:
                exchange.close()

    def close(self) -> None:
        """Close the idle connections. The client can still be used."""
        close = getattr(self._backend, "close", None)
        if close is not None:
            close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def base_url(self) -> str:
        """What a path such as ``/chat/completions`` is added to."""
        return self._base_url

    def __repr__(self) -> str:
        # A traceback with locals may show a client whose constructor has just failed.
        return f"Client({getattr(self, '_base_url', '...')!r})"

    # How a call runs

    def _total(self, control: _Control) -> Deadline:
        seconds = self._total_timeout
        return Deadline(
            control.deadlines,
            seconds,
            f"not done after {seconds} s: total_timeout= sets the limit",
        )

    def _start(self, request: Request, control: _Control) -> Iterator[Event]:
        if self._total_timeout is None and not self._layers:
            return self._events(request, control)
        return self._run_all(request, control)

    def _run_all(self, request: Request, control: _Control) -> Iterator[Event]:
        with self._total(control):
            yield from self._run(request, control, 0)

    def _run(self, request: Request, control: _Control, depth: int) -> Iterator[Event]:
        if depth == len(self._layers):
            return self._events(request, control)
        layer = self._layers[depth]
        events = layer(request, Call(self, control, depth + 1))
        if isinstance(events, str) or not hasattr(events, "__iter__"):
            name = _shown(getattr(layer, "__name__", layer))
            raise ConfigError(f"the layer {name} gave no events: it has to return or yield them")
        return iter(events)

    def _events(self, request: Request, control: _Control) -> Iterator[Event]:
        decoder = self._wire.decoder(
            strict=self._strict, accept=self._accept, think=self._think, limits=self._limits
        )
        exchange: _Exchange | None = None
        try:
            exchange = self._open(request, control)
            control.heard = decoder, self._where("POST", self._wire.path)
            if control.direct and type(decoder) is Decoder:
                control.ready = decoder._answer.out
            self._check_body(exchange, decoder)
            read = exchange.read_decoded if exchange.is_decoded else exchange.read
            while decoder.completion is None:
                data = read()
                yield from decoder.feed(data) if data else decoder.finish(exchange.whole)
        except Error as error:
            error.in_stream = exchange is not None
            error.quirks = decoder.quirks
            error.partial = decoder.partial
            error.where = error.where or self._where("POST", self._wire.path)
            raise
        finally:
            if exchange is not None:
                exchange.close(decoder.completion is not None)

    def _open(self, request: Request, control: _Control) -> _Exchange:
        """Send the request; a success, or an error. A refused optional field is left out once."""
        control.check()
        if request.include_usage is None:
            request = Request._made({**request.__dict__, "include_usage": self._include_usage})
        # A refused optional field is left out, and the request sent again. When that fails for a
        # reason of the moment, the first refusal is what is told.
        learned, refusal = self._learned, None
        with self._errors_say("POST", self._wire.path):
            while True:
                body = self._wire.encode(request, learned)
                self._admit(request, body)
                exchange = self._exchange("POST", self._wire.path, body, control)
                if 200 <= exchange.status < 300:
                    self._learned = self._learned | learned
                    return exchange
                try:
                    data = exchange.error_body()
                finally:
                    exchange.close()
                error = self._wire.error(exchange.status, exchange.headers, data)
                more = self._wire.adapt(request, error, data, learned)
                if more is None or more <= learned or control.expired() is not None:
                    raise _again(refusal if refusal is not None and error.retryable else error)
                learned, refusal = more, error

    def _exchange(self, method: str, path: str, body: Body | None, control: _Control) -> _Exchange:
        request = HttpRequest(
            method,
            self._base_url + path + self._query,
            self._request_headers(body is not None),
            body,
            connect_timeout=self._connect_timeout,
            idle_timeout=self._idle_timeout,
            control=control,
        )
        late = control.expired()
        if late is not None:  # no time is left: nothing is sent for nobody
            raise Timeout(late, unsent=True)
        try:
            return _Exchange(self._backend.send(request), request)
        except Timeout as error:
            control.check()
            late = control.expired() or request._late(request._wait()[1])
            unsent = error.unsent
        except Error as error:
            request.release()
            control.check()
            late = control.expired() or ""
            if not late or not isinstance(error, (ConnectError, Disconnected)):
                raise
            unsent = error.unsent
        raise Timeout(late, unsent=unsent)

    def _request_headers(self, has_body: bool) -> dict[str, str]:
        headers = _Headers({"user-agent": f"svir/{__version__}", "accept-encoding": "identity"})
        headers["accept"] = "text/event-stream" if has_body else "application/json"
        if has_body:
            headers["content-type"] = "application/json"
        headers.update((name, secret.reveal()) for name, secret in self._headers.items())
        key = _hidden(self._key() if callable(self._key) else self._key)
        if key is not None:
            key = _secret(key, "the API key")
            key._header("the API key")
        headers.update(self._wire.headers(None if key is None else key.reveal()))
        return headers

    def _admit(self, request: Request, body: Body) -> None:
        """Refuse what cannot fit the context before a byte is sent (P14)."""
        if self._context_size is None:
            return
        prompt, answer = body.tokens(self._image_tokens), request.max_tokens
        if answer == 0:
            raise ContextOverflow("max_tokens=0 leaves no room for an answer")
        if prompt + (answer or 0) > self._context_size:
            raise ContextOverflow(
                f"{prompt} tokens at most and {answer or 0} for the answer do not fit"
                f" context_size={self._context_size}"
            )

    def _check_body(self, exchange: _Exchange, decoder: WireDecoder) -> None:
        """A success must be an event stream, whatever the status says (H6, H7, H8)."""
        if exchange.inflate():
            decoder.note("unasked-encoding")
        kind = exchange.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "text/event-stream":
            return
        start = exchange.peek()
        if start[:1] in (b"", b"{", b"["):  # nothing, or JSON, which the decoder reads (S11, S12)
            return
        if "any-content-type" in self._accept:
            decoder.note("any-content-type")
            return
        if re.match(rb"(data|event|id|retry)?:", start):
            hint = 'accept="any-content-type" reads this server'
        else:
            hint = "is the base URL right?"
        raise ProtocolError(
            f"the answer is {_shown(kind or 'of no type')}, not an event stream ({hint})",
            server_message=_told(_body_value(start))[0],
        )

    def _where(self, method: str, path: str) -> str:
        return f"{method} {self._base_url}{path}"

    def _errors_say(self, method: str, path: str) -> _ErrorsSay:
        return _ErrorsSay(self._where(method, path))

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        secrets = {"the proxy's URL": self._given["proxy"], "api_key": self._given["api_key"]}
        secrets.update((f"the header {name}", secret) for name, secret in self._headers.items())
        for what, secret in secrets.items():
            if isinstance(secret, Secret) and secret._origin is None:
                raise TypeError(secret._unpicklable(what))
        # A pasted endpoint gives its base back exactly as it is.
        options = {**self._given, "base_url": f"{self._base_url}/chat/completions"}
        return _call_with, (type(self), options)


def _listing(exchange: _Exchange) -> Any:
    exchange.inflate()
    body = bytearray()
    while True:
        data = exchange.read_decoded()
        if not data:
            break
        body += data
        if len(body) > _LISTING_BYTES:
            raise LimitExceeded(f"a list of models of more than {_LISTING_BYTES} bytes")
    if not exchange.whole:
        raise Truncated("the list of models was cut short")
    try:
        return _parse_json(body.decode("utf-8", "replace"))
    except ValueError:
        raise ProtocolError("the answer is not a list of models: is the base URL right?") from None


class _ErrorsSay:
    """Errors raised inside say where: the method and the URL."""

    def __init__(self, where: str) -> None:
        self.where = where

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Error) and error.where is None:
            error.where = self.where


def _seconds(value: Any, what: str) -> float | None:
    if value == float("inf"):
        raise ConfigError(f"{what} must be finite: None is no limit")
    if _checked(value, "float | None", what) is not None and value <= 0:
        raise ConfigError(f"{what} must be more than 0; None is no limit")
    return None if value is None else float(value)


_URL = (
    r"(?P<scheme>[A-Za-z]+)://(?P<host>\[[0-9A-Fa-f:.]+\]|[^/?#\[\]:@]*)"
    r"(?::(?P<port>\d{0,5}))?(?P<path>/[^?#]*)?\Z"
)


def _base_url(url: Any, exact: bool, allow_http: bool) -> str:
    """The URL that paths are added to (Q1, Q2)."""
    if isinstance(url, Secret):
        raise ConfigError(
            "the base URL must not carry a user, a password, a query or a fragment:"
            " use api_key=, headers= or query={...}"
        )
    text: str = _check(url, str, "base_url").strip()
    shown = _shown(_without_query(text))
    if not re.match(r"https?://", text, re.IGNORECASE):
        hint = f': try "http://{shown[1:-1]}"' if "://" not in text else ""
        raise ConfigError(f"the base URL must start with http:// or https://, not {shown}{hint}")
    match = re.match(_URL, text)
    if match is None or not match.group("host") or int(match.group("port") or 1) > 65535:
        raise ConfigError(f"the base URL has no usable host, or no usable port: {shown}")
    scheme, host = match.group("scheme").lower(), match.group("host").lower()
    if not re.match(r"[!-~]+\Z", text):
        raise ConfigError(f"the base URL has a character that is not plain ASCII: {shown}")
    if host == "0.0.0.0":
        raise ConfigError("0.0.0.0 is where a server listens: ask 127.0.0.1 instead")
    if scheme == "http" and not allow_http and not _is_loopback(host):
        raise ConfigError(
            f"plain http to {host} sends key and text in the open: allow_http=True permits it"
        )
    port = f":{match.group('port')}" if match.group("port") else ""
    return f"{scheme}://{host}{port}{_base_path(match.group('path') or '', exact)}"


def _base_path(path: str, exact: bool) -> str:
    path = path.rstrip("/")
    for endpoint in ("/chat/completions", "/models"):
        if path.endswith(endpoint):  # a pasted endpoint: what is before it is the base, as written
            return path[: -len(endpoint)].rstrip("/")
    if exact:
        return path
    if re.search(r"/(v\d+)/\1(/|\Z)", path):
        raise ConfigError(
            f"the base URL has {path!r}, a version twice (exact_url=True uses it as it is)"
        )
    return path if re.search(r"/v\d\w*(/|\Z)", path) else path + "/v1"


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "[::1]") or re.match(r"127(\.\d{1,3}){3}\Z", host) is not None


def _api_key(key: Any) -> Any:
    if key is not None and not callable(key):
        _secret(key, "api_key")._header("api_key")
    return key


def _caller_headers(headers: Any) -> dict[str, Secret]:
    found: dict[str, Secret] = {}
    if isinstance(headers, _Wrong):
        raise ConfigError(f"headers must be a dict, not {headers.kind}")
    for name, secret in headers.items():
        if not isinstance(name, str) or not re.match(_HEADER_NAME, name):
            raise ConfigError(f"{_shown(name)} is not a header name")
        if name.lower() in _OWN_HEADERS:
            raise ConfigError(
                f"svir writes the header {name} itself"
                + (": use api_key=" if name.lower() == "authorization" else "")
            )
        if not _is_header_value(_secret(secret, f"the header {name}").reveal()):
            raise ConfigError(
                f"the value of the header {name} has a control or non-ASCII character"
            )
        found[name.lower()] = secret
    return found


def _caller_query(query: Any) -> str:
    if not _check(query, (dict, type(None)), "query"):
        return ""
    from urllib.parse import urlencode

    for name, value in query.items():
        _check(name, str, "a name in query")
        _check(value, str, f"query[{name!r}]")
    try:
        return "?" + urlencode(query)
    except UnicodeEncodeError:
        raise ConfigError("query holds half of a surrogate pair") from None


# The other names of types, such as Event, are text so far. Few look at one, so they are made then:
# that and `typing` would be a quarter of the import.
if not TYPE_CHECKING:
    _aliases = {name: globals().pop(name) for name in __all__ if type(globals()[name]) is str}

    def __getattr__(name):
        if name not in _aliases:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import typing

        for alias, text in _aliases.items():
            holder = type(alias, (), {"__annotations__": {alias: text}})
            globals().update(typing.get_type_hints(holder, globals(), vars(typing)))
        return globals()[name]

    def __dir__():
        return sorted({*globals(), *_aliases})

    # In a cell, as a script, or run inside another module, names are not asked for in that way.
    _is_imported = __name__ != "__main__" and globals().get("__spec__") is not None
    if not _is_imported or globals().get("__file__") != __getattr__.__code__.co_filename:
        __getattr__("Event")
