"""Stepwire for Python: write handlers (`Worker`, `Context`, errors) and workflows (`Workflow`), submit tasks
(`Client`), test without a broker.

from stepwire import Context, Worker

worker = Worker.from_env()

@worker.handler("ship_order")
async def ship(ctx: Context, order: dict) -> dict:
    return {"tracking": ...}

worker.run()
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if sys.version_info < (3, 11):  # noqa: UP036 -- a clone also runs without pip, which would refuse
    raise SystemExit(
        "Stepwire needs Python 3.11 or newer, and this is Python "
        + ".".join(map(str, sys.version_info[:3]))
        + ": install a newer Python"
    )

if TYPE_CHECKING:
    from .client import Client
    from .context import Context
    from .errors import ClientError, ConfigurationError, OutcomeUnknown, Permanent, Retry, StepError, StepwireError
    from .worker import Worker
    from .workflow import Workflow, all_of, any_of, none_of

__all__ = [
    "Client",
    "ClientError",
    "ConfigurationError",
    "Context",
    "OutcomeUnknown",
    "Permanent",
    "Retry",
    "StepError",
    "StepwireError",
    "Worker",
    "Workflow",
    "all_of",
    "any_of",
    "none_of",
]

# A client needs no ZeroMQ and a worker no HTTP, so each name loads its module at its first use.
_MODULE_OF = {
    "Client": "client",
    "ClientError": "errors",
    "ConfigurationError": "errors",
    "Context": "context",
    "OutcomeUnknown": "errors",
    "Permanent": "errors",
    "Retry": "errors",
    "StepError": "errors",
    "StepwireError": "errors",
    "Worker": "worker",
    "Workflow": "workflow",
    "all_of": "workflow",
    "any_of": "workflow",
    "none_of": "workflow",
}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'stepwire' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
