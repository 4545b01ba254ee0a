"""Finds the Worker in a Python module that somebody has named: `pkg.mod` or `pkg.mod:name`."""

import importlib
import os
import sys
from typing import Any

from stepwire import ConfigurationError, Worker

from stepwire_broker.errors import BrokerError


class NoWorker(BrokerError):
    """A module has no worker to run. The message names what was expected."""


def worker_in(named: str) -> Worker:
    """Looked for from the working directory on, too. What the module itself raises is raised here."""
    module_name, _, name = named.partition(":")
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        module: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise NoWorker(
            f"there is no module {module_name}: it is looked for from the directory that serve was run in"
        ) from None
    except ConfigurationError as error:
        raise NoWorker(f"{module_name}: {error}") from error
    found = {id(value): value for value in vars(module).values() if isinstance(value, Worker)}
    if name:
        value = getattr(module, name, None)
        found = {id(value): value} if isinstance(value, Worker) else {}
    if len(found) != 1:
        said = f"a Worker called {name}" if name else "one Worker"
        raise NoWorker(
            f"{module_name} has {len(found) or 'no'} Worker(s), and needs {said}: worker = Worker.from_env()"
        )
    (worker,) = found.values()
    return worker
