"""Put what a pins file names into the checkout's .llama/ folder; no environment is touched.

pip does it (a venv's, if this Python has none): it checks the hashes and shows its progress. It
brings programs and data, so this Python's own version does not matter. Standard library only.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path
from typing import Iterator

FOLDER = Path(__file__).resolve().parents[2] / ".llama"
# The wheels are of these kinds only, so pip need not be a CPython 3.10 itself.
KINDS = (
    "--only-binary=:all: --implementation=cp --python-version=3.10 --abi=abi3"
    " --platform=manylinux2014_x86_64 --platform=manylinux_2_35_x86_64 --ignore-requires-python"
).split()


class NotInstalled(Exception):
    """It cannot be had here; the message says why, and what to do."""


def supported() -> bool:
    """Whether the pinned wheels are for this machine."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


def where(pins: Path) -> Path:
    """The folder that `pins` is installed into: another one when the pins change."""
    digest = hashlib.sha256(pins.read_bytes()).hexdigest()
    return FOLDER / f"{pins.stem}-{digest[:12]}"


def install(pins: Path) -> Path:
    """The folder with what `pins` names; the first call downloads it.

    Raises: NotInstalled.
    """
    target = where(pins)
    if target.is_dir():
        return target
    if not supported():
        raise NotInstalled("the ready-made model server is for Linux on x86-64 only")
    FOLDER.mkdir(exist_ok=True)
    for left in FOLDER.glob("partial-*"):  # by a run that was killed
        if time.time() - left.stat().st_mtime > 3600:
            shutil.rmtree(left, ignore_errors=True)
    partial = Path(tempfile.mkdtemp(prefix="partial-", dir=FOLDER))
    try:
        _pip_install(pins, partial)
        # Whole or not there at all, so that an interrupted run leaves nothing to repair.
        try:
            partial.rename(target)
        except OSError:
            if not target.is_dir():  # else another run was quicker
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _pip_install(pins: Path, target: Path) -> None:
    # Settings of the user's that would change where or what pip installs.
    settings = {"PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0", "PIP_ROOT_USER_ACTION": "ignore"}
    with _pip() as pip:
        command = [*pip, "install", "--target", str(target), "--require-hashes", "--no-deps"]
        command += [*KINDS, "--no-compile", "--disable-pip-version-check", "--no-input"]
        command += ["--retries", "2", "-r", str(pins)]
        done = subprocess.run(command, env={**os.environ, **settings}, stdout=2, check=False)
    if done.returncode:
        raise NotInstalled("pip could not install the model server (its own words are above)")


@contextlib.contextmanager
def _pip() -> Iterator[list[str]]:
    if importlib.util.find_spec("pip"):
        yield [sys.executable, "-m", "pip"]
        return
    with tempfile.TemporaryDirectory(prefix="svir-pip-") as folder:
        try:
            venv.create(folder, with_pip=True)
        except subprocess.CalledProcessError as error:
            message = (
                "this Python has no pip (Debian and Ubuntu: sudo apt-get install python3-pip)"
            )
            raise NotInstalled(message) from error
        yield [str(Path(folder, "bin", "python")), "-m", "pip"]
