"""`pip install .`, for authors of handlers only: it installs nothing of the broker."""

import os
import subprocess
import venv
from pathlib import Path

import pytest

from .harness import REPOSITORY

INSTALL_BOUND_S = 120.0
BROKERS_OWN = (
    "sqlalchemy",
    "psycopg",
    "alembic",
    "tenacity",
    "click",
    "rich",
    "starlette",
    "uvicorn",
    "structlog",
    "yaml",
)

RUN_A_HANDLER = """
import stepwire
from stepwire import testing

async def ship(ctx: stepwire.Context, order: dict) -> dict:
    return {"tracking": f"T{order['id']}", "paid": ctx.results["pay"]["amount"]}

outcome = testing.run(ship, {"id": 7}, results={"pay": {"amount": 12}})
assert outcome.output == {"tracking": "T7", "paid": 12}, outcome
stepwire.Worker, stepwire.Client
print(outcome.status)
"""

TRY_TO_IMPORT = """
import importlib.util, sys
print(*(name for name in sys.argv[1:] if importlib.util.find_spec(name)))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("light")
    venv.create(directory, with_pip=True)
    python = directory / "bin" / "python"
    installed = run(python, "-m", "pip", "install", "--disable-pip-version-check", "-q", str(REPOSITORY))
    if installed.returncode != 0 and "No matching distribution" in installed.stderr:
        pytest.skip(f"there is no package registry here: {installed.stderr.strip().splitlines()[-1]}")
    assert installed.returncode == 0, installed.stderr
    return python


def test_the_light_install_runs_a_handler_without_a_broker(python: Path) -> None:
    ran = run(python, "-c", RUN_A_HANDLER)
    assert (ran.returncode, ran.stdout) == (0, "completed\n"), ran.stderr


def test_the_light_install_has_no_dependency_of_the_broker(python: Path) -> None:
    assert run(python, "-c", TRY_TO_IMPORT, *BROKERS_OWN).stdout.strip() == ""


def test_the_command_of_the_light_install_explains_how_to_install_the_broker(python: Path) -> None:
    result = run(python.with_name("stepwire"))
    assert result.returncode == 2
    assert "pip install '.[broker]'" in result.stderr
    assert result.stdout == ""


def test_an_import_of_the_broker_in_the_light_install_explains_how_to_install_it(python: Path) -> None:
    result = run(python, "-c", "from stepwire_broker import Broker")
    assert result.returncode == 1
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("ModuleNotFoundError")]
    assert line == (
        "ModuleNotFoundError: stepwire_broker.Broker needs the broker's packages (structlog is missing)."
        " Install them in a clone of Stepwire's repository:  pip install '.[broker]'"
    )


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command without the packages of the interpreter that runs the tests."""
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(
        [str(part) for part in command],
        cwd=Path(command[0]).parent,
        env=environ,
        capture_output=True,
        text=True,
        timeout=INSTALL_BOUND_S,
        check=False,
    )
