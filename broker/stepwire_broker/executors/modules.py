"""Finds the Worker in a Python module, named `pkg.mod` or `pkg.mod:name`."""

import importlib
import os
import sys
from typing import Any

from stepwire import ConfigurationError, Worker

from stepwire_broker.errors import BrokerError


class NoWorker(BrokerError):
    """The module has no Worker to run. The message names what is missing."""


def worker_in(named: str) -> Worker:
    """Import the module, also from the working directory, and return its Worker. The module's exceptions pass through.

    Raises NoWorker.
    """
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
            f"there is no module {module_name} on the import path or in the directory that serve was run in"
        ) from None
    except ConfigurationError as error:
        raise NoWorker(f"{module_name}: {error}") from error
    workers = {id(value): value for value in vars(module).values() if isinstance(value, Worker)}
    if name:
        value = getattr(module, name, None)
        workers = {id(value): value} if isinstance(value, Worker) else {}
    if len(workers) != 1:
        needed = f"a Worker called {name}" if name else "one Worker"
        raise NoWorker(
            f"{module_name} has {len(workers) or 'no'} Worker(s), and needs {needed}: worker = Worker.from_env()"
        )
    (worker,) = workers.values()
    return worker
