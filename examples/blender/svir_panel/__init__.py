"""A Blender add-on: ask a model in the 3D view's sidebar, and see the answer while it arrives.

    cp svir.py examples/blender/svir_panel/      # svir.py from the root of the repository

Then zip the folder svir_panel and install the zip as an add-on; see ../README.md.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import bpy  # pyright: ignore[reportMissingImports]

if TYPE_CHECKING:
    import svir
else:
    from . import svir

bl_info = {
    "name": "svir panel",
    "blender": (3, 4, 0),
    "category": "3D View",
    "location": "3D View > Sidebar > svir",
}
TICK = 0.1  # seconds
settings = {"url": "http://127.0.0.1:1234", "model": "qwen3-4b"}
work: Any = None  # the svir.Background of the answer in progress
answer: list[str] = []
state = ""


def make_stream(question: str) -> Any:
    return svir.Client(settings["url"]).stream(svir.Request(settings["model"], question))


def start(question: str) -> None:
    global work, state
    stop()
    answer.clear()
    state = ""
    work = svir.Background(make_stream(question))
    state = "asking"
    bpy.app.timers.register(tick, first_interval=TICK)


def tick() -> float | None:
    """Take everything that has arrived: Blender may be busy for seconds between two ticks."""
    global work, state
    if work is None:
        return None
    answer.extend(event.text for event in work.poll() if event.type == "text")
    redraw()
    if not work.done:
        return TICK
    error = work.error
    state = work.result().finish_reason if error is None else told(error)
    work = None
    return None


def told(error: Any) -> str:
    """An error, with the server's own words. A cut answer stays on show, named as what it is."""
    if isinstance(error, svir.Cancelled):
        return "stopped"
    words = getattr(error, "server_message", None)
    return ("not whole: " if answer else "") + "\n".join(filter(None, [str(error), words]))


def stop() -> None:
    """Never waits: the thread ends by itself, and the next tick says so."""
    if work is not None:
        work.cancel()


def redraw() -> None:
    for window in bpy.context.window_manager.windows:
        for area in window.screen.areas:
            if area.type == "VIEW_3D":
                area.tag_redraw()


def lines(text: str) -> list[str]:
    """As wide as the sidebar: a label breaks no line."""
    return [line for each in text.splitlines() for line in textwrap.wrap(each, 40) or [""]]


def ask_and_wait(question: str) -> str:
    """For `blender -b` and the bpy wheel, where no timer ever fires: the plain loop."""
    with make_stream(question) as stream:
        for text in stream.text():
            print(text, end="", flush=True)
        print(f"\n({stream.completion.finish_reason})")
        return stream.completion.text


class SVIR_OT_ask(bpy.types.Operator):
    """Ask the model; the answer appears below"""

    bl_idname = "svir.ask"
    bl_label = "Ask"

    @classmethod
    def poll(cls, context: Any) -> bool:
        return work is None

    def execute(self, context: Any) -> set[str]:
        question = context.window_manager.svir_question
        try:
            ask_and_wait(question) if bpy.app.background else start(question)
        except svir.Error as error:
            self.report({"ERROR"}, told(error))
            return {"CANCELLED"}
        return {"FINISHED"}


class SVIR_OT_stop(bpy.types.Operator):
    """Stop the answer"""

    bl_idname = "svir.stop"
    bl_label = "Stop"

    @classmethod
    def poll(cls, context: Any) -> bool:
        return work is not None

    def execute(self, context: Any) -> set[str]:
        stop()
        return {"FINISHED"}


class SVIR_PT_panel(bpy.types.Panel):
    bl_label = "svir"
    bl_space_type = "VIEW_3D"
    bl_region_type = "UI"
    bl_category = "svir"

    def draw(self, context: Any) -> None:
        layout = self.layout
        layout.prop(context.window_manager, "svir_question", text="")
        row = layout.row()
        row.operator("svir.ask")
        row.operator("svir.stop")
        for paragraph in ["".join(answer), state]:
            for line in lines(paragraph):
                layout.label(text=line)


CLASSES = (SVIR_OT_ask, SVIR_OT_stop, SVIR_PT_panel)


def register() -> None:
    for cls in CLASSES:
        bpy.utils.register_class(cls)
    bpy.types.WindowManager.svir_question = bpy.props.StringProperty(
        name="Question", default="Why is the sky blue?"
    )


def unregister() -> None:
    global work
    if work is not None:  # a thread that still reads hangs Blender when it quits
        work.cancel()
        work.join(5)
        work = None
    if bpy.app.timers.is_registered(tick):
        bpy.app.timers.unregister(tick)
    del bpy.types.WindowManager.svir_question
    for cls in reversed(CLASSES):
        bpy.utils.unregister_class(cls)
