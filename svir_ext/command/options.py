"""The arguments that commands share, and what they make: a client, a request."""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
from typing import Any, NamedTuple
from urllib.parse import unquote

import svir

OPENAI = "https://api.openai.com/v1"
# Where these servers listen unless told otherwise: the documentation of each.
USUAL_PORTS = {1234: "LM Studio", 8080: "llama.cpp", 11434: "Ollama", 8000: "vLLM"}
NO_SERVER = (
    "which server? Give its base URL, or set OPENAI_BASE_URL. On this machine that is usually: "
    + ", ".join(f"{name} http://localhost:{port}" for port, name in USUAL_PORTS.items())
)


class Usage(Exception):
    """Wrong use of a command; the message says what to change."""


# -- Arguments ------------------------------------------------------------------------------------


def add_server(parser: argparse.ArgumentParser, *, positional: bool = False) -> None:
    """Which server, which key, and how to get there."""
    server = parser.add_argument_group(
        "the server",
        "A key is read from a file or a variable. There is no option that takes the key itself:\n"
        "other users of the machine can read a command's arguments, and the shell keeps them.",
    )
    if positional:
        server.add_argument("url", metavar="URL", nargs="?", help="the same as --base-url")
    server.add_argument(
        "--record", metavar="FILE", help="keep what is sent and received (svir_ext.record)"
    )
    server.add_argument("--base-url", metavar="URL", help="default: OPENAI_BASE_URL")
    server.add_argument("--key-file", metavar="FILE", help="read the API key from a file")
    server.add_argument(
        "--key-env",
        metavar="NAME",
        help="read the API key from this variable; default: OPENAI_API_KEY, but only for the "
        "server of OPENAI_BASE_URL (unset: OpenAI's), so that no other server is given it",
    )
    server.add_argument(
        "--header",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=_pair,
        help="send this header too; not for secrets, see above",
    )
    server.add_argument(
        "--query",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=_pair,
        help="add this to the query of every URL, as api-version=... for Azure",
    )
    flag = {"action": "store_true"}
    server.add_argument("--exact-url", **flag, help="use the URL as it is: add no /v1")  # type: ignore[arg-type]
    server.add_argument("--allow-http", **flag, help="plain http to another machine")  # type: ignore[arg-type]
    for name in ("--key", "--api-key"):
        server.add_argument(name, action=_NoKey, help=argparse.SUPPRESS)
    _add_connection(parser)
    add_reading(parser)


def _add_connection(parser: argparse.ArgumentParser) -> None:
    way = parser.add_argument_group("the way there")
    proxy = way.add_mutually_exclusive_group()
    proxy.add_argument(
        "--proxy",
        metavar="URL",
        help="an HTTP proxy, as http://host:3128; with a password: --proxy-env",
    )
    proxy.add_argument(
        "--proxy-env",
        metavar="NAME",
        help="read the proxy's URL from this variable, as HTTPS_PROXY; none is taken unasked",
    )
    way.add_argument("--cafile", metavar="FILE", help="trust these CA certificates as well")
    way.add_argument("--unix-socket", metavar="PATH", help="connect to this socket")
    for name, default, what in (
        ("connect", 10.0, "to connect"),
        ("idle", 300.0, "without a byte from the server"),
        ("total", None, "in all"),
    ):
        way.add_argument(
            f"--{name}-timeout",
            metavar="SECONDS",
            type=float,
            default=default,
            help=f"the most {what}; default: {default or 'no limit'}",
        )


def add_reading(parser: argparse.ArgumentParser) -> None:
    """What svir.Client takes as strict=, accept= and think=."""
    from svir_ext import dialects

    reading = parser.add_argument_group(
        "how answers are read",
        "docs/decoding.md says what each accepts; `svir check` what is needed.",
    )
    reading.add_argument("--lenient", action="store_true", help="skip unknown input: strict=False")
    reading.add_argument(
        "--accept",
        metavar="NAME",
        action="append",
        default=[],
        choices=sorted(svir.ACCEPT),
        help=f"read a deviation that could hide a fault: {', '.join(sorted(svir.ACCEPT))}",
    )
    reading.add_argument(
        "--dialect",
        metavar="NAME",
        type=lambda name: name.upper().replace("-", "_"),
        choices=dialects.__all__,
        help=f"what a known server needs: {', '.join(dialects.__all__)}",
    )
    reading.add_argument(
        "--think", choices=("split", "keep", "open"), default="split", help="what <think> is"
    )


def add_request(parser: argparse.ArgumentParser) -> None:
    """What is asked of the model."""
    asked = parser.add_argument_group("what is asked")
    asked.add_argument("--model", metavar="NAME", help="default: the first that can chat")
    asked.add_argument("--system", metavar="TEXT", help="the system prompt")
    for name, what in (
        ("image", "send this picture (PNG, JPEG, GIF, WebP)"),
        ("file", "send this text file (UTF-8)"),
    ):
        asked.add_argument(
            f"--{name}",
            metavar="PATH",
            action="append",
            default=[],
            help=f"{what}; may be repeated",
        )
    asked.add_argument("--max-tokens", metavar="N", type=int, help="the most tokens of an answer")
    asked.add_argument("--temperature", metavar="T", type=float)
    asked.add_argument("--top-p", metavar="P", type=float)
    asked.add_argument("--stop", metavar="TEXT", action="append", help="stop before this text")
    asked.add_argument("--seed", metavar="N", type=int)
    asked.add_argument(
        "--reasoning-effort",
        choices=("none", "minimal", "low", "medium", "high", "xhigh"),
        help="none turns reasoning off where the server can",
    )
    asked.add_argument(
        "--extra", metavar="JSON", type=_object, help="other fields, as '{\"min_p\": 0.05}'"
    )


class _NoKey(argparse.Action):
    """Ends the command without repeating the key."""

    def __call__(self, parser: argparse.ArgumentParser, *rest: Any) -> None:
        parser.error("a key is not taken as an argument, see --help: use --key-file or --key-env")


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError("takes NAME=VALUE")  # not the text, which may be secret
    return name.strip(), value.strip()


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError('takes a JSON object, as {"min_p": 0.05}')
    return value


# -- What they make -------------------------------------------------------------------------------


class Server(NamedTuple):
    """Where to ask, with what, and where both were read. `key_note`: why no key is sent."""

    url: str
    url_from: str
    key: svir.Secret | None
    key_from: str
    key_note: str
    proxy: svir.Secret | None
    proxy_from: str
    secrets: tuple[str, ...]

    def hide(self, text: str) -> str:
        """A server's words without what we sent it in confidence, should it repeat them."""
        for secret in self.secrets:
            text = text.replace(secret, "[withheld]")
        return text


def server(arguments: argparse.Namespace) -> Server:
    """Raises `Usage` or `svir.ConfigError`."""
    given = getattr(arguments, "url", None)
    if given and arguments.base_url:
        raise Usage("give the base URL once: as URL or as --base-url")
    url, url_from = given or arguments.base_url, ""
    if not url:
        url, url_from = os.environ.get("OPENAI_BASE_URL", ""), ", from OPENAI_BASE_URL"
    if not url.strip():
        raise Usage(NO_SERVER)
    key, key_from, key_note = _key(arguments, url)
    proxy, proxy_from = _proxy(arguments)
    values = [] if key is None else [key.reveal()]
    values += _parts_of_proxy(proxy) + [value for _, value in arguments.header]
    secrets = sorted({value for value in values if len(value) > 3}, key=len, reverse=True)
    return Server(url, url_from, key, key_from, key_note, proxy, proxy_from, tuple(secrets))


def _key(arguments: argparse.Namespace, url: str) -> tuple[svir.Secret | None, str, str]:
    if arguments.key_file and arguments.key_env:
        raise Usage("give --key-file or --key-env, not both")
    if arguments.key_file:
        return svir.Secret.from_file(arguments.key_file), f"the file {arguments.key_file}", ""
    if arguments.key_env:
        return svir.Secret.from_env(arguments.key_env), arguments.key_env, ""
    if not os.environ.get("OPENAI_API_KEY", "").strip():
        return None, "", "OPENAI_API_KEY is not set"
    meant_for = os.environ.get("OPENAI_BASE_URL", "").strip() or OPENAI
    if _origin(url) == _origin(meant_for):
        return svir.Secret.from_env("OPENAI_API_KEY"), "OPENAI_API_KEY", ""
    note = (
        f"OPENAI_API_KEY is set, but for {_origin(meant_for)}: --key-env OPENAI_API_KEY sends it"
    )
    return None, "", note


def _origin(url: str) -> str:
    """Scheme, host and port; not what else a URL may hold."""
    match = re.match(r"\s*([a-z]+)://(?:[^/?#@]*@)?([^/?#@]*)", url.lower())
    if match is None:
        return "another server"
    scheme, place = match.groups()
    port = {"http": ":80", "https": ":443"}.get(scheme, "")
    return f"{scheme}://{place[: -len(port)] if port and place.endswith(port) else place}"


def _proxy(arguments: argparse.Namespace) -> tuple[svir.Secret | None, str]:
    if arguments.proxy_env:
        return svir.Secret.from_env(arguments.proxy_env), arguments.proxy_env
    if arguments.proxy:
        return svir.Secret(arguments.proxy), "--proxy"
    return None, ""


def _parts_of_proxy(proxy: svir.Secret | None) -> list[str]:
    match = None if proxy is None else re.match(r"\w+://([^/@]*)@", proxy.reveal())
    if match is None:
        return []
    words = match.group(1)
    plain = unquote(words)
    coded = base64.b64encode(plain.encode("utf-8", "replace")).decode("ascii")
    return [words, plain, coded, words.partition(":")[2], plain.partition(":")[2]]


def backend_options(arguments: argparse.Namespace, place: Server) -> dict[str, Any]:
    """For `svir.HttpBackend`."""
    return {
        "proxy": place.proxy,
        "cafile": arguments.cafile,
        "unix_socket": arguments.unix_socket,
    }


def client_options(arguments: argparse.Namespace, place: Server) -> dict[str, Any]:
    """For `svir.Client`, but for those of the backend."""
    return {
        "api_key": place.key,
        "headers": dict(arguments.header) or None,
        "query": dict(arguments.query) or None,
        "exact_url": arguments.exact_url,
        "allow_http": arguments.allow_http,
        "strict": not arguments.lenient,
        "accept": accepted(arguments),
        "think": arguments.think,
        "connect_timeout": arguments.connect_timeout,
        "idle_timeout": arguments.idle_timeout,
        "total_timeout": arguments.total_timeout,
    }


def accepted(arguments: argparse.Namespace) -> frozenset[str]:
    """The names of --accept and of --dialect."""
    from svir_ext import dialects

    named = getattr(dialects, arguments.dialect) if arguments.dialect else ()
    return frozenset(arguments.accept) | frozenset(named)


def client(arguments: argparse.Namespace, place: Server) -> svir.Client:
    """Raises `svir.ConfigError`."""
    given, backend = client_options(arguments, place), backend_options(arguments, place)
    if arguments.record is None:
        return svir.Client(place.url, **given, **backend)
    from svir_ext.record import Recorder

    return svir.Client(
        place.url, **given, backend=Recorder(arguments.record, svir.HttpBackend(**backend))
    )


def request(
    arguments: argparse.Namespace, model: str, messages: list[Any], **more: Any
) -> svir.Request:
    """Only what was given is set. Raises `svir.ConfigError`."""
    names = "system max_tokens temperature top_p stop seed reasoning_effort extra".split()
    given = {name: getattr(arguments, name) for name in names}
    fields = {name: value for name, value in given.items() if value is not None}
    return svir.Request(model, messages, **{**fields, **more})


def parts(text: str, images: list[str], files: list[str]) -> list[Any]:
    """What a user's message is made of: the text first, then files and pictures."""
    found: list[Any] = [text] if text else []
    return found + [svir.TextFile(path) for path in files] + [svir.Image(path) for path in images]


def chosen_model(arguments: argparse.Namespace, client: svir.Client) -> str:
    """--model, or the first that can chat. Raises what `list_models` does, and `Usage`."""
    if arguments.model:
        return str(arguments.model)
    from svir_ext.models import chat_models

    listed = client.list_models()
    for model in chat_models(listed) or listed:
        return model.id
    raise Usage("the server lists no model: load one there, or name one with --model")
