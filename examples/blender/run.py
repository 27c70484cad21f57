"""Runs the add-on in a real Blender, without a window:

    cp svir.py examples/blender/svir_panel/
    blender -b -P examples/blender/run.py -- http://127.0.0.1:1234 qwen3-4b "Why is the sky blue?"

or, with the bpy wheel (`pip install bpy`): python examples/blender/run.py -- URL MODEL QUESTION
"""

import sys
from pathlib import Path

import bpy  # pyright: ignore[reportMissingImports]

sys.path.insert(0, str(Path(__file__).parent))
import svir_panel

arguments = sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []
if len(arguments) != 3:
    sys.exit("usage: blender -b -P run.py -- URL MODEL QUESTION")
url, model, question = arguments
svir_panel.settings.update(url=url, model=model)
svir_panel.register()
try:
    bpy.context.window_manager.svir_question = question
    bpy.ops.svir.ask()
finally:
    svir_panel.unregister()
