"""The scripts of README make .venv with a suitable Python, and refuse another one in a sentence."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NEED = "Stepwire needs Python 3.11 or newer: "


def too_old() -> str | None:
    """A Python of this machine that is older than 3.11."""
    places = [*Path.home().glob(".pyenv/versions/3.*/bin/python3"), *Path("/usr/bin").glob("python3.?*")]
    for python in map(str, places):
        done = subprocess.run([python, "-c", "import sys; print(sys.version_info < (3, 11))"], capture_output=True)
        if done.stdout == b"True\n":
            return python
    return None


OLD = too_old()
needs_old_python = pytest.mark.skipif(OLD is None, reason="this machine has no Python older than 3.11")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The files of a clone that venv.sh reads. pip finds no index, so an installation ends where it would begin."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "bin").mkdir()
    shutil.copy(ROOT / "tests/venv.sh", tmp_path / "tests/venv.sh")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def set_up(clone: Path, **environ: str) -> "subprocess.CompletedProcess[str]":
    """Source venv.sh as the scripts do. Only the programs in `bin`, and the system's own tools, are on PATH."""
    tools = {**os.environ, "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "PATH": f"{clone}/bin:/bin:/usr/bin"}
    tools.pop("PYTHON", None)
    script = "set -eu; extra=broker; . tests/venv.sh"
    settings: dict[str, Any] = {"cwd": clone, "env": {**tools, **environ}, "text": True, "timeout": 120}
    return subprocess.run(["sh", "-c", script], capture_output=True, **settings)


def version_of(python: str | Path) -> str:
    return subprocess.run([python, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]


def put(clone: Path, name: str, python: str) -> None:
    """A program of this name that runs the given Python."""
    file = clone / "bin" / name
    file.write_text(f'#!/bin/sh\nexec {python} "$@"\n')
    file.chmod(0o755)


@needs_old_python
def test_a_python_that_is_too_old_is_refused_in_one_sentence_and_leaves_no_venv(clone: Path) -> None:
    assert OLD is not None
    done = set_up(clone, PYTHON=OLD)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"{NEED}PYTHON={OLD} is {version_of(OLD)}\n"
    assert not (clone / ".venv").exists()


def test_a_program_that_is_no_python_is_refused(clone: Path) -> None:
    done = set_up(clone, PYTHON="/bin/false")
    assert (done.returncode, done.stderr) == (1, f"{NEED}PYTHON=/bin/false is not a Python\n")
    assert not (clone / ".venv").exists()


@needs_old_python
def test_a_newer_python_is_used_if_python3_is_too_old(clone: Path) -> None:
    assert OLD is not None
    put(clone, "python3", OLD)
    for number in range(11, 15):
        put(clone, f"python3.{number}", "/bin/false")
    name = f"python3.{sys.version_info.minor}"
    put(clone, name, sys.executable)
    done = set_up(clone)
    assert done.stderr.startswith(f"python3 is {version_of(OLD)}, which is too old: {name} is used\n")
    assert version_of(clone / ".venv/bin/python") == version_of(sys.executable)


@needs_old_python
def test_without_any_suitable_python_the_sentence_says_what_to_do(clone: Path) -> None:
    assert OLD is not None
    put(clone, "python3", OLD)
    for number in range(11, 15):
        put(clone, f"python3.{number}", "/bin/false")
    done = set_up(clone)
    assert done.returncode == 1
    assert re.fullmatch(rf"{NEED}python3 is 3\.\d+\.\d+; install a newer one, or name it: PYTHON=.*\n", done.stderr)
    assert not (clone / ".venv").exists()


@needs_old_python
def test_a_venv_of_an_old_python_is_made_again(clone: Path) -> None:
    assert OLD is not None
    subprocess.run([OLD, "-m", "venv", "--without-pip", clone / ".venv"], check=True)
    (clone / ".venv/.stepwire-broker").touch()
    done = set_up(clone, PYTHON=sys.executable)
    assert done.stderr.startswith(f"its Python is {version_of(OLD)}: .venv is made again\n")
    assert version_of(clone / ".venv/bin/python") == version_of(sys.executable)
    assert not (clone / ".venv/.stepwire-broker").exists()


def test_a_venv_that_is_suitable_and_complete_is_left_as_it_is(clone: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", clone / ".venv"], check=True)
    (clone / ".venv/.stepwire-broker").touch()
    (clone / ".venv/mine").touch()
    put(clone, "python3", sys.executable)
    done = set_up(clone)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (clone / ".venv/mine").exists()


def test_the_script_needs_the_python_that_the_project_declares() -> None:
    declared = re.search(r'requires-python = ">=3\.(\d+)"', (ROOT / "pyproject.toml").read_text())
    assert declared is not None
    assert f"sys.version_info < (3, {declared[1]})" in (ROOT / "tests/venv.sh").read_text()
