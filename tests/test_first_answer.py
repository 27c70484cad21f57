"""examples/first_answer.py, the first command of the README, and how it sets a model up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import first_answer
import local_server
import pinned
import svir
from llama_server import LlamaServer, explain
from svir_ext.testing import MockServer, text_answer

SCRIPT = Path(__file__).parent.parent / "examples" / "first_answer.py"


def start(*args: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-X", "dev", "-W", "error", str(SCRIPT), *args]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8"
    )


def run(*args: str) -> tuple[int, str, str]:
    process = start(*args)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_scripted() -> None:
    code, out, err = run("--scripted")
    assert (code, err) == (0, "")
    assert out.startswith("This answer is a script")
    assert "\n\nfinish reason: stop\ntokens: 12 read, 30 written\n" in out


def test_real_server(llama: LlamaServer) -> None:
    code, out, err = run("--url", llama.base_url, "Hi [[hello]]")
    assert (code, err) == (0, "")
    assert out.startswith("Hello, world!\n\nfinish reason: stop\ntokens: ")


def test_no_server_there() -> None:
    code, out, err = run("--url", "http://127.0.0.1:9")
    assert (code, out) == (1, "")
    assert err.startswith("\nconnect: ")
    assert "Traceback" not in err


def test_the_servers_own_words() -> None:
    with MockServer() as server:
        server.reply({"error": {"message": "no such \x1b model"}}, status=404)
        code, out, err = run("--url", server.url)
    assert (code, out) == (1, "")
    assert err.endswith("\nno such \\x1b model\n")


@pytest.mark.skipif(os.name == "nt", reason="there is no Ctrl-C to send on Windows")
def test_a_server_that_stays() -> None:
    script = SCRIPT.with_name("local_server.py")
    process = subprocess.Popen(
        [sys.executable, "-X", "dev", "-W", "error", str(script), "--scripted"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    assert process.stdout is not None
    try:
        url, model = (process.stdout.readline().split()[1] for _ in range(2))
        for _ in range(2):
            completion = svir.Client(url).complete(svir.Request(model, "Hi"))
            assert completion.text.startswith("This answer is a script")
    finally:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (0, "")


def test_serve_model_says_how() -> None:
    script = SCRIPT.with_name("serve_model.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, check=False)
    assert done.returncode == 1
    assert b"FOLDER_WITH_XLLAMACPP" in done.stderr


@pytest.mark.skipif(os.name == "nt", reason="there is no Ctrl-C to send on Windows")
@pytest.mark.parametrize("stop", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_stopped(stop: str) -> None:
    with MockServer() as server:
        server.reply(text_answer("Once upon a time", finish_reason=None)[:-1], hang=True)
        process = start("--url", server.url)
        assert process.stdout is not None
        assert process.stdout.read(4) == "Once"
        process.send_signal(getattr(signal, stop))
        err = process.communicate(timeout=20)[1]
    assert (process.returncode, err) == (130, "\nStopped.\n")


def usual(monkeypatch: pytest.MonkeyPatch, *servers: MockServer) -> None:
    ports = {int(server.url.rpartition(":")[2]): "Mock" for server in servers}
    monkeypatch.setattr(local_server, "USUAL", {9: "nobody", **ports})


def test_a_running_server_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with MockServer() as other, MockServer() as embedder, MockServer() as chat:
        for _ in range(3):
            other.reply(status=404, path="/models")
        embedder.model_list(["nomic-embed-text"])
        chat.model_list(["bge-m3", "qwen3-4b"])
        usual(monkeypatch, other, embedder, chat)
        assert local_server.running() == (chat.url, "qwen3-4b")
        assert local_server.running("bge-m3") == (chat.url, "bge-m3")
        assert local_server.running("gpt-5") is None


def test_where_no_model_can_be_set_up(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    usual(monkeypatch)
    monkeypatch.setattr(pinned, "supported", lambda: False)
    monkeypatch.setattr(sys, "argv", ["first_answer.py"])
    assert first_answer.main() == 0
    out, err = capfd.readouterr()
    assert out.startswith("This answer is a script")
    assert err == (
        "No real model here, so this answer is scripted: "
        "the small model is set up on Linux x86-64 only.\n\n"
    )


@pytest.fixture
def pins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(pinned, "FOLDER", tmp_path / "folder")
    monkeypatch.setattr(pinned, "supported", lambda: True)
    path = tmp_path / "thing.txt"
    path.write_text("thing==1\n")
    return path


def test_an_interrupted_install_leaves_nothing(
    pins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(pins: Path, target: Path) -> None:
        (target / "half").write_text("a file")
        raise KeyboardInterrupt

    monkeypatch.setattr(pinned, "_pip_install", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pinned.install(pins)
    assert list(pinned.FOLDER.iterdir()) == []


def test_an_install_is_used_again_until_the_pins_change(
    pins: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = []

    def install(pins: Path, target: Path) -> None:
        (target / "thing").write_text("a file")
        installed.append(pins.read_text())

    monkeypatch.setattr(pinned, "_pip_install", install)
    first = pinned.install(pins)
    assert pinned.install(pins) == first
    assert [path.name for path in first.iterdir()] == ["thing"]
    pins.write_text("thing==2\n")
    assert pinned.install(pins) != first
    assert installed == ["thing==1\n", "thing==2\n"]
    assert len(list(pinned.FOLDER.iterdir())) == 2


def test_why_a_server_does_not_start() -> None:
    words = "llama-server: error while loading shared libraries: libgomp.so.1: cannot open shared"
    assert "apt-get install libgomp1" in explain(words + " object file: No such file", 127)
    assert "CPU" in explain("", -4)
    assert explain("out of memory", 1) == "it ended with code 1: out of memory"
