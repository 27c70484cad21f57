"""`svir check`: from the URL to a streamed answer, a step at a time, and what to change."""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import re
import sys
import tempfile
from datetime import datetime, timezone
from typing import Any, Mapping, NoReturn

import svir

from . import BROKEN, INTERRUPTED, NO_ANSWER, WHOLE, WRONG_USE, answers, options, probe, wire
from .terminal import Screen

QUESTION = "Answer with one word: ready"
MOST_TOKENS = 256
SHOWN = 4000  # bytes of the answer that a report holds
PATIENCE = 5.0  # seconds for a connection that is only looked at
A_PAGE = (
    "a web page answered, not a model server: is it the right host and port? A proxy or a login"
    " page may stand in between"
)

# Endings of a path that belong to other APIs, and whose they are.
OTHER_APIS = (
    (r"/api/(?:chat|generate|tags|embed|embeddings|show|ps)", "Ollama's own API"),
    (r"/v1/messages", "Anthropic's API"),
    (r"(?:/v1)?/(?:responses|completions|embeddings)", "another API of OpenAI's"),
    (r"/(?:completion|health|props)", "llama.cpp's own API"),
)


def check(arguments: argparse.Namespace, place: options.Server, screen: Screen) -> int:
    """Say what works and what to change; the exit code is what `svir ask` would have."""
    steps = Check(arguments, place, screen)
    try:
        with _folder() as folder:
            steps.run(folder)
    except KeyboardInterrupt:
        steps.fail(INTERRUPTED)
    if arguments.json:
        screen.line(answers.to_json(steps.report()))
    else:
        steps.conclude()
    return steps.code


def _folder() -> tempfile.TemporaryDirectory[str]:
    """For the recording of the stream."""
    try:
        return tempfile.TemporaryDirectory(prefix="svir-check-")
    except OSError as error:
        raise options.Usage(f"no folder for a temporary file, TMPDIR names one: {error}") from None


class _Stop(Exception):
    """No later step can be taken."""


class _Watched:
    """A backend that keeps status, headers and the beginning of the last answer."""

    def __init__(self, backend: svir.Backend) -> None:
        self._backend = backend
        self.status: int | None = None
        self.headers: Mapping[str, str] = {}
        self.body = bytearray()

    def send(self, request: svir.HttpRequest) -> svir.HttpResponse:
        self.status, self.headers, self.body = None, {}, bytearray()
        response = self._backend.send(request)
        self.status, self.headers = response.status, response.headers
        return _Kept(response, self.body)

    def close(self) -> None:
        getattr(self._backend, "close", lambda: None)()


class _Kept:
    """An answer whose beginning is kept as it is read."""

    def __init__(self, response: svir.HttpResponse, body: bytearray) -> None:
        self._response, self._body = response, body
        self.status, self.headers, self.close = response.status, response.headers, response.close

    def read(self, size: int, timeout: float | None) -> bytes:
        data = self._response.read(size, timeout)
        self._body += data[: max(0, wire.PAGE - len(self._body))]
        return data


class Check:
    """One run: what was found so far, and what follows from it."""

    def __init__(
        self, arguments: argparse.Namespace, place: options.Server, screen: Screen
    ) -> None:
        self.arguments, self.given, self.screen = arguments, place, screen
        self.backend = options.backend_options(arguments, place)
        self.options = options.client_options(arguments, place)
        self.steps: list[dict[str, Any]] = []
        self.changes: list[str] = []
        self.code: int = WHOLE
        self.base_url = ""
        self.models: list[svir.Model] = []
        self.list_status: int | None = None
        self.data: str | None = None
        self.readable = False  # whether any settings read the answer to its end
        self.fitting: dict[str, str] = {}  # arguments of svir.Client, as they are written

    # What is found

    def step(self, name: str, state: str, *found: str, **data: Any) -> None:
        """`state` is "ok", "bad", "note", or "-" for what there is not."""
        said = [self.given.hide(line) for line in found if line]
        self.steps.append({"step": name, "state": state, "found": said, **data})
        if not self.arguments.json:
            for number, line in enumerate(said):
                head = f"{name:<8} {state:<4}" if number == 0 else " " * 13
                self.screen.line(f"{head} {line}")

    def change(self, text: str) -> None:
        text = self.given.hide(text)
        if text not in self.changes:
            self.changes.append(text)

    def fail(self, code: int) -> None:
        """The first failure is the one that counts."""
        if self.code == WHOLE or code == INTERRUPTED:
            self.code = code

    def stop(self, code: int) -> NoReturn:
        self.fail(code)
        raise _Stop

    # The steps

    def run(self, folder: str) -> None:
        with contextlib.suppress(_Stop):
            self.check_url()
            self.place = probe.split(self.base_url)
            self.check_proxy()
            self.check_address()
            self.check_http()
            model = self.check_models()
            self.check_stream(model, folder)

    def check_url(self) -> None:
        given = self.given.url.strip()
        try:
            self.base_url = self._base_url(given)
        except svir.ConfigError as error:
            self.step("url", "bad", str(error))
            self.change(_with_flags(str(error)))
            if "allow_http" not in str(error):
                self.stop(WRONG_USE)
            self.fail(WRONG_USE)
            self.options.update(allow_http=True, api_key=None, headers=None, query=None)
            if self.given.key is not None:
                self.change("to find out the rest, this went on without the key")
            self.base_url = self._base_url(given)
            return
        used = f"svir asks {self.base_url}/chat/completions{self.given.url_from}"
        other = self._other_api()
        if other:
            path, whose, base = other
            base = self._base_url(base)  # as the client at the end has it
            self.step("url", "bad", used, f"{path} is {whose}; this goes on with {base}")
            self.change(f"the base URL is {base}")
            self.fail(WRONG_USE)
            self.base_url = base
            return
        pasted = re.search(r"/(chat/completions|models)/*\Z", given)
        more = f"the URL of an endpoint: the base URL is {self.base_url}" if pasted else ""
        self.step("url", "ok", used, more, base_url=self.base_url)

    def _base_url(self, url: str) -> str:
        with svir.Client(url, **{**self.options, **self.backend}) as client:
            return client.base_url

    def _other_api(self) -> tuple[str, str, str] | None:
        """A path of another API: the path, whose it is, and the base URL to try."""
        if self.arguments.exact_url:
            return None
        url = re.sub(r"/v1\Z", "", self.base_url) if "/v1/" not in self.base_url else self.base_url
        for pattern, whose in OTHER_APIS:
            match = re.search(pattern + r"/*\Z", url)
            if match is not None:
                return match.group(), whose, url[: match.start()]
        return None

    def check_proxy(self) -> None:
        if self.given.proxy is not None:
            shown = re.sub(r"//[^/]*@", "//", self.given.proxy.reveal())
            self.step("proxy", "ok", f"{shown}, from {self.given.proxy_from}", proxy=shown)
            return
        names = self._proxy_variables()
        more = f"{names[0]} is set, and svir takes no proxy from the environment" if names else ""
        self.step("proxy", "-", "none is used", more, variables=names)

    def _proxy_variables(self) -> list[str]:
        """The variables that would give other programs a proxy for this URL."""
        from urllib.request import proxy_bypass

        names = [f"{self.place.scheme}_proxy", "all_proxy"]
        found = [each for name in names for each in (name, name.upper()) if os.environ.get(each)]
        exempt = proxy_bypass(f"{self.place.host}:{self.place.port}")
        return [] if exempt or self.backend["unix_socket"] else found

    def check_address(self) -> None:
        try:
            tried = self._try_addresses()
        except svir.Error as error:
            self.step("address", "bad", str(error))
            self.change("is the host's name right? Is a proxy needed (--proxy, proxy=)?")
            self._name_proxies()
            self.stop(NO_ANSWER)
        lines = [
            f"{each.address}: {each.failed}"
            if each.failed
            else f"{each.address}: connected in {each.seconds * 1000:.1f} ms"
            for each in tried
        ]
        data = [each._asdict() for each in tried]
        if all(each.failed for each in tried):
            self.step("address", "bad", *lines, addresses=data)
            self._no_connection([each.failed.lower() for each in tried])
            self.stop(NO_ANSWER)
        some = any(each.failed for each in tried)
        self.step("address", "note" if some else "ok", *lines, addresses=data)

    def _try_addresses(self) -> list[probe.Tried]:
        timeout = min(self.arguments.connect_timeout, PATIENCE)
        if self.arguments.unix_socket:
            return [probe.unix(self.arguments.unix_socket, timeout)]
        if self.given.proxy is None:
            return probe.addresses(self.place.host, self.place.port, timeout)
        url = re.sub(r"//[^/]*@", "//", self.given.proxy.reveal()).rstrip("/")
        proxy = probe.split(url)
        return probe.addresses(proxy.host, proxy.port, timeout)

    def _no_connection(self, failed: list[str]) -> None:
        what = f"port {self.place.port}"
        if any("refused" in each for each in failed):
            self.change(f"nothing listens on {what}: start the server, or name its port")
        else:
            self.change("no connection: is the host right, and does a firewall stand between?")
        if self.given.proxy is None and not self.arguments.unix_socket:
            for url in probe.other_ports(self.place):
                self.change(f"a server answers at {url}")
        self._name_proxies()

    def _name_proxies(self) -> None:
        for name in self._proxy_variables()[:1] if self.given.proxy is None else ():
            self.change(f"{name} is set: try --proxy-env {name}, in a program proxy=")

    # HTTP, and TLS below it

    def check_http(self) -> None:
        """List the models: all that stands between here and an answer shows at once."""
        seen = probe.Tls()
        if self.place.scheme == "https":
            seen = probe.tls(self.place, self.backend, PATIENCE)
            if not seen.version:  # svir would only wait longer
                self._check_tls(seen, svir.ConnectError(seen.failed))
        watched = _Watched(svir.HttpBackend(**self.backend))
        error: svir.Error | None = None
        try:
            with self._client(watched) as client:
                self.models = client.list_models()
        except svir.Error as failed:
            error = failed
        self.list_status = watched.status
        self._check_tls(seen, error)
        self._judge_http(watched, error)

    def _client(self, backend: svir.Backend, **more: Any) -> svir.Client:
        given = {**self.options, "exact_url": True, **more}
        return svir.Client(self.base_url, **given, backend=backend)

    def _check_tls(self, seen: probe.Tls, error: svir.Error | None) -> None:
        if self.place.scheme == "http":
            return self.step("tls", "-", "none: plain http")
        lines, found = _certificate_lines(seen), seen.certificate
        trusted = probe.trusted(self.arguments.cafile)
        lines.append(f"trusted: {', '.join(trusted)}")
        data = {"version": seen.version, "trusted": trusted}
        if found is not None:
            data.update(subject=found.subject, issuer=found.issuer, names=found.names)
            data["ends"] = found.ends.isoformat()
        if isinstance(error, svir.ConnectError):
            reason = str(error.args[0]).partition(". Trusted:")[0]
            self.step("tls", "bad", reason, *lines, **data)
            self._mend_tls(seen, str(error))
            self.stop(NO_ANSWER)
        self.step("tls", "ok", *lines, **data)

    def _mend_tls(self, seen: probe.Tls, said: str) -> None:
        found, now = seen.certificate, datetime.now(timezone.utc)
        if found is None and self.given.proxy is not None:
            why = (
                "asks for a password: --proxy-env, in a program proxy="
                if " 407 " in said
                else "does not let this through"
            )
            self.change(f"the proxy {why}; or go without it")
        elif found is None:
            plain = self.place._replace(scheme="http")
            if _speaks_http(plain, self.backend):
                self.change(f"port {self.place.port} speaks plain http: {plain.origin}")
            else:
                self.change("no TLS there: is it the right port, and an https server?")
        elif not found.begins <= now <= found.ends:
            self.change(
                f"the certificate ran out on {found.ends:%Y-%m-%d}: renew it on the server"
            )
        elif "match" in said or "hostname" in said.lower():
            self.change(
                f"the certificate is for {', '.join(found.names)}: use that name in the URL"
            )
        else:
            self.change(
                f"nothing here trusts the issuer {found.issuer}: give its CA certificate with"
                " --cafile FILE, in a program cafile="
            )

    def _judge_http(self, watched: _Watched, error: svir.Error | None) -> None:
        shown = f"GET {self.base_url}/models"
        server = watched.headers.get("server")
        by = f", from {server}" if server else ""
        answer = f"{shown}: {watched.status}{by}"
        data = {"status": watched.status, "server": server}
        if error is None:
            self.step("http", "ok", answer, **data)
            self._ask_without_key()
            return
        said = [] if not error.server_message else [f"it says: {error.server_message}"]
        why = f"{shown}: {error.args[0]}" if watched.status is None else answer
        if watched.status is not None and 200 <= watched.status < 300:
            why, page = _no_list(f"{shown}: {watched.status}", watched, error)
            why, said = why + by, [*page, *said]
        if error.kind == "unauthorized":
            self.step("http", "ok", why, *said, **data)
            return
        self.step("http", "bad", why, *said, **data)
        if watched.status is not None and 300 <= watched.status < 400:
            self._follow(watched.headers.get("location", ""))
        elif self._find_base(error):
            return
        elif self._wants_tls(watched.status):
            self.change(
                f"port {self.place.port} speaks TLS: {self.place._replace(scheme='https').origin}"
            )
        elif watched.status is not None and self.arguments.model:
            self.step("models", "note", f"no list; {self.arguments.model} is asked all the same")
            return
        else:
            self._mend_http(watched, error)
        self.stop(NO_ANSWER)

    def _wants_tls(self, status: int | None) -> bool:
        """Whether the port that was asked in plain http speaks TLS: it breaks off, or says 400."""
        if self.place.scheme != "http" or status not in (None, 400):
            return False
        return bool(probe.tls(self.place, self.backend, PATIENCE).version)

    def _mend_http(self, watched: _Watched, error: svir.Error) -> None:
        if watched.status is None:
            self.change(
                f"port {self.place.port} does not answer as an HTTP server: is it the right one?"
            )
        elif error.retryable:
            self.change("the server failed or is busy: look at its log, and try again")
        elif isinstance(error, svir.Truncated):
            self.change(_why_not(error))
        elif watched.status == 200 and wire.is_page(watched.headers):
            self.change(A_PAGE)
        else:
            self.change(
                "the server lists no models at this base URL: is it the right one? If it has no"
                " list, name a model with --model"
            )

    def _follow(self, location: str) -> None:
        """A redirect is not followed (H9): say what the base URL would be."""
        target = re.sub(r"//[^/@]*@", "//", re.split(r"[?#]", location)[0])
        if target.startswith("/"):
            target = self.place.origin + target
        base = re.sub(r"/models/*\Z", "", target)
        self.change(f"the server redirects to {target or 'nowhere'}: give {base} as the base URL")

    def _find_base(self, error: svir.Error) -> bool:
        """Another base URL of the same server that lists models; the check goes on with it."""
        if not isinstance(error, (svir.ProtocolError, svir.Unsupported)) or error.retryable:
            return False
        known = {**self.options, **self.backend, "exact_url": True}
        for base in _candidates(self.place):
            if probe.lists_models(base, known, PATIENCE) is None:
                continue
            with svir.Client(base, **{**known, "exact_url": False}) as client:
                exact = client.base_url != base
            with_exact = _with_flags(", with exact_url=True") if exact else ""
            self.change(f"the base URL is {base}{with_exact}")
            self.fail(NO_ANSWER)
            self.base_url = base
            if exact:
                self.fitting["exact_url"] = "True"
            with self._client(svir.HttpBackend(**self.backend)) as client:
                self.models = client.list_models()
            self.step("http", "ok", f"GET {base}/models: 200", status=200)
            self.list_status = 200
            return True
        return False

    def _ask_without_key(self) -> None:
        """Whether the list needs the key that was sent."""
        self.key_needed = False
        if self.given.key is not None:
            watched = _Watched(svir.HttpBackend(**self.backend))
            with contextlib.suppress(svir.Error), self._client(watched, api_key=None) as client:
                client.list_models()
            self.key_needed = watched.status in (401, 403)

    key_needed = False

    # The answer

    def check_models(self) -> str:
        from svir_ext.models import chat_models

        wanted = self.arguments.model
        if not self.models:
            if self.list_status in (401, 403) and not wanted:
                self._judge_key(self.list_status, None)
                self.stop(NO_ANSWER)
            if wanted:
                return str(wanted)
            self.step("models", "bad", "the list is empty")
            self.change("load a model in the server, or name one with --model")
            self.stop(NO_ANSWER)
        names = [model.id for model in self.models]
        model = str(wanted or (chat_models(self.models) or self.models)[0].id)
        found = f"{len(names)} listed: {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}"
        if model in names:
            self.step("models", "ok", found, f"{model} is asked", models=names, asked=model)
        else:
            import difflib

            near = difflib.get_close_matches(model, names, 3, 0.4)
            hint = f"; near it: {', '.join(near)}" if near else ""
            self.step("models", "note", found, f"{model} is not among them{hint}", models=names)
            self.change(f"{model} is not among the listed models{hint}")
        return model

    def check_stream(self, model: str, folder: str) -> None:
        """Ask for a word, and keep every byte that comes."""
        from svir_ext import record

        path = self.arguments.record or os.path.join(folder, "check.jsonl")
        recorder = record.Recorder(path, svir.HttpBackend(**self.backend))
        # Read as far as can be: what a stricter reader needs is found out from the recording.
        lenient = {"strict": False, "accept": svir.ACCEPT, "include_usage": True}
        with self._client(recorder, **lenient) as client:
            completion, error = answers.read(client.stream(self._request(model)), lambda _: None)
        if not recorder.files:
            self.step("stream", "bad", *(recorder.failures or ["nothing was sent"]))
            self.stop(NO_ANSWER)
        recording = record.load(recorder.files[-1])
        if len(recorder.files) > 1:
            self.refused_options = True
        self._judge_key(recording.status, error)
        self._judge_stream(recording, completion, error)
        self._draw(recording)

    refused_options = False

    def _request(self, model: str) -> svir.Request:
        arguments = self.arguments
        words = [] if arguments.image or arguments.file else [QUESTION]
        parts = [*words, *options.parts("", arguments.image, arguments.file)]
        most = MOST_TOKENS if arguments.max_tokens is None else arguments.max_tokens
        return options.request(arguments, model, [svir.User(*parts)], max_tokens=most)

    def _judge_key(self, status: int | None, error: svir.Error | None) -> None:
        key, refused = self.given.key, status in (401, 403)
        sent = self.options["api_key"] is not None
        if not refused:
            if key is None or not sent:
                self.step("key", "-", "none was sent, and none is asked for")
            else:
                more = "" if self.key_needed else "; whether it is looked at is not known"
                self.step("key", "ok", f"from {self.given.key_from}: accepted{more}")
            return
        said = error.server_message if error is not None and error.server_message else ""
        said = f"the server says: {said}" if said else ""
        if sent:
            self.step("key", "bad", f"from {self.given.key_from}: rejected with {status}", said)
            self.change(
                f"the key from {self.given.key_from} is not the server's, or may not do this:"
                " give another with --key-file or --key-env, in a program api_key="
            )
        else:
            self.step("key", "bad", f"none was sent, and the server asks for one ({status})", said)
            self.change(
                "give the key: --key-file or --key-env, in a program api_key="
                f" ({self.given.key_note})"
            )

    def _judge_stream(
        self, recording: Any, completion: svir.Completion | None, error: svir.Error | None
    ) -> None:
        told = wire.facts(recording)
        kind = told["content_type"] or "no content type"
        head = (
            f"POST {self.base_url}/chat/completions: {recording.status}, {kind}, {told['framing']}"
        )
        if recording.status is None or not 200 <= recording.status < 300:
            return self._refused(head, recording, error)
        whole = completion is not None or (error is not None and error.partial is not None)
        answer = completion or (error.partial if error is not None else None) or svir.Completion()
        lines = [
            head,
            f"{answers.count(told['chunks'], 'chunk')}, {told['bytes']} bytes;"
            f" {answers.measured(answer)}",
        ]
        if told["web_page"]:
            lines[1:] = _page_lines(wire.start(recording))  # no token is to be looked for
        elif error is not None:
            lines.append(str(error.args[0]))
            lines += [f"the server says: {error.server_message}"] if error.server_message else []
        more = _timing(answer)
        self.step("stream", "ok" if completion is not None else "bad", *lines, **told, **more)
        if isinstance(error, svir.Cancelled):
            self.stop(INTERRUPTED)
        if isinstance(error, (svir.ServerError, svir.ContextOverflow, svir.ContentFiltered)):
            self.change("the server failed in the middle of its answer: its words above say why")
            self.stop(answers.exit_code(None, error))
        if whole:
            self.data = _start(recording)
            self._judge_reading(recording, told)

    def _refused(self, head: str, recording: Any, error: svir.Error | None) -> None:
        said = getattr(error, "server_message", None)
        why = "" if error is None else str(error.args[0])
        at_key = recording.status in (401, 403)  # its words were told there
        words = f"the server says: {said}" if said and not at_key else ""
        self.step("stream", "bad", head, why, words, status=recording.status)
        if isinstance(error, svir.Cancelled):
            self.stop(INTERRUPTED)
        if recording.status == 404:
            self.change("is the model's name right? `svir models` lists them. And the base URL?")
        elif not at_key:
            self.change("the server refused the request or failed: its words above say why")
        self.stop(NO_ANSWER)

    def _judge_reading(self, recording: Any, told: dict[str, Any]) -> None:
        reading = wire.least(recording, self.arguments.think)
        asked = recording.decode(
            strict=self.options["strict"],
            accept=self.options["accept"],
            think=self.arguments.think,
        )
        end = reading.decoded.completion or reading.decoded.error
        quirks = list(() if end is None else end.quirks)
        state = "ok" if asked.completion is not None else "bad"
        lines = [_how(reading, refused=state == "bad")]
        lines += [] if told["web_page"] else wire.sentences(told)
        lines += [
            f"quirk {name}: {wire.QUIRKS.get(name, 'see docs/decoding.md')}" for name in quirks
        ]
        if self.refused_options:
            lines.append("it refused an optional field at first; svir left that out")
        plain = reading.strict and not reading.accept and reading.decoded.completion is not None
        data = {"strict": plain, "accept": sorted(reading.accept), "quirks": quirks}
        self.step("reading", state, *lines, lenient=not reading.strict, **data)
        if asked.completion is None:
            self.fail(BROKEN if asked.error is None else answers.exit_code(None, asked.error))
        self.readable = reading.decoded.completion is not None
        if self.readable:
            self._mend_reading(reading)
        else:
            self.change(A_PAGE if told["web_page"] else _why_not(reading.decoded.error))

    def _mend_reading(self, reading: wire.Reading) -> None:
        if reading.accept:
            self.fitting["accept"] = _as_set(reading.accept)
            if not reading.accept <= self.options["accept"]:
                self.change(_what_accept_takes(reading.accept))
        if not reading.strict:
            self.fitting["strict"] = "False"
            if self.options["strict"]:
                self.change(
                    "strict=False reads it (here --lenient), and skips what it cannot read"
                )

    def _draw(self, recording: Any) -> None:
        if self.arguments.svg:
            answers.draw(recording, self.arguments.svg)
            if not self.arguments.json:
                self.screen.note(f"drawn: {self.arguments.svg}")

    # The end

    def client_code(self) -> str:
        """The client that this server needs, as Python."""
        fields = {}
        if self.given.key is not None:
            fields["api_key"] = "..."
        for name in ("proxy", "cafile", "unix_socket"):
            if self.backend[name] is not None:
                fields[name] = "..." if name == "proxy" else answers.to_json(self.backend[name])
        if self.base_url.startswith("http:") and not self.place.is_here:
            fields["allow_http"] = "True"
        if self.arguments.exact_url:
            fields["exact_url"] = "True"
        if self.arguments.header:
            fields["headers"] = "{...}"
        if self.arguments.query:
            fields["query"] = "{...}"
        fields.update(self.fitting)
        said = "".join(f", {name}={value}" for name, value in fields.items())
        return f'svir.Client("{self.base_url}"{said})'

    def conclude(self) -> None:
        for number, text in enumerate(self.changes, 1):
            self.screen.line(f"{'change' if number == 1 else '':<8} {number}.   {text}")
        if self.readable:
            self.screen.line(f"{'client':<8} {'':<4} {self.client_code()}")
        if not self.changes and self.code == WHOLE:
            self.screen.line(f"{'change':<8} {'-':<4} nothing")

    def report(self) -> dict[str, Any]:
        """All of it, for a bug report: no key, no password, no query, no header's value."""
        whole: dict[str, Any] = {
            "svir": svir.__version__,
            "python": platform.python_version(),
            "platform": sys.platform,
            "at": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "exit_code": self.code,
            "steps": self.steps,
            "change": self.changes,
            "client": self.client_code() if self.readable else None,
            "answer": self.data,
        }
        return {name: _hidden(value, self.given) for name, value in whole.items()}


def _certificate_lines(seen: probe.Tls) -> list[str]:
    found = seen.certificate
    if found is None:
        return []
    days = (found.ends - datetime.now(timezone.utc)).days
    return [
        f"{seen.version}, certificate of {found.subject}, from {found.issuer}",
        f"for {', '.join(found.names[:5]) or 'no name'}; ends {found.ends:%Y-%m-%d} ({days} days)",
    ]


def _speaks_http(place: probe.Place, backend: Mapping[str, Any]) -> bool:
    way = {name: value for name, value in backend.items() if name != "cafile"}
    request = svir.HttpRequest(
        "GET", place.origin + "/", {}, connect_timeout=PATIENCE, idle_timeout=PATIENCE
    )
    try:
        svir.HttpBackend(**way).send(request).close()
    except svir.Error:
        return False
    return True


def _candidates(place: probe.Place) -> list[str]:
    """Base URLs of the same server that people mean: a shorter path, with and without /v1."""
    steps = place.path.strip("/").split("/") if place.path.strip("/") else []
    prefixes = ["".join(f"/{step}" for step in steps[:size]) for size in range(len(steps), -1, -1)]
    paths = [path for prefix in prefixes for path in (prefix, f"{prefix}/v1")]
    paths += ["/openai/v1", "/api/v1", "/v1"]
    unique = [path for path in dict.fromkeys(paths) if path != place.path]
    return [
        place.origin + path for path in unique[:10] if not re.search(r"/v1/(?:.*/)?v1\Z", path)
    ]


def _timing(completion: svir.Completion) -> dict[str, Any]:
    timing, usage = completion.timing, completion.usage
    return {
        "first_token": None if timing is None else round(timing.first_token, 3),
        "tokens_per_second": None if timing is None else timing.tokens_per_second,
        "tokens": None if usage is None else usage.completion_tokens,
        "finish_reason": completion.finish_reason,
    }


def _words(error: svir.Error | None) -> str:
    """Without the place, which is that of the replay."""
    return "" if error is None else str(error.args[0])


def _why_not(error: svir.Error | None) -> str:
    if isinstance(error, (svir.Truncated, svir.Disconnected, svir.Timeout)):
        return (
            "the answer did not come to its end: look at the server's log, and for a proxy with a"
            " time limit on the way"
        )
    return f"no setting of svir reads this answer: {_words(error)}. Report it, with --json"


def _no_list(head: str, watched: _Watched, error: svir.Error) -> tuple[str, list[str]]:
    """Why an answer with a 2xx is no list of models, and what the page is."""
    if not isinstance(error, svir.ProtocolError):  # cut, too slow, too long
        return f"{head}, {error.args[0]}", []
    kind = watched.headers.get("content-type", "").partition(";")[0].strip() or "no content type"
    lines = _page_lines(bytes(watched.body))[1:] if wire.is_page(watched.headers) else []
    return f"{head}, {kind}, and not a list of models", lines


def _page_lines(body: bytes) -> list[str]:
    title = wire.title(body)
    return ["a web page, and not an answer", *([f"its title: {title}"] if title else [])]


def _start(recording: Any) -> str:
    """How the answer begins, as it came; secrets are stars there already."""
    return b"".join(data for _, data in recording.pieces)[:SHOWN].decode(
        "utf-8", "backslashreplace"
    )


def _how(reading: wire.Reading, *, refused: bool) -> str:
    """`refused`: the settings that were given do not read it."""
    if reading.decoded.completion is None:
        return f"no setting reads it: {_words(reading.decoded.error)}"
    if reading.strict and not reading.accept:
        return "strict reads it"
    needed = [] if reading.strict else ["strict=False"]
    needed += [f"accept={_as_set(reading.accept)}"] if reading.accept else []
    return f"{'strict refuses it; ' if refused else ''}{' with '.join(needed)} reads it"


def _as_set(names: frozenset[str]) -> str:
    """As Python writes it, in order."""
    return "{" + ", ".join(f'"{name}"' for name in sorted(names)) + "}"


def _what_accept_takes(names: frozenset[str]) -> str:
    flags = " ".join(f"--accept {name}" for name in sorted(names))
    takes = "; ".join(wire.TAKES[name] for name in sorted(names))
    known = wire.dialects_with(names)
    more = f". Known to need it: {', '.join(known)}" if known else ""
    return f"accept={_as_set(names)} (here {flags}) takes {takes}{more}"


def _with_flags(text: str) -> str:
    """svir's words name the program's argument; the command's flag beside it."""
    for argument, flag in (("allow_http=True", "--allow-http"), ("exact_url=True", "--exact-url")):
        text = text.replace(argument, f"{argument} (here {flag})")
    return text


def _hidden(value: Any, place: options.Server) -> Any:
    if isinstance(value, str):
        home = os.path.join(os.path.expanduser("~"), "")  # it tells who somebody is
        return (
            place.hide(value).replace(home, "~" + os.sep) if len(home) > 2 else place.hide(value)
        )
    if isinstance(value, dict):
        return {name: _hidden(each, place) for name, each in value.items()}
    if isinstance(value, list):
        return [_hidden(each, place) for each in value]
    return value
