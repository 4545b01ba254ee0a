"""Generates a client with each generator, compiles it, and fails at the first warning.

The clients of openapi-python-client and openapi-typescript then submit a task to a real broker with a real worker, and
wait for its result. `python -m tests.clients` does everything, `python -m tests.clients typescript` one client. The
document comes from the code. All work is done in a scratch folder, which stays if something fails.
"""

import json
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from stepwire_broker.api import openapi

from tests import toolchains
from tests.cli.a_place import a_shop

HERE: Final = Path(__file__).parent
AT_ONCE: Final = 2
RESULT: Final = '{"state":"completed","result":{"charge":{"total":1.5}},"steps":["completed"]}'

# openapi-generator writes these lines for Python whatever the document holds, also for one schema with one string.
ALLOWED: Final = ("Failed to get the schema name: null",)


class Shop(NamedTuple):
    """A running broker."""

    url: str
    token: str


class Work(NamedTuple):
    """The scratch folder of one client, with the folder of its name in it as a copy."""

    directory: Path
    document: Path
    shop: Shop

    def run(self, *command: str | Path, environ: dict[str, str] | None = None) -> str:
        """Run a command that must succeed without a warning. Returns what it printed to stdout."""
        return toolchains.run(*command, directory=self.directory, environ=environ, allowed=ALLOWED)

    def run_task(self, *command: str | Path, environ: dict[str, str]) -> None:
        """Run a program that submits a task, and compare the result that it prints."""
        addressed = {**environ, "STEPWIRE_URL": self.shop.url, "STEPWIRE_TOKEN": self.shop.token}
        printed = self.run(*command, environ=addressed).strip()
        if printed != RESULT:
            raise toolchains.ProgramError(f"{command[-1]} printed {printed} instead of {RESULT}")


def python(work: Work) -> None:
    """openapi-python-client: generate, check with mypy, run."""
    programs = toolchains.virtual_environment(work.directory / "venv", "-r", str(work.directory / "requirements.txt"))
    environ = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    generate = ("generate", "--path", work.document, "--meta", "none", "--output-path", "stepwire_client")
    work.run(programs / "openapi-python-client", *generate, "--fail-on-warning", environ=environ)
    (work.directory / "stepwire_client/py.typed").touch()
    work.run(programs / "python", "-W", "error", "-m", "compileall", "-q", "stepwire_client")
    # `client.py` is the same for every document, and has types that mypy refuses: it is read, and not reported.
    checked = ("-p", "stepwire_client.api", "-p", "stepwire_client.models", "-m", "run_task")
    work.run(programs / "mypy", "--strict", "--follow-imports=silent", *checked, environ=environ)
    work.run_task(programs / "python", "-W", "error", "run_task.py", environ=environ)


def typescript(work: Work) -> None:
    """openapi-typescript: generate, compile in strict mode, run."""
    environ = toolchains.node(work.directory)
    quiet = ("--no-audit", "--no-fund", "--loglevel=error")
    work.run("npm", "ci", *quiet, environ=environ)
    programs = Path("node_modules/.bin")
    work.run(programs / "openapi-typescript", work.document, "-o", "schema.d.ts", environ=environ)
    work.run(programs / "tsc", environ=environ)
    work.run_task("node", "run_task.js", environ=environ)


def go(work: Work) -> None:
    """oapi-codegen: generate types and client, vet."""
    environ = toolchains.go(work.directory)
    (work.directory / "stepwire").mkdir()
    generate = ("-generate", "types,client", "-package", "stepwire", "-o", "stepwire/client.go", work.document)
    _vet(work, environ, lambda: work.run("go", "tool", "oapi-codegen", *generate, environ=environ))


def java(work: Work) -> None:
    """openapi-generator: generate Java, Python and Go; compile each."""
    toolchains.maven()
    target = work.directory / "target"
    target.mkdir()
    shutil.copy(work.document, target / "openapi.json")
    work.run("mvn", "--batch-mode", "--no-transfer-progress", "compile", environ=dict(os.environ))
    needs = ("pydantic", "python-dateutil", "typing_extensions", "urllib3")
    pinned = ("--constraint", str(HERE / "python/requirements.txt"))
    programs = toolchains.virtual_environment(work.directory / "venv", *pinned, *needs)
    work.run(programs / "python", "-W", "error", "-m", "compileall", "-q", "target/python/stepwire_generated")
    work.run(programs / "python", "-W", "error", "-c", IMPORT_ALL.format(directory=str(target / "python")))
    shutil.copy(HERE / "go/go.mod", target / "go")
    shutil.copy(HERE / "go/go.sum", target / "go")
    generated = work._replace(directory=target / "go")
    _vet(generated, toolchains.go(work.directory), lambda: None)


IMPORT_ALL: Final = """
import importlib, pkgutil, sys
sys.path.insert(0, {directory!r})
import stepwire_generated
modules = [each.name for each in pkgutil.walk_packages(stepwire_generated.__path__, "stepwire_generated.")]
assert len(modules) > 50, modules
for name in modules:
    importlib.import_module(name)
"""


def _vet(work: Work, environ: dict[str, str], generate: Callable[[], object]) -> None:
    work.run("go", "mod", "download", environ=environ)
    generate()
    work.run("go", "vet", "./...", environ=environ)
    work.run("go", "build", "./...", environ=environ)


CLIENTS: Final[dict[str, Callable[[Work], None]]] = {
    "java": java,  # the slowest first
    "python": python,
    "typescript": typescript,
    "go": go,
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in CLIENTS]
    if unknown:
        print(f"unknown: {', '.join(unknown)}; the clients: {', '.join(CLIENTS)}", file=sys.stderr)
        return 2
    scratch = Path(tempfile.mkdtemp(prefix="stepwire-clients-"))
    document = scratch / "openapi.json"
    document.write_text(json.dumps(openapi.document()))
    with ExitStack() as stack:
        shop = _shop(stack, scratch / "shop")
        with ThreadPoolExecutor(AT_ONCE) as pool:
            done = list(pool.map(lambda name: _one(name, scratch, document, shop), names or CLIENTS))
    if not all(done):
        print(f"the generated code is in {scratch}", file=sys.stderr)
        return 1
    shutil.rmtree(scratch)
    return 0


def _shop(stack: ExitStack, directory: Path) -> Shop:
    directory.mkdir(0o700)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    stack.enter_context(a_shop(directory, port))
    return Shop(f"http://127.0.0.1:{port}", (directory / ".stepwire/token").read_text().strip())


def _one(name: str, scratch: Path, document: Path, shop: Shop) -> bool:
    begun = time.monotonic()
    directory = scratch / name
    shutil.copytree(HERE / name, directory, ignore=shutil.ignore_patterns("node_modules", "target", "__pycache__"))
    try:
        CLIENTS[name](Work(directory, document, shop))
    except (toolchains.ProgramError, toolchains.MissingTool) as error:
        print(f"FAILED  client {name}: {error}", file=sys.stderr)
        return False
    print(f"ok  {time.monotonic() - begun:5.0f} s  client {name}: {CLIENTS[name].__doc__}", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
