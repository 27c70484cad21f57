"""Fuzz svir with atheris: python3 tests/fuzz/run.py TARGET [-- options of libFuzzer]

TARGET is one of the targets in targets.py. New inputs and finds go to build/fuzz/TARGET; the
committed corpus is only read. A find is one file; give it as an option to run it alone.

    python3 tests/fuzz/run.py decoder -- -max_total_time=300
    python3 tests/fuzz/run.py decoder -- build/fuzz/decoder/crash-1234
    python3 tests/fuzz/run.py decoder -- -merge=1 tests/fuzz/corpus/decoder build/fuzz/decoder

The last one adds to the corpus what covers something new. It needs `pip install atheris`.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[0:1] = [str(ROOT), str(HERE.parent)]


def main(args: list[str]) -> None:
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["svir"]):
        import svir  # noqa: F401 - instrumented here, before anything else imports it
    from fuzz.targets import TARGETS

    if not args or args[0] not in TARGETS or args[1:2] not in ([], ["--"]):
        sys.exit(f"{__doc__}\nTargets: {', '.join(TARGETS)}")
    name, options = args[0], args[2:]
    work = ROOT / "build" / "fuzz" / name
    work.mkdir(parents=True, exist_ok=True)
    if not any(not option.startswith("-") for option in options):
        options += [str(work), str(HERE / "corpus" / name)]
    own = [f"-dict={HERE / 'words.dict'}", f"-artifact_prefix={work}/", "-max_len=4096"]
    atheris.Setup([sys.argv[0], *own, *options], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
