"""The `step_execution:` block of Stepwire's predecessor. Each key sets a Stepwire setting, or produces a note that
explains why it has no effect.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from stepwire_broker.core.reading.nearest import did_you_mean
from stepwire_broker.errors import BrokerError

BLOCK: Final = "step_execution"


class MappedKey(NamedTuple):
    """A key of the block. `key` is the setting that it sets, or None."""

    name: str  # in the block
    value: Any
    key: str | None
    note: str


class UnknownKey(BrokerError):
    """The `step_execution` block holds an unknown key. The message names the nearest known one."""


def map_keys(block: Mapping[str, Any]) -> Iterator[MappedKey]:
    """The keys in the order of the block."""
    for name, value in block.items():
        if name in _SETS:
            yield MappedKey(name, value, _SETS[name], f"is now {_SETS[name]}")
        elif name in _NOTES:
            yield MappedKey(name, value, None, _NOTES[name](value, block))
        else:
            hint = did_you_mean(name, NAMES) or f"the known keys are {', '.join(NAMES)}"
            raise UnknownKey(f"{BLOCK}.{name} is not a known setting; {hint}")


def _set_by_handlers(variable: str, endpoint: str) -> Callable[[Any, Mapping[str, Any]], str]:
    def note(value: Any, block: Mapping[str, Any]) -> str:
        text = f"has no effect: each handler sets its own endpoint with {variable}={value}"
        bound = block.get(endpoint)
        return text if bound in (None, value) else f"{text}; but {endpoint} is {bound}, so they cannot connect"

    return note


_SETS: Final = {
    "rust_step_publisher": "bus.steps",
    "rust_result_subscriber": "bus.results",
    "batch_size": "bus.batch.max_steps",
    "step_queue_hwm": "bus.steps_hwm",
    "result_queue_hwm": "bus.results_hwm",
}
_NOTES: Final[dict[str, Callable[[Any, Mapping[str, Any]], str]]] = {
    "handler_step_subscriber": _set_by_handlers("STEPWIRE_STEPS", "rust_step_publisher"),
    "handler_result_publisher": _set_by_handlers("STEPWIRE_RESULTS", "rust_result_subscriber"),
    "result_timeout_ms": lambda value, _: (
        f"has no effect: each step has its own timeout, `timeout_ms: {value}` in its workflow (default 30000);"
        " a worker that is silent for bus.lease_ms loses its steps earlier"
    ),
    "handler_poll_interval_ms": lambda value, _: "has no effect: handlers do not poll; each message wakes its receiver",
}
NAMES: Final = (*_SETS, *_NOTES)
