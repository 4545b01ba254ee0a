"""The languages of the level-0 examples: how each is made ready here, and what is missing where it cannot be.

`sh tests/run.sh` installs what is missing where it may. A language that is not here is a test skipped on a developer's
machine, and a failed one in CI.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from tests.system.harness import REPOSITORY

LEVEL0: Final = REPOSITORY / "examples" / "level0"
BUILD_BOUND_S: Final = 240.0


class Missing(Exception):
    """A missing prerequisite. The message tells how to install it."""


def _python(_: Path) -> list[str]:
    return [sys.executable, str(LEVEL0 / "handler.py")]


def _ruby(_: Path) -> list[str]:
    _need("ruby", "apt-get install ruby-ffi-rzmq")
    _try(["ruby", "-e", "require 'ffi-rzmq'"], "apt-get install ruby-ffi-rzmq")
    return ["ruby", str(LEVEL0 / "handler.rb")]


def _node(_: Path) -> list[str]:
    _need("node", "Node 18 or newer")
    _try(["node", "-e", "require('zeromq')"], "npm ci --prefix examples/level0")
    return ["node", str(LEVEL0 / "handler.mjs")]


def _c(builds: Path) -> list[str]:
    _need("cc", "apt-get install gcc libzmq3-dev libcjson-dev")
    program = str(builds / "level0-c")
    warnings = ["-Wall", "-Wextra", "-Wno-unused-parameter"]
    libraries = ["-lzmq", "-lcjson", "-lm"]
    warned = _try(
        ["cc", *warnings, "-o", program, str(LEVEL0 / "handler.c"), *libraries],
        "apt-get install libzmq3-dev libcjson-dev",
    )
    assert not warned, f"the compiler warns:\n{warned}"
    return [program]


def _go(builds: Path) -> list[str]:
    _need("go", "apt-get install golang-go libzmq3-dev pkg-config")
    program = str(builds / "level0-go")
    _try(["go", "build", "-o", program, "."], "apt-get install libzmq3-dev pkg-config", LEVEL0 / "go")
    return [program]


LANGUAGES: Final[dict[str, Callable[[Path], list[str]]]] = {
    "python": _python,
    "ruby": _ruby,
    "node": _node,
    "c": _c,
    "go": _go,
}


@cache
def command(language: str, builds: Path) -> list[str] | Missing:
    try:
        return LANGUAGES[language](builds)
    except Missing as missing:
        return missing


def require(language: str, builds: Path) -> list[str]:
    """The command of this language's example; without it the test is skipped, but never in CI."""
    argv = command(language, builds)
    if isinstance(argv, Missing):
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"{language} is not installed: {argv}")
    return argv


def _need(program: str, how: str) -> None:
    if shutil.which(program) is None:
        raise Missing(f"there is no {program}; {how}")


def _try(argv: list[str], how: str, where: Path = LEVEL0) -> str:
    done = subprocess.run(
        argv, cwd=where, capture_output=True, text=True, timeout=BUILD_BOUND_S, stdin=subprocess.DEVNULL, check=False
    )
    if done.returncode:
        raise Missing(f"{how}\n{done.stderr[-2_000:]}")
    return done.stderr
