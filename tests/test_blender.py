"""examples/blender with a stand-in for bpy. Its README runs it in a real Blender."""

from __future__ import annotations

import importlib
import shutil
import sys
import threading
import types
from pathlib import Path
from typing import Any, Iterator

import pytest

import svir
from svir_ext.testing import CUT, STALL, MockServer, text_answer

FOLDER = Path(__file__).parent.parent / "examples" / "blender"


class Timers:
    """bpy.app.timers, fired by the test."""

    def __init__(self) -> None:
        self.registered: list[Any] = []

    def register(self, function: Any, first_interval: float) -> None:
        self.registered.append(function)

    def unregister(self, function: Any) -> None:
        self.registered.remove(function)

    def is_registered(self, function: Any) -> bool:
        return function in self.registered

    def fire(self) -> None:
        self.registered = [function for function in self.registered if function() is not None]


class Operator:
    def report(self, kind: set[str], message: str) -> None:
        raise RuntimeError(message)  # as bpy.ops does for an ERROR


def fake_bpy(background: bool) -> Any:
    bpy: Any = types.ModuleType("bpy")
    bpy.types = types.SimpleNamespace(
        Operator=Operator, Panel=object, WindowManager=type("WindowManager", (), {})
    )
    bpy.props = types.SimpleNamespace(StringProperty=lambda **options: options["default"])
    bpy.classes = []
    bpy.utils = types.SimpleNamespace(
        register_class=bpy.classes.append, unregister_class=bpy.classes.remove
    )
    bpy.app = types.SimpleNamespace(background=background, timers=Timers())
    area = types.SimpleNamespace(type="VIEW_3D", tag_redraw=lambda: None)
    window = types.SimpleNamespace(screen=types.SimpleNamespace(areas=[area]))
    manager = bpy.types.WindowManager()
    manager.windows = [window]
    bpy.context = types.SimpleNamespace(window_manager=manager)
    return bpy


@pytest.fixture(params=[False])
def addon(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """The add-on, registered, with its own copy of svir.py beside it."""
    folder = tmp_path / "svir_panel"
    shutil.copytree(FOLDER / "svir_panel", folder)
    shutil.copy(svir.__file__, folder / "svir.py")
    bpy = fake_bpy(request.param)
    monkeypatch.setitem(sys.modules, "bpy", bpy)
    monkeypatch.syspath_prepend(str(tmp_path))
    module: Any = importlib.import_module("svir_panel")
    module.register()
    yield module
    module.unregister()
    assert (bpy.classes, bpy.app.timers.registered) == ([], [])
    assert not [t for t in threading.enumerate() if t.name == "svir"], "no thread is left"
    for name in ("svir_panel", "svir_panel.svir"):
        del sys.modules[name]


def press(addon: Any, operator: str) -> set[str]:
    return getattr(addon, operator)().execute(addon.bpy.context)


def until(addon: Any, condition: Any) -> None:
    """Ticks of Blender's timer until it holds."""
    for _ in range(500):
        addon.bpy.app.timers.fire()
        if condition():
            return
        threading.Event().wait(0.01)
    raise AssertionError(f"{addon.answer} {addon.state}")


def shown(addon: Any) -> list[str]:
    """The panel's lines."""
    lines: list[str] = []
    row = types.SimpleNamespace(operator=lambda name: None)
    panel = addon.SVIR_PT_panel()
    panel.layout = types.SimpleNamespace(
        prop=lambda *args, **options: None,
        row=lambda: row,
        label=lambda text: lines.append(text),
    )
    panel.draw(addon.bpy.context)
    return lines


def test_the_panel_shows_an_answer_while_it_arrives(addon: Any) -> None:
    go, answer = threading.Event(), text_answer("Hel", "lø\nyou")
    with MockServer() as server:
        addon.settings["url"] = server.url
        server.reply(answer[:2], go, answer[2:])
        assert press(addon, "SVIR_OT_ask") == {"FINISHED"}
        until(addon, lambda: addon.answer)
        assert shown(addon) == ["Hel", "asking"]
        assert not addon.SVIR_OT_ask.poll(None)
        assert addon.SVIR_OT_stop.poll(None)
        go.set()
        until(addon, lambda: addon.work is None)
    assert shown(addon) == ["Hellø", "you", "stop"]
    assert addon.SVIR_OT_ask.poll(None)
    assert server.requests[0].json()["messages"][0]["content"] == "Why is the sky blue?"


def test_the_stop_button(addon: Any) -> None:
    with MockServer() as server:
        addon.settings["url"] = server.url
        server.reply(text_answer("Hel")[:2], STALL)
        press(addon, "SVIR_OT_ask")
        until(addon, lambda: addon.answer)
        press(addon, "SVIR_OT_stop")
        until(addon, lambda: addon.work is None)
        server.wait_until(lambda: server.open_connections == 0)
    assert shown(addon) == ["Hel", "stopped"]


def test_a_cut_is_shown_as_a_cut(addon: Any) -> None:
    with MockServer() as server:
        addon.settings["url"] = server.url
        server.reply(text_answer("Hel")[:2], CUT)
        press(addon, "SVIR_OT_ask")
        until(addon, lambda: addon.work is None)
    assert shown(addon)[0] == "Hel"
    assert shown(addon)[1].startswith("not whole: ")


def test_what_failed_is_shown(addon: Any) -> None:
    with MockServer() as server:
        addon.settings["url"] = server.url
        server.reply({"error": {"message": "no such model"}}, status=404)
        press(addon, "SVIR_OT_ask")
        until(addon, lambda: addon.work is None)
    assert "not whole" not in addon.state
    assert "404" in addon.state
    assert shown(addon)[-1] == "no such model"
    addon.settings["url"] = "ftp://localhost"
    with pytest.raises(RuntimeError, match="http://"):
        press(addon, "SVIR_OT_ask")
    assert shown(addon) == []


def test_disabled_in_the_middle(addon: Any) -> None:
    """The fixture unregisters, and looks at what is left."""
    with MockServer() as server:
        addon.settings["url"] = server.url
        server.reply(text_answer("Hel")[:2], STALL)
        press(addon, "SVIR_OT_ask")
        until(addon, lambda: addon.answer)
        addon.unregister()
        server.wait_until(lambda: server.open_connections == 0)
        addon.register()


@pytest.mark.parametrize("addon", [True], indirect=True)
def test_without_a_window_the_plain_loop(addon: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with MockServer() as server:
        addon.settings["url"] = server.url
        server.reply(text_answer("Hel", "lø"))
        assert press(addon, "SVIR_OT_ask") == {"FINISHED"}
        assert capsys.readouterr().out == "Hellø\n(stop)\n"
        server.reply({"error": {"message": "busy"}}, status=503)
        with pytest.raises(RuntimeError, match="503"):
            press(addon, "SVIR_OT_ask")
    assert not addon.bpy.app.timers.registered
