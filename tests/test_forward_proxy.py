"""Real forward proxies, tinyproxy and squid, between svir and nginx before a real llama-server."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any, Iterator

import pytest

import nginx as nginx_server
import proxy as proxies
import svir
from llama_server import LlamaServer
from loopback import eventually, nothing_left
from nginx import Nginx
from ports import free_port
from proxy import Proxy

NO_NGINX = nginx_server.why_not()
WHY_NOT = {name: NO_NGINX or proxies.why_not(name) for name in proxies.NAMES}

KEY = "sk-not-for-proxies"
PASSWORD, QUOTED = "p-w.rd", "p%2Dw.rd"  # tinyproxy's configuration takes no other signs
BASIC = base64.b64encode(f"{proxies.USER}:{PASSWORD}".encode()).decode()

BLOCKS = """
proxy_http_version 1.1;
proxy_set_header Connection "";
proxy_ignore_headers X-Accel-Buffering;
ssl_certificate @tls@/localhost.pem;
ssl_certificate_key @tls@/localhost.pem;
server {
    listen 127.0.0.1:@port:plain@;
    server_name plain;
    proxy_buffering off;
    location / { proxy_pass @llama@; }
    location /full/ { return 429; }
}
server {
    listen 127.0.0.1:@port:tls@ ssl;
    server_name tls;
    location / { proxy_pass @llama@; }
    location /live/ { proxy_pass @llama@/; proxy_buffering off; }
}
"""


class Route:
    """nginx, a server of it by name, and what a client needs to reach it."""

    def __init__(self, nginx: Nginx, name: str, cafile: str) -> None:
        self.nginx, self.name, self.cafile = nginx, name, cafile
        self.url = nginx.url(name, "localhost", "https" if name == "tls" else "http")
        self.before = len(nginx.seen())

    def client(self, proxy: str | None, path: str = "", **settings: Any) -> svir.Client:
        if self.name == "tls":
            settings.setdefault("cafile", self.cafile)
        return svir.Client(self.url + path, proxy=proxy, api_key=KEY, **settings)

    def seen(self, count: int) -> list[Any]:
        """What this test's requests looked like to nginx, once as many are in its log."""
        eventually(lambda: len(self.nginx.seen()) - self.before >= count)
        seen = self.nginx.seen()[self.before :]
        assert len(seen) == count, seen
        return seen

    def target(self) -> str:
        """What the proxy is asked for."""
        port = self.nginx.ports[self.name]
        if self.name == "tls":
            return f"CONNECT localhost:{port}"
        return f"POST http://localhost:{port}/v1/chat/completions"


@pytest.fixture(scope="module")
def upstream(tiny_model: str) -> Iterator[LlamaServer]:
    with LlamaServer(["--context-shift"], model=tiny_model) as server:  # [[loop]] never ends
        yield server


@pytest.fixture(scope="module", params=proxies.NAMES)
def name(request: pytest.FixtureRequest) -> str:
    why_not = WHY_NOT[request.param]
    if why_not is not None:
        pytest.skip(why_not)
    return str(request.param)


@pytest.fixture(scope="module")
def nginx(name: str, upstream: LlamaServer, tls: Any) -> Iterator[Nginx]:
    folder = str(Path(tls.cafile).parent)
    with Nginx(BLOCKS, llama=upstream.base_url, tls=folder) as server:
        yield server


@pytest.fixture(params=["plain", "tls"])
def route(request: pytest.FixtureRequest, nginx: Nginx, tls: Any) -> Iterator[Route]:
    with nothing_left():
        eventually(lambda: not nginx.is_busy())
        yield Route(nginx, request.param, tls.cafile)


@pytest.fixture(scope="module")
def open_proxy(name: str) -> Iterator[Proxy]:
    with Proxy(name) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def closed_proxy(name: str) -> Iterator[Proxy]:
    with Proxy(name, PASSWORD) as proxy:
        yield proxy


def ask(script: str = "hello") -> svir.Request:
    return svir.Request("tiny", f"[[{script}]]")


def refused(client: svir.Client) -> svir.Error:
    with client, pytest.raises(svir.Error) as caught:
        client.complete(ask())
    told = f"{caught.value!r} {caught.value} {caught.value.server_message}"
    for secret in (KEY, PASSWORD, QUOTED, BASIC):
        assert secret not in told
    return caught.value


def facts(error: svir.Error) -> tuple[Any, ...]:
    return error.kind, error.status, error.retryable, error.unsent


# -- What passes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("script", ["hello", "think", "utf8", "sse"])
def test_the_events_are_the_servers(
    open_proxy: Proxy, upstream: LlamaServer, route: Route, script: str
) -> None:
    def events(client: svir.Client) -> list[Any]:
        with client, client.stream(ask(script)) as stream:
            found: list[Any] = list(stream)
        whole = stream.completion
        found[-1] = (whole.text, whole.reasoning, whole.finish_reason, whole.usage, whole.quirks)
        return found

    before = len(open_proxy.asked())
    through = events(route.client(open_proxy.url))
    assert through == events(svir.Client(upstream.base_url))
    eventually(lambda: open_proxy.asked()[before:] == [route.target()])


def test_a_password(closed_proxy: Proxy, route: Route) -> None:
    """The proxy alone sees it, and of https not the key."""
    url = closed_proxy.url_with(QUOTED)
    with route.client(url) as client:
        assert [client.complete(ask()).text for _ in range(2)] == ["Hello, world!"] * 2
    for line in route.seen(2):
        assert (line["name"], line["status"]) == (route.name, "200")
        assert (line["authorization"], line["proxy"]) == (f"Bearer {KEY}", "")
        assert line["host"] == route.url.partition("://")[2]
        assert bool(line["via"]) is (route.name == "plain")
    if route.name == "tls":
        assert KEY not in closed_proxy.words()


def test_a_tunnel_is_used_again(closed_proxy: Proxy, nginx: Nginx, tls: Any) -> None:
    route = Route(nginx, "tls", tls.cafile)
    before = len(closed_proxy.asked())
    with nothing_left(), route.client(closed_proxy.url_with(PASSWORD)) as client:
        for _ in range(3):
            with client.send(ask()) as raw:
                assert b"".join(raw).endswith(b"data: [DONE]\n\n")
        assert client.list_models() == [svir.Model("tiny")]
        assert client.complete(ask("think")).text == "The answer is 42."
    assert len({line["connection"] for line in route.seen(5)}) == 1
    eventually(lambda: closed_proxy.asked()[before:] == [route.target()])


def test_events_come_before_the_end_and_close_reaches_the_server(
    open_proxy: Proxy, route: Route
) -> None:
    """The server has one slot: it answers again only when the proxy passed the end on."""
    with route.client(open_proxy.url, "/live" if route.name == "tls" else "") as client:
        stream = client.stream(ask("loop"))
        seen = [next(stream) for _ in range(4)]
        assert seen == [svir.TextDelta(text) for text in ("la ", "lu ", "li ", "LOOP")]
        stream.close()
        with pytest.raises(svir.Cancelled):
            next(stream)
        assert client.complete(ask()).text == "Hello, world!"


def test_20_mb(open_proxy: Proxy, upstream: LlamaServer, route: Route) -> None:
    """nginx takes 1 MB, and says so while the rest is still sent."""
    with route.client(open_proxy.url) as client, pytest.raises(svir.Unsupported) as caught:
        client.complete(svir.Request("tiny", "x" * 20_000_000))
    assert facts(caught.value) == ("unsupported", 413, False, False)


def test_the_servers_own_refusal(open_proxy: Proxy, nginx: Nginx, tls: Any) -> None:
    error = refused(Route(nginx, "plain", tls.cafile).client(open_proxy.url, "/full"))
    assert facts(error) == ("rate_limited", 429, True, False)


# -- What does not --------------------------------------------------------------------------------

# By the proxy, the server and the password. tinyproxy tells a wrong password by a 401, as a server
# tells a wrong key; only a CONNECT makes sure that the proxy says it.
REFUSALS = {
    ("tinyproxy", "plain", ""): ("unauthorized", 407, False, False),
    ("tinyproxy", "plain", "wrong"): ("unauthorized", 401, False, False),
    ("tinyproxy", "tls", ""): ("connect", None, False, True),
    ("tinyproxy", "tls", "wrong"): ("connect", None, False, True),
    ("squid", "plain", ""): ("unauthorized", 407, False, False),
    ("squid", "plain", "wrong"): ("unauthorized", 407, False, False),
    ("squid", "tls", ""): ("connect", None, False, True),
    ("squid", "tls", "wrong"): ("connect", None, False, True),
}


@pytest.mark.parametrize("password", ["", "wrong"], ids=["missing", "wrong"])
def test_the_password_is_not_right(closed_proxy: Proxy, route: Route, password: str) -> None:
    proxy = closed_proxy.url_with(password) if password else closed_proxy.url
    error = refused(route.client(proxy))
    status = 401 if (closed_proxy.name, password) == ("tinyproxy", "wrong") else 407
    assert facts(error) == REFUSALS[closed_proxy.name, route.name, password]
    assert f"answered {status}" in str(error)
    if route.name == "tls":
        assert f"the proxy answered {status} to CONNECT localhost:" in str(error)
        assert ("it asks for a password" in str(error)) is True
    assert route.seen(0) == [], "nothing reached the server"


def test_a_password_is_asked_for_in_words(closed_proxy: Proxy, nginx: Nginx, tls: Any) -> None:
    error = refused(Route(nginx, "plain", tls.cafile).client(closed_proxy.url))
    assert 'proxy="http://user:password@' in str(error)


def test_a_server_that_is_not_there(open_proxy: Proxy, route: Route) -> None:
    """The proxy says it: of plain http as the server would, of a tunnel by refusing it."""
    scheme = route.url.partition(":")[0]
    error = refused(svir.Client(f"{scheme}://127.0.0.1:{free_port()}", proxy=open_proxy.url))
    status = {"tinyproxy": 500, "squid": 503}[open_proxy.name]
    if scheme == "http":
        assert facts(error) == ("unavailable", status, True, False)
    else:
        assert facts(error) == ("connect", None, True, True)
        assert f"the proxy answered {status} to CONNECT 127.0.0.1:" in str(error)


def test_the_proxy_is_down(name: str, route: Route) -> None:
    with Proxy(name) as proxy:
        url, gone = proxy.url_with(QUOTED), f"127.0.0.1:{proxy.port}"
    error = refused(route.client(url))
    assert facts(error) == ("connect", None, True, True)
    assert f"cannot connect to {gone}: Connection refused" in str(error)
    assert route.seen(0) == [], "and it is not asked without the proxy"


def test_the_proxy_is_killed_in_mid_stream(name: str, route: Route) -> None:
    path = "/live" if route.name == "tls" else ""
    with Proxy(name) as proxy, route.client(proxy.url, path) as client:
        stream = client.stream(ask("loop"))
        pieces: list[Any] = [next(stream)]
        proxy.kill()
        with pytest.raises((svir.Truncated, svir.Disconnected)) as caught:
            pieces.extend(stream)  # which of the two: by what the system held back
        assert caught.value.in_stream
        assert caught.value.partial is not None
        assert caught.value.partial.text == "".join(piece.text for piece in pieces)
        assert caught.value.partial.finish_reason is None
        assert facts(refused(client)) == ("connect", None, True, True)


# -- The environment ------------------------------------------------------------------------------

VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


def test_the_environment_names_no_proxy(
    open_proxy: Proxy, route: Route, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q9: a proxy is used that the program names, and no other."""
    for variable in VARIABLES:
        monkeypatch.setenv(variable, open_proxy.url)
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("NO_PROXY", "")
    before = len(open_proxy.asked())
    with route.client(None) as client:
        assert client.complete(ask()).text == "Hello, world!"
    (line,) = route.seen(1)
    assert (line["status"], line["via"]) == ("200", "")
    assert open_proxy.asked()[before:] == []


@pytest.mark.parametrize("hosts", ["localhost,127.0.0.1", "*"])
def test_no_proxy_does_not_undo_a_proxy_that_is_named(
    open_proxy: Proxy, route: Route, monkeypatch: pytest.MonkeyPatch, hosts: str
) -> None:
    monkeypatch.setenv("no_proxy", hosts)
    monkeypatch.setenv("NO_PROXY", hosts)
    before = len(open_proxy.asked())
    with route.client(open_proxy.url) as client:
        assert client.complete(ask()).text == "Hello, world!"
    eventually(lambda: open_proxy.asked()[before:] == [route.target()])
