"""The broker: owns dependencies, state, retries and time-outs of steps; handlers own the business logic.

`from stepwire_broker import Broker` is the broker inside an application: see embedded/.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .embedded import (
        Broker,
        BrokerError,
        CommandError,
        InUse,
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
    "InUse",
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
    try:
        module = import_module(".embedded", __name__)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("stepwire", "stepwire_broker", "stepwire_protocol"):
            raise
        raise ModuleNotFoundError(
            f"stepwire_broker.{name} needs the broker's packages ({error.name} is missing)."
            " Install them in a clone of Stepwire's repository:  pip install '.[broker]'",
            name=error.name,
        ) from None
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
