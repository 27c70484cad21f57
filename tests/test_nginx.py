"""The real nginx between svir and the real llama-server: what a gateway does to an answer."""

from __future__ import annotations

import os
import ssl
import threading
import time
from pathlib import Path
from typing import Any, Callable, Iterator

import pytest

import nginx as nginx_server
import svir
from harness import check_bytes_that_are_not_utf8
from llama_server import LlamaServer
from loopback import Peer, eventually, nothing_left, read_head, until_the_end
from nginx import Nginx

WHY_NOT = nginx_server.why_not()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))

KEY = "sk-for-nginx-only"
BIG = "x" * 20_000_000

# A place of the plain server for each thing that a gateway does.
BLOCKS = """
limit_req_zone $server_name zone=slow:64k rate=1r/m;
limit_req_status 429;
map $status $wait { 429 7; 503 "Wed, 21 Oct 2099 07:28:00 GMT"; }
proxy_http_version 1.1;
proxy_set_header Connection "";
proxy_buffering off;
proxy_ignore_headers X-Accel-Buffering;
client_max_body_size 64m;
proxy_hide_header X-Request-Id;
add_header X-Request-Id $request_id always;
add_header Retry-After $wait always;
ssl_certificate @tls@/localhost.pem;
ssl_certificate_key @tls@/localhost.pem;

server {
    listen 127.0.0.1:@port:plain@;
    server_name plain;
    location /live/ { proxy_pass @llama@/; }
    location /buffered/ { proxy_pass @llama@/; proxy_buffering on; }
    location /old/ { proxy_pass @llama@/; proxy_http_version 1.0; chunked_transfer_encoding off; }
    location /zipped/ { proxy_pass http://127.0.0.1:@port:zip@/; proxy_set_header Accept-Encoding gzip; }
    location /unzipped/ { proxy_pass http://127.0.0.1:@port:zip@/; }
    location /small/ { proxy_pass @llama@/; client_max_body_size 1k; }
    location /limited/ { proxy_pass @llama@/; limit_req zone=slow; }
    location /dead/ { proxy_pass http://127.0.0.1:@port:nobody@/; }
    location /silent/ { proxy_pass @silent@/; proxy_read_timeout 200ms; }
    location /patient/ { proxy_pass @silent@/; }
    location /401/ { return 401; }
    location /403/ { return 403; }
    location /404/ { return 404; }
    location /429/ { return 429; }
    location /500/ { return 500; }
    location /502/ { return 502; }
    location /503/ { return 503; }
    location /504/ { return 504; }
    location /page/ { return 200 "<!doctype html><title>Welcome</title>"; }
    location /here/ { rewrite ^/here/(.*) /live/$1 redirect; }
    location /slash { return 308 http://$http_host/live$request_uri; }
    location /away/ { return 307 http://localhost:@port:other@/v1/chat/completions?token=sekret; }
    location /secure/ { return 301 https://localhost:@port:tls@/v1/chat/completions; }
}
server { listen 127.0.0.1:@port:other@; server_name other; location / { proxy_pass @llama@; } }
server {
    listen 127.0.0.1:@port:zip@;
    access_log off;
    gzip on;
    gzip_types text/event-stream;
    gzip_min_length 0;
    gzip_proxied any;
    location / { proxy_pass @llama@; }
}
server {
    listen 127.0.0.1:@port:tls@ ssl;
    server_name tls;
    location /live/ { proxy_pass @llama@/; }
    location /buffered/ { proxy_pass @llama@/; proxy_buffering on; }
    location /old/ { proxy_pass @llama@/; proxy_http_version 1.0; chunked_transfer_encoding off; }
}
server {
    listen 127.0.0.1:@port:known@ ssl;
    server_name known;
    ssl_client_certificate @tls@/clients.pem;
    ssl_verify_client on;
    location /live/ { proxy_pass @llama@/; }
    location /buffered/ { proxy_pass @llama@/; proxy_buffering on; }
}
server {
    listen 127.0.0.1:@port:brief@;
    server_name brief;
    keepalive_timeout 1200ms;
    location /live/ { proxy_pass @llama@/; }
}
server {
    listen 127.0.0.1:@port:told@;
    server_name told;
    keepalive_timeout 60s 1s;
    location /live/ { proxy_pass @llama@/; }
}
"""  # noqa: E501


@pytest.fixture(scope="module")
def upstream(tiny_model: str) -> Iterator[LlamaServer]:
    """With context shift, [[loop]] never ends: no answer is whole before it is cut."""
    with LlamaServer(["--context-shift"], model=tiny_model) as server:
        yield server


class Front(Nginx):
    """nginx before `llama`, with what a client of each of its servers needs."""

    def __init__(self, llama: str, silent: str, folder: Path) -> None:
        super().__init__(BLOCKS, llama=llama, silent=silent, tls=str(folder))
        self.tls = folder
        self.cafile = str(folder / "root.pem")

    def client(self, place: str, **settings: Any) -> svir.Client:
        """`place` is "server/location"; the TLS servers are known by the tests' own root."""
        server, _, location = place.partition("/")
        secure = server in ("tls", "known")
        if server == "known":
            settings.setdefault("ssl_context", self.context("client"))
        elif secure:
            settings.setdefault("cafile", self.cafile)
        url = self.url(server, "localhost", "https" if secure else "http")
        return svir.Client(f"{url}/{location}", **settings)

    def context(self, certificate: str) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.cafile)
        context.load_cert_chain(str(self.tls / f"{certificate}.pem"))
        return context

    def finished(self, count: int) -> list[Any]:
        """The last `count` requests, once as many are in the log."""
        seen: list[Any] = []

        def all_there() -> bool:
            seen[:] = self.seen()[self.before :]
            return len(seen) >= count

        eventually(all_there)
        assert len(seen) == count, seen
        return seen

    before = 0  # requests of the tests before


@pytest.fixture(scope="module")
def silent() -> Iterator[Peer]:
    with Peer(until_the_end) as peer:
        yield peer


@pytest.fixture(scope="module")
def running(upstream: LlamaServer, silent: Peer, tls: Any) -> Iterator[Front]:
    with Front(upstream.base_url, silent.url, Path(tls.cafile).parent) as front:
        yield front


@pytest.fixture
def fresh(upstream: LlamaServer, silent: Peer, tls: Any) -> Iterator[Front]:
    """For a test that kills its worker: nginx's counts are wrong from then on."""
    with nothing_left(), Front(upstream.base_url, silent.url, Path(tls.cafile).parent) as front:
        yield front


@pytest.fixture
def front(running: Front) -> Iterator[Front]:
    with nothing_left():
        eventually(lambda: not running.is_busy())
        running.before = len(running.seen())
        yield running


def ask(script: str = "hello", **fields: Any) -> svir.Request:
    return svir.Request("tiny", f"[[{script}]]", **fields)


def refused(client: svir.Client, request: svir.Request | None = None) -> svir.Error:
    with client, pytest.raises(svir.Error) as caught:
        client.complete(request or ask())
    return caught.value


def facts(error: svir.Error) -> tuple[Any, ...]:
    return error.kind, error.status, error.retry_after, error.retryable, error.in_stream


# -- The answer is the same -----------------------------------------------------------------------

PLACES = [
    "plain/live",
    "plain/buffered",
    "plain/old",
    "plain/zipped",
    "plain/unzipped",
    "tls/live",
    "tls/old",
    "known/live",
]


def told(client: svir.Client, script: str) -> list[Any]:
    """The events of an answer; of the last one, what does not differ from call to call."""
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    with client.stream(ask(script, tools=[svir.Tool("get_weather", "", city)])) as stream:
        events: list[Any] = list(stream)
    whole = stream.completion
    calls = [(call.name, call.arguments) for call in whole.tool_calls]
    events[-1] = (whole.text, whole.reasoning, calls, whole.finish_reason, whole.usage)
    return [
        event.replace(id="") if isinstance(event, svir.ToolCallDelta) else event
        for event in events
    ]


@pytest.mark.parametrize("script", ["hello", "utf8", "think", "tool", "sse", "empty"])
@pytest.mark.parametrize("place", PLACES)
def test_the_events_are_the_servers(
    front: Front, upstream: LlamaServer, place: str, script: str
) -> None:
    with svir.Client(upstream.base_url) as direct, front.client(place) as client:
        assert told(client, script) == told(direct, script)


FORMS = {
    "plain/live": {"transfer-encoding": "chunked", "connection": "keep-alive"},
    "plain/buffered": {"transfer-encoding": "chunked", "connection": "keep-alive"},
    "plain/old": {"connection": "close"},
    "plain/zipped": {"transfer-encoding": "chunked", "content-encoding": "gzip"},
    "plain/unzipped": {"transfer-encoding": "chunked"},
    "tls/live": {"transfer-encoding": "chunked"},
    "tls/old": {"connection": "close"},
}


@pytest.mark.parametrize("place", FORMS)
def test_each_place_has_its_form(front: Front, place: str) -> None:
    """So that the test above is about what its places are named for."""
    with front.client(place) as client, client.send(ask()) as raw:
        headers = raw.headers
        data = b"".join(raw)
    assert headers["server"].startswith("nginx/")
    assert headers["content-type"] == "text/event-stream"
    names = ("transfer-encoding", "content-encoding", "content-length")
    form = FORMS[place]
    assert {name: headers.get(name) for name in names} == {name: form.get(name) for name in names}
    assert headers["connection"] == form.get("connection", "keep-alive")
    assert data.startswith(b"\x1f\x8b" if "content-encoding" in form else b"data: ")
    (line,) = front.finished(1)
    assert headers["x-request-id"] == line["request_id"]


@pytest.mark.parametrize("place", PLACES)
def test_quirks(front: Front, place: str) -> None:
    with front.client(place) as client:
        quirks = client.complete(ask()).quirks
    assert quirks == (("unasked-encoding",) if place == "plain/zipped" else ())


@pytest.mark.parametrize("place", PLACES)
def test_events_come_before_the_end_and_close_reaches_the_server(front: Front, place: str) -> None:
    """The server has one slot: it answers again only when nginx passed the end on."""
    with front.client(place) as client:
        stream = client.stream(ask("loop"))
        seen = [next(stream) for _ in range(5)]
        stream.close()
        with pytest.raises(svir.Cancelled) as caught:
            next(stream)
        assert caught.value.partial is not None
        text = caught.value.partial.text
        assert text == "".join(event.text for event in seen if event.type == "text")
        assert text.startswith("la lu li LOOPla")
        assert client.complete(ask()).text == "Hello, world!"


def test_closed_from_another_thread(front: Front) -> None:
    with front.client("tls/live") as client:
        stream = client.stream(ask("loop"))
        closer = threading.Timer(0.1, stream.close)
        closer.start()
        with pytest.raises(svir.Cancelled):
            stream.result()
        closer.join()


def test_models(front: Front) -> None:
    with front.client("known/live") as client:
        assert [model.id for model in client.list_models()] == ["tiny"]
    (line,) = front.finished(1)
    assert (line["request"], line["status"]) == ("GET /live/v1/models HTTP/1.1", "200")
    assert line["client"] == "CN=a known client"


# -- Cut answers ----------------------------------------------------------------------------------

CUT = [place for place in PLACES if place != "plain/unzipped"]


@pytest.mark.parametrize("place", CUT)
def test_a_worker_killed_in_mid_stream(fresh: Front, place: str) -> None:
    """Also where the body has no framing, and its end looks like any other."""
    with fresh.client(place) as client:
        stream = client.stream(ask("loop"))
        pieces = [next(stream)]
        os.kill(fresh.worker(), 9)
        with pytest.raises(svir.Truncated) as caught:
            pieces.extend(stream)
        error = caught.value
        assert facts(error) == ("truncated", None, None, False, True)
        assert error.partial is not None
        assert error.partial.finish_reason is None
        assert error.partial.text == "".join(getattr(piece, "text", "") for piece in pieces)
        with pytest.raises(svir.Truncated):  # and it stays so
            stream.result()
        eventually(fresh.is_up)
        assert client.complete(ask()).text == "Hello, world!"


@pytest.mark.parametrize("place", CUT)
def test_a_model_server_killed_in_mid_stream(
    start_llama: Callable[..., LlamaServer], silent: Peer, tls: Any, place: str
) -> None:
    server = start_llama("--context-shift")
    with Front(server.base_url, silent.url, Path(tls.cafile).parent) as front:
        with front.client(place) as client:
            stream = client.stream(ask("loop"))
            assert next(stream) == svir.TextDelta("la ")
            server.process.kill()
            with pytest.raises(svir.Truncated) as caught:
                stream.result()
            assert facts(caught.value) == ("truncated", None, None, False, True)
            gone = refused(client)
        assert facts(gone) == ("unavailable", 502, None, True, False)


def test_a_worker_killed_before_it_answers(upstream: LlamaServer, tls: Any) -> None:
    def kill(conn: Any) -> None:
        read_head(conn)
        os.kill(front.worker(), 9)
        until_the_end(conn)

    folder = Path(tls.cafile).parent
    with Peer(kill) as peer, Front(upstream.base_url, peer.url, folder) as front:
        error = refused(front.client("plain/patient"))
    assert facts(error) == ("disconnected", None, None, True, False)
    assert not error.unsent, "the server had it"
    assert peer.connections == 1, "and it is not sent again"


# -- Errors of the gateway's own ------------------------------------------------------------------

PAGES = {
    "401": ("unauthorized", 401, None, False, False),
    "403": ("unauthorized", 403, None, False, False),
    "404": ("protocol", 404, None, False, False),
    "429": ("rate_limited", 429, 7.0, True, False),
    "500": ("unavailable", 500, None, True, False),
    "502": ("unavailable", 502, None, True, False),
    "504": ("timeout", 504, None, True, False),
    # What nginx itself finds, not only what it is told to say:
    "dead": ("unavailable", 502, None, True, False),
    "silent": ("timeout", 504, None, True, False),
}


@pytest.mark.parametrize("place", PAGES)
def test_pages_in_html(front: Front, place: str) -> None:
    error = refused(front.client(f"plain/{place}", api_key=KEY))
    assert facts(error) == PAGES[place]
    assert error.partial is None or error.partial.text == ""
    assert not error.unsent
    assert KEY not in f"{error!r} {error} {error.server_message}"
    (line,) = front.finished(1)
    assert (line["status"], line["authorization"]) == (str(error.status), f"Bearer {KEY}")


def test_a_date_to_come_back_at(front: Front) -> None:
    error = refused(front.client("plain/503"))
    assert (error.kind, error.status, error.retryable) == ("unavailable", 503, True)
    assert error.retry_after is not None
    assert error.retry_after > 3600 * 24


@pytest.mark.parametrize(
    ("place", "words"),
    [("plain/401", "401 Authorization Required"), ("plain/502", "502 Bad Gateway")],
)
def test_the_words_of_a_page_in_html(front: Front, place: str, words: str) -> None:
    assert words in (refused(front.client(place)).server_message or "")


def test_a_page_for_an_answer(front: Front) -> None:
    error = refused(front.client("plain/page"))
    assert facts(error) == ("protocol", None, None, False, True)
    assert "the answer is 'text/html', not an event stream" in str(error)


@pytest.mark.parametrize("text", ["x" * 2000, BIG], ids=["2 kB", "20 MB"])
def test_a_body_that_is_too_large(front: Front, text: str) -> None:
    error = refused(front.client("plain/small"), svir.Request("tiny", text))
    assert facts(error) == ("unsupported", 413, None, False, False)
    front.finished(1)


def test_a_refusal_while_20_mb_are_sent(front: Front) -> None:
    error = refused(front.client("plain/401", api_key=KEY), svir.Request("tiny", BIG))
    assert facts(error) == ("unauthorized", 401, None, False, False)
    front.finished(1)


def test_a_limit_on_requests(front: Front) -> None:
    with front.client("plain/limited") as client:
        assert client.complete(ask()).text == "Hello, world!"
        error = refused(client)
    assert facts(error) == ("rate_limited", 429, 7.0, True, False)
    assert [line["status"] for line in front.finished(2)] == ["200", "429"]


def test_the_servers_own_errors_pass(front: Front) -> None:
    with front.client("plain/live") as client:
        with pytest.raises(svir.ContextOverflow) as overflow:
            client.complete(svir.Request("tiny", "word " * 5_000))
        assert overflow.value.status == 400
        assert "context size" in (overflow.value.server_message or "")
        check_bytes_that_are_not_utf8(client, ask("badutf8"))


# -- Redirects ------------------------------------------------------------------------------------

MOVED = {
    "here": (302, "http://localhost:{plain}/live/v1/chat/completions"),
    "slash": (308, "http://localhost:{plain}/live/slash/v1/chat/completions"),
    "away": (307, "http://localhost:{other}/v1/chat/completions"),
    "secure": (301, "https://localhost:{tls}/v1/chat/completions"),
}


@pytest.mark.parametrize("place", MOVED)
def test_a_redirect_is_named_and_not_followed(front: Front, place: str) -> None:
    """H9: not to the same origin either. Its query may hold a secret, and is left out."""
    status, target = MOVED[place]
    error = refused(front.client(f"plain/{place}", api_key=KEY))
    assert facts(error) == ("protocol", status, None, False, False)
    assert f"answered {status}, to {target.format(**front.ports)}: " in str(error)
    assert "sekret" not in f"{error!r} {error}"
    (line,) = front.finished(1)
    assert (line["name"], line["status"]) == ("plain", str(status))


# -- TLS ------------------------------------------------------------------------------------------


def test_an_unknown_ca(front: Front) -> None:
    url = front.url("tls", "localhost", "https") + "/live"
    error = refused(svir.Client(url, api_key=KEY))
    assert facts(error) == ("connect", None, None, False, False)
    assert error.unsent
    assert "the certificate of localhost was not accepted" in str(error)
    assert "Pass cafile=" in str(error)
    assert front.seen()[front.before :] == []


def test_http_to_a_tls_port_and_the_reverse(front: Front) -> None:
    error = refused(svir.Client(front.url("tls")))
    assert facts(error) == ("unsupported", 400, None, False, False)
    error = refused(svir.Client(front.url("plain", scheme="https"), cafile=front.cafile))
    assert facts(error) == ("connect", None, None, True, False)
    assert "Is it an https server?" in str(error)


@pytest.mark.parametrize("certificate", [None, "localhost"], ids=["missing", "wrong"])
def test_a_client_certificate(front: Front, certificate: str | None) -> None:
    """nginx shakes hands with anybody, and then refuses with a page in HTML."""
    settings: dict[str, Any] = {"ssl_context": ssl.create_default_context(cafile=front.cafile)}
    if certificate is not None:
        settings["ssl_context"] = front.context(certificate)
    error = refused(front.client("known/live", api_key=KEY, **settings))
    assert facts(error) == ("unsupported", 400, None, False, False)
    with front.client("known/live") as client:
        assert client.complete(ask()).text == "Hello, world!"
    # A 400 is tried once more without the optional fields (D11).
    assert [line["status"] for line in front.finished(3)] == ["400", "400", "200"]


# -- Connections ----------------------------------------------------------------------------------


def connections(front: Front, count: int) -> list[int]:
    """Which connection each request came on, from 1 in order of appearance."""
    names = [line["connection"] for line in front.finished(count)]
    return [list(dict.fromkeys(names)).index(name) + 1 for name in names]


def read_whole(client: svir.Client) -> None:
    """An answer to the end of its body, which may come a moment after [DONE]."""
    with client.send(ask()) as raw:
        assert b"".join(raw).endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("place", ["plain/live", "plain/buffered", "tls/live", "known/live"])
def test_a_connection_is_used_again(front: Front, place: str) -> None:
    with front.client(place) as client:
        for _ in range(3):
            read_whole(client)
        assert [model.id for model in client.list_models()] == ["tiny"]
        assert client.complete(ask("think")).text == "The answer is 42."
    assert connections(front, 5) == [1] * 5


@pytest.mark.parametrize("place", ["tls/buffered", "known/buffered"])
def test_a_connection_is_used_again_after_done(front: Front, place: str) -> None:
    """Nothing is waited for (E4)."""
    with front.client(place) as client:
        assert [client.complete(ask()).text for _ in range(5)] == ["Hello, world!"] * 5
    assert connections(front, 5) == [1] * 5


@pytest.mark.parametrize("place", ["plain/live", "plain/buffered", "tls/live", "known/live"])
def test_the_end_of_a_body_may_come_after_done(front: Front, place: str) -> None:
    """It is looked for when the connection is wanted again."""
    with front.client(place) as client:
        for _ in range(5):
            assert client.complete(ask()).text == "Hello, world!"
            time.sleep(0.2)
    assert connections(front, 5) == [1] * 5


@pytest.mark.parametrize("place", ["plain/old", "tls/old", "told/live"])
def test_a_connection_that_ends_is_not_kept(front: Front, place: str) -> None:
    """Its body ends with it, or its Keep-Alive says that it will close within the second."""
    with front.client(place) as client:
        assert [client.complete(ask()).text for _ in range(3)] == ["Hello, world!"] * 3
    assert connections(front, 3) == [1, 2, 3]


def test_closed_by_keepalive_timeout_between_two_calls(front: Front) -> None:
    """Late enough that svir does not count it among those who close at once."""
    with front.client("brief/live") as client:
        read_whole(client)
        read_whole(client)
        eventually(lambda: front.idle_connections() == 0)
        assert client.list_models() == [svir.Model("tiny")]
        assert client.complete(ask()).text == "Hello, world!"
    assert connections(front, 4) == [1, 1, 2, 2]


def test_an_error_ends_the_connection(front: Front) -> None:
    """Departure k: no connection that carried an error is kept, whatever nginx says of it."""
    with front.client("plain/live") as client:
        for text in ("word " * 5_000, "[[hello]]"):
            try:
                client.complete(svir.Request("tiny", text, include_usage=False))
            except svir.ContextOverflow:
                pass
    assert connections(front, 2) == [1, 2]
