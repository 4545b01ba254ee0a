"""The broker: owns dependencies, state, retries and time-outs of steps; handlers own the business logic.

`from stepwire_broker import Broker` is the broker inside an application: see embedded.py.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .embedded import (
        Broker,
        BrokerError,
        CommandError,
        Task,
        TaskCancelled,
        TaskFailed,
        TaskHeld,
        TaskNotCompleted,
        TaskView,
    )

__all__ = [
    "Broker",
    "BrokerError",
    "CommandError",
    "Task",
    "TaskCancelled",
    "TaskFailed",
    "TaskHeld",
    "TaskNotCompleted",
    "TaskView",
]


def __getattr__(name: str) -> object:
    """Import the embedded broker on first use: the subpackages do not need it."""
    if name not in __all__:
        raise AttributeError(f"module 'stepwire_broker' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(".embedded", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
