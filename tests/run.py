"""Run the tests: python3 tests/run.py [any option of pytest]

The first run makes an environment of its own in .venv-test/, with the pinned packages that the
tests need, and on Linux x86-64 puts the real llama-server into .llama/. Later runs use them again.
`--setup` only does that, and prints the path of the environment's Python.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "servers"))
import llama_server  # noqa: E402
import pinned  # noqa: E402

REQUIREMENTS = ROOT / "tests" / "requirements.txt"
# One for each kind of Python, so that `python3.8 tests/run.py` tests on 3.8.
FOLDER = ROOT / ".venv-test" / str(sys.implementation.cache_tag)
PYTHON = FOLDER / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def main(args: list[str]) -> int:
    make_environment()
    fetch_llama_server()
    if args == ["--setup"]:
        print(PYTHON)
        return 0
    command = [str(PYTHON), "-X", "dev", "-W", "error", "-m", "pytest", *args]
    with subprocess.Popen(command, cwd=ROOT) as tests:
        while True:
            try:
                return tests.wait()
            except KeyboardInterrupt:  # pytest got it too, reports, and ends
                pass


def make_environment() -> None:
    """Make the environment, unless a whole one for this Python and these pins is there."""
    mark = FOLDER / "complete.txt"
    wanted = "\n".join([sys.version, sys.base_prefix, REQUIREMENTS.read_text(encoding="utf-8")])
    if mark.is_file() and mark.read_text(encoding="utf-8") == wanted:
        return
    say(f"Making {FOLDER.relative_to(ROOT)} with pytest and what else the tests need.")
    shutil.rmtree(FOLDER, ignore_errors=True)
    pip = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    try:
        venv.create(FOLDER, with_pip=True, symlinks=os.name != "nt")
    except subprocess.CalledProcessError:
        sys.exit("This Python makes no environment (Debian: sudo apt-get install python3-venv).")
    if subprocess.call([*pip, "--require-hashes", "-r", str(REQUIREMENTS)]):
        sys.exit("The packages in tests/requirements.txt could not be installed: see above.")
    mark.write_text(wanted, encoding="utf-8")


def fetch_llama_server() -> None:
    if os.environ.get("LLAMA_SERVER"):
        return
    why_not = ""
    for pins, what in (llama_server.PINS, "68 MB"), (llama_server.FOR_ANY_CPU, "34 MB"):
        try:
            if pinned.supported() and not pinned.where(pins).is_dir():
                say(f"{why_not}Fetching llama.cpp's llama-server ({what}, once, into .llama/).")
            pinned.install(pins)
        except pinned.NotInstalled as error:
            why_not = str(error)
            break
        if llama_server.program() is not None:
            return
        why_not = f"{llama_server.why_not()}.\n"
    say(f"\n*** No llama-server: {why_not}\n*** The tests on a real server are SKIPPED.\n")


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:  # while it sets up; the next run goes on from there
        sys.exit(130)
