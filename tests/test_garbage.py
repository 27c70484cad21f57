"""No call leaves a reference cycle: sockets close with the last name, not with the collector."""

import gc
import platform
import weakref

import pytest

import svir
from svir_ext.testing import MockServer, text_answer

pytestmark = pytest.mark.skipif(
    platform.python_implementation() != "CPython", reason="only CPython counts references"
)
REQUEST = svir.Request("m", "hi")


def complete(client, server):
    client.complete(REQUEST)


def refused(client, server):
    server.reply(status=401)
    client.complete(REQUEST)


def lean_and_refused(client, server):
    server.reply(status=400)
    server.reply(status=400)
    client.complete(REQUEST)


def broken(client, server):
    server.reply(b"data: nonsense\n\n")
    client.complete(REQUEST)


def server_error(client, server):
    server.reply(b'data: {"error": "x"}\n\n')
    client.complete(REQUEST)


def cut(client, server):
    server.reply(*text_answer("a")[:1], cut=True)
    client.complete(REQUEST)


def not_a_stream(client, server):
    server.reply(b"<html>", content_type="text/html")
    client.complete(REQUEST)


def cancelled(client, server):
    server.reply(*text_answer("a", "b")[:2], hang=True)
    stream = client.stream(REQUEST)
    next(stream)
    stream.close()
    stream.result()


def raw(client, server):
    with client.send(REQUEST) as stream:
        list(stream)


def raw_refused(client, server):
    server.reply(status=401)
    with client.send(REQUEST) as stream:
        list(stream)


def models_refused(client, server):
    server.reply(status=401, path="/models")
    client.list_models()


def through_another(client, server):
    server.reply(status=500)
    other = svir.Client(server.url, layers=[lambda request, call: call.through(client)(request)])
    other.complete(REQUEST)


def in_background(client, server):
    server.reply(status=500)
    svir.Background(client.stream(REQUEST)).result()


def config_error(client, server):
    client.complete(REQUEST.replace(messages=[svir.User("\ud800")]))


CALLS = [
    complete, refused, lean_and_refused, broken, server_error, cut, not_a_stream, cancelled, raw,
    raw_refused, models_refused, through_another, in_background, config_error,
]  # fmt: skip


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_nothing_is_left_to_the_collector(call):
    with MockServer() as server:
        server.default(text_answer("hello"))
        client = svir.Client(server.url)
        client.list_models()  # leaves an idle connection
        gc.collect()
        gc.disable()
        try:
            failed = False
            try:
                call(client, server)
            except svir.Error:
                failed = True
            assert failed == (call not in (complete, raw))
            left = weakref.ref(client._backend)
            del client
            assert left() is None, "a cycle holds the client and its sockets"
        finally:
            gc.enable()
