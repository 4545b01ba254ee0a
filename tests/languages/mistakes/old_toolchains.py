"""A toolchain that is too old, played by one that gives another version: what the SDK or its build prints."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.languages.sdks import Sdk

from .sentence import NoSentence

BOUND_S: Final = 60.0

_NODE: Final = "Object.defineProperty(process, 'versions', { value: { ...process.versions, node: '16.20.2' } })\n"
_RUBY: Final = 'Object.send(:remove_const, :RUBY_VERSION); RUBY_VERSION = "3.0.6"; require "%s/lib/stepwire"'
_PYTHON: Final = "import sys; sys.version_info = (3, 10, 14, 'final', 0); import stepwire"
_GO: Final = "#!/bin/sh\necho go1.18.10\n"
_JAVAC: Final = "#!/bin/sh\necho 'javac 11.0.25' >&2\n"
_RUSTC: Final = "#!/bin/sh\necho 'rustc 1.62.1 (e092d0b6b 2022-07-16)'\n"


def refusal(sdk: Sdk, directory: Path) -> str:
    """The sentence with which the old toolchain is refused."""
    return _REFUSALS[sdk.name](sdk, directory)


def _python(sdk: Sdk, directory: Path) -> str:
    return _run(sys.executable, "-c", _PYTHON)


def _node(sdk: Sdk, directory: Path) -> str:
    patch = directory / "old.cjs"
    patch.write_text(_NODE)
    return _run("node", "-r", str(patch), str(sdk.folder / "src" / "index.js"))


def _ruby(sdk: Sdk, directory: Path) -> str:
    return _run("ruby", "-W0", "-e", _RUBY % sdk.folder)


def _go(sdk: Sdk, directory: Path) -> str:
    return _run("sh", str(sdk.folder / "check.sh"), "setup", GO=_program(directory / "go", _GO))


def _java(sdk: Sdk, directory: Path) -> str:
    _program(directory / "javac", _JAVAC)
    return _setup(sdk, directory)


def _rust(sdk: Sdk, directory: Path) -> str:
    _program(directory / "rustc", _RUSTC)
    return _setup(sdk, directory)


def _setup(sdk: Sdk, directory: Path) -> str:
    """`check.sh setup` with the programs of this directory in front."""
    path = f"{directory}{os.pathsep}{os.environ['PATH']}"
    return _run("sh", str(sdk.folder / "check.sh"), "setup", PATH=path)


_REFUSALS: Final[dict[str, Callable[[Sdk, Path], str]]] = {
    "python": _python,
    "go": _go,
    "java": _java,
    "node": _node,
    "ruby": _ruby,
    "rust": _rust,
}


def _program(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def _run(*words: str, **environ: str) -> str:
    done = subprocess.run(
        words, env=os.environ | environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=BOUND_S
    )
    if done.returncode == 0:
        raise NoSentence(f"the old toolchain is accepted:\n{done.stdout}{done.stderr}")
    return (done.stdout + done.stderr).strip()
