"""Builds the sdist and the wheel, checks both, installs the wheel as users do, and uses what is installed.

`python -m tests.packages` does everything in a scratch folder, which stays if something fails. With `--keep DIRECTORY`,
the two checked files are copied there, with the software bill of materials: `docs/contributing/releasing.md` uses it.
"""

import email.parser
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from tests import toolchains
from tests.packages import sbom
from tests.toolchains import ProgramError, run

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION: Final = PROJECT["version"]

# The packages: the folder of each in the repository, and its name in the wheel.
PACKAGES: Final = {
    "broker/stepwire_broker": "stepwire_broker",
    "protocol/stepwire_protocol": "stepwire_protocol",
    "protocol/stepwire_conform": "stepwire_conform",
    "handlers_sdk/python/stepwire": "stepwire",
}
NEEDED: Final = (  # by what runs without Python's imports, so no other test misses them
    "stepwire/py.typed",
    "stepwire_protocol/py.typed",
    "stepwire_broker/py.typed",
    "stepwire_broker/store/sqlite/schema.sql",
    "stepwire_broker/store/sqlite/migrations/versions/v0001_first.py",
    "stepwire_broker/store/sqlite/migrations/versions/v0002_audit.py",
    "stepwire_broker/demo/workflow.yaml",
    "stepwire_broker/demo/level0.rb",
    "stepwire_broker/demo/level0.cjs",
    "stepwire_broker/cli/templates/common/workflow.yaml.in",
    "stepwire_broker/cli/templates/python/worker.py.in",
    "stepwire_broker/cli/templates/ruby/worker.rb.in",
    "stepwire_broker/cli/templates/go/main.go.in",
    "stepwire_broker/cli/templates/node/worker.js.in",
    "stepwire_broker/cli/templates/rust/main.rs.in",
    "stepwire_broker/cli/templates/java/Greet.java.in",
)
# uv brings its own list of certificates, and would ignore one that the machine adds; and it would install a Python.
UV: Final = {"UV_SYSTEM_CERTS": "true", "UV_PYTHON_DOWNLOADS": "never"}
DIST_INFO: Final = ("METADATA", "WHEEL", "entry_points.txt", "licenses/LICENSE", "RECORD")
SDIST_ROOMS: Final = ("broker/", "protocol/", "handlers_sdk/python/")
SDIST_FILES: Final = ("pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", ".gitignore", "PKG-INFO")
LIGHT: Final = {"stepwire", "pyzmq", "msgspec", "pip", "setuptools"}
HANDLER: Final = """
from stepwire import Client, Context, Worker, testing

async def ship(ctx: Context, order: dict) -> dict:
    return {"tracking": f"T{order['id']}"}

assert testing.run(ship, {"id": 7}).output == {"tracking": "T7"}
"""


class Packages(NamedTuple):
    scratch: Path
    tools: Path  # the programs of requirements.txt
    sdist: Path
    wheel: Path


# -- build and contents -----------------------------------------------------------------------------------------------


def build(scratch: Path) -> Packages:
    """Build the sdist from the committed files, and the wheel from the sdist."""
    tools = toolchains.virtual_environment(scratch / "tools", "-r", str(HERE / "requirements.txt"))
    source, dist = scratch / "source", scratch / "dist"
    for name in tracked():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, source / name)
    environ = {**os.environ, **UV, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    run(tools / "python", "-m", "build", "--installer=uv", "--outdir", dist, source, directory=scratch, environ=environ)
    sdist, wheel = dist / f"stepwire-{VERSION}.tar.gz", dist / f"stepwire-{VERSION}-py3-none-any.whl"
    if sorted(dist.iterdir()) != sorted((sdist, wheel)):
        raise ProgramError(
            f"expected {sdist.name} and {wheel.name}, built: {sorted(one.name for one in dist.iterdir())}"
        )
    return Packages(scratch, tools, sdist, wheel)


def tracked() -> list[str]:
    """The files that git has, and new ones that it does not ignore, without deleted ones."""
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", directory=ROOT).splitlines()
    return [name for name in listed if (ROOT / name).is_file()]


def contents(packages: Packages) -> None:
    """The wheel and the sdist contain what they should, and nothing else."""
    files = tracked()
    in_wheel = {
        inside + name.removeprefix(folder)
        for folder, inside in PACKAGES.items()
        for name in files
        if name.startswith(f"{folder}/")
    }
    missing = [name for name in NEEDED if name not in in_wheel]
    if missing:
        raise ProgramError(f"the repository lacks files that the installed product needs: {', '.join(missing)}")
    in_wheel |= {f"stepwire-{VERSION}.dist-info/{name}" for name in DIST_INFO}
    with zipfile.ZipFile(packages.wheel) as wheel:
        _compare("the wheel", set(wheel.namelist()), in_wheel)
        metadata = email.parser.Parser().parsestr(wheel.read(f"stepwire-{VERSION}.dist-info/METADATA").decode())
    if metadata["Version"] != VERSION or not metadata.get_all("Classifier"):
        raise ProgramError(f"the wheel's metadata are wrong:\n{metadata}")
    in_sdist = {*SDIST_FILES, *(name for name in files if name.startswith(SDIST_ROOMS))}
    with tarfile.open(packages.sdist) as sdist:
        _compare("the sdist", {name.partition("/")[2] for name in sdist.getnames()}, in_sdist)


def page(packages: Packages) -> None:
    """README names the ways to install, and these are the ways that the checks below use."""
    written = re.findall(r"^((?:pip|pipx|uvx) [^#\n]*?) *(?:#|$)", (ROOT / "README.md").read_text(), re.MULTILINE)
    if written != list(INSTALLING):
        raise ProgramError(f"README installs with {written}, and the checks with {list(INSTALLING)}")


INSTALLING: Final = (
    "pip install stepwire",
    "pip install 'stepwire[broker]'",
    "pipx install 'stepwire[broker]'",
    "uvx --from 'stepwire[broker]' stepwire demo",
)


def _compare(what: str, found: set[str], expected: set[str]) -> None:
    if found != expected:
        lines = [f"  lacks {name}" for name in sorted(expected - found)]
        lines += [f"  has, and should not: {name}" for name in sorted(found - expected)]
        raise ProgramError("\n".join([f"{what} does not have the expected files:", *lines]))


def metadata(packages: Packages) -> None:
    """A registry accepts the metadata and the README."""
    twine = (packages.tools / "python", "-m", "twine", "check", "--strict")
    run(*twine, packages.sdist, packages.wheel, directory=packages.scratch)


# -- installed by users -----------------------------------------------------------------------------------------------


def light(packages: Packages) -> None:
    """`pip install stepwire` installs the SDK, pyzmq and msgspec, and runs a handler."""
    with directory_of(packages, "light") as here:
        programs = toolchains.virtual_environment(here / "venv", str(packages.wheel))
        listed = run(programs / "python", "-m", "pip", "list", "--format=freeze", directory=here)
        installed = {line.partition("==")[0] for line in listed.splitlines()}
        if not {"stepwire", "pyzmq", "msgspec"} <= installed <= LIGHT:
            raise ProgramError(f"the SDK alone installs {', '.join(sorted(installed))}")
        run(programs / "python", "-W", "error", "-c", HANDLER, directory=here)
        refused = subprocess.run([programs / "stepwire"], cwd=here, capture_output=True, text=True)
        if refused.returncode != 2 or "pip install 'stepwire[broker]'" not in refused.stderr:
            raise ProgramError(f"`stepwire` of the SDK alone printed:\n{refused.stderr}")


def broker(packages: Packages) -> None:
    """`pip install 'stepwire[broker]'` installs the command line and the kit; typed code passes mypy and pyright."""
    with directory_of(packages, "full") as here:
        programs = toolchains.virtual_environment(here / "venv", f"{packages.wheel}[broker]")
        printed = run(programs / "stepwire", "--quiet", "version", directory=here, environ=environ_in(here))
        if VERSION not in printed:
            raise ProgramError(f"`stepwire version` printed {printed!r}, not {VERSION}")
        typed_project(packages, here, programs)
        kit = ("handler", "conform", "--level", "1", "--", programs / "python", "-m", "stepwire.conform")
        run(programs / "stepwire", *kit, directory=here, environ=environ_in(here))


def typed_project(packages: Packages, here: Path, programs: Path) -> None:
    project = here / "project"
    shutil.copytree(HERE / "typed_project", project, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    python = programs / "python"
    run(packages.tools / "mypy", "--strict", "--python-executable", python, ".", directory=project)
    environ = toolchains.node(here)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / name, here)
    run("npm", "ci", "--no-audit", "--no-fund", "--loglevel=error", directory=here, environ=environ)
    pyright = here / "node_modules/.bin/pyright"
    run(pyright, "--pythonpath", python, directory=project, environ=environ, allowed=("0 errors, 0 warnings, 0 notes",))
    run(python, "-W", "error", "test_worker.py", directory=project)


def pipx(packages: Packages) -> None:
    """`pipx install 'stepwire[broker]'`, then `stepwire demo`."""
    with directory_of(packages, "pipx") as here:
        environ = environ_in(here) | {"PIPX_HOME": str(here / "pipx"), "PIPX_BIN_DIR": str(here / "bin")}
        environ |= {"PIPX_MAN_DIR": str(here / "man"), "PATH": f"{here / 'bin'}{os.pathsep}{os.environ['PATH']}"}
        install = (packages.tools / "pipx", "install", "--quiet", "--python", sys.executable)
        run(*install, f"{packages.wheel}[broker]", directory=here, environ=environ)
        _demo(here, environ, here / "bin/stepwire", "demo")


def uvx(packages: Packages) -> None:
    """`uvx --from 'stepwire[broker]' stepwire demo`."""
    with directory_of(packages, "uvx") as here:
        environ = environ_in(here) | {"UV_CACHE_DIR": str(here / "cache")}
        command = ("--quiet", "--python", sys.executable, "--from", f"stepwire[broker] @ {packages.wheel.as_uri()}")
        _demo(here, environ, packages.tools / "uvx", *command, "stepwire", "demo")


def _demo(here: Path, environ: dict[str, str], *command: str | Path) -> None:
    """Run the demo in an empty directory: it ends with 0 only if its four proofs hold."""
    empty = here / "empty"
    empty.mkdir()
    printed = run(*command, directory=empty, environ=environ)
    if printed.count("✓") != 4:
        raise ProgramError(f"the demo printed:\n{printed}")


@contextmanager
def directory_of(packages: Packages, name: str) -> Iterator[Path]:
    """A directory whose path is short, because the demo's sockets are in it."""
    directory = packages.scratch / name
    directory.mkdir(0o700)
    yield directory


def environ_in(home: Path) -> dict[str, str]:
    """The environment of a new user: this machine's programs, and no settings."""
    kept = {name: value for name, value in os.environ.items() if _KEPT.match(name)}
    return kept | UV | {"HOME": str(home), "STEPWIRE_HTTP__LISTEN": "127.0.0.1:0"}


_KEPT: Final = re.compile(r"(PATH|LANG|(PIP|UV|SSL|REQUESTS|CURL)_\w+|\w+_PROXY)$", re.IGNORECASE)


CHECKS: Final[tuple[Callable[[Packages], None], ...]] = (contents, metadata, page, light, broker, pipx, uvx)


def main(arguments: list[str]) -> int:
    keep = None
    match arguments:
        case []:
            pass
        case ["--keep", directory]:
            keep = Path(directory)
        case _:
            print("usage: python -m tests.packages [--keep DIRECTORY]", file=sys.stderr)
            return 2
    scratch = Path(tempfile.mkdtemp(prefix="sw-"))
    doing: Callable[..., object] = build
    try:
        packages = _timed(build, scratch)
        for doing in CHECKS:
            _timed(doing, packages)
    except (ProgramError, toolchains.MissingTool) as error:
        print(f"FAILED  packages, {doing.__name__}: {error}\nthe files are in {scratch}", file=sys.stderr)
        return 1
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        for file in (packages.sdist, packages.wheel):
            shutil.copy(file, keep)
        (keep / f"stepwire-{VERSION}.cdx.json").write_text(json.dumps(sbom.document(), indent=2) + "\n")
    shutil.rmtree(scratch)
    return 0


def _timed(check: Callable[..., object], *arguments: object) -> Packages:
    begun = time.monotonic()
    result = check(*arguments)
    print(f"ok  {time.monotonic() - begun:5.0f} s  packages: {check.__doc__}", flush=True)
    return result  # type: ignore[return-value]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
