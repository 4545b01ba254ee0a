"""The `step_execution:` block of the system that Stepwire grew out of, taken word for word: each of its keys sets one
of ours, or is told why there is nothing to set.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from stepwire_broker.core.definitions.nearest import did_you_mean

BLOCK: Final = "step_execution"


class Taken(NamedTuple):
    """One key of the block. Without `key` nothing is set."""

    name: str  # in the block
    value: Any
    key: str | None
    note: str


class UnknownKey(Exception):
    """The block holds a key that was never part of it. The message says which may be meant."""


def take(block: Mapping[str, Any]) -> Iterator[Taken]:
    """In the order of the block."""
    for name, value in block.items():
        if name in _SETS:
            yield Taken(name, value, _SETS[name], f"is {_SETS[name]} now")
        elif name in _WHY_NOT:
            yield Taken(name, value, None, _WHY_NOT[name](value, block))
        else:
            hint = did_you_mean(name, NAMES) or f"known are {', '.join(NAMES)}"
            raise UnknownKey(f"{BLOCK}.{name} is not a known setting; {hint}")


def _handlers_say(variable: str, ours: str) -> Callable[[Any, Mapping[str, Any]], str]:
    def why(value: Any, block: Mapping[str, Any]) -> str:
        note = f"sets nothing here: handlers say it themselves, by {variable}={value}"
        bound = block.get(ours)
        return note if bound in (None, value) else f"{note}; but {ours} is {bound}, so they would not meet"

    return why


_SETS: Final = {
    "rust_step_publisher": "bus.steps",
    "rust_result_subscriber": "bus.results",
    "batch_size": "bus.batch.max_steps",
    "step_queue_hwm": "bus.steps_hwm",
    "result_queue_hwm": "bus.results_hwm",
}
_WHY_NOT: Final[dict[str, Callable[[Any, Mapping[str, Any]], str]]] = {
    "handler_step_subscriber": _handlers_say("STEPWIRE_STEPS", "rust_step_publisher"),
    "handler_result_publisher": _handlers_say("STEPWIRE_RESULTS", "rust_result_subscriber"),
    "result_timeout_ms": lambda value, _: (
        f"sets nothing: each step has a time of its own, `timeout_ms: {value}` in its workflow"
        " (30000 without), and a worker that is silent for bus.lease_ms loses its steps before that"
    ),
    "handler_poll_interval_ms": lambda value, _: "sets nothing: nobody polls, a message wakes whoever waits for it",
}
NAMES: Final = (*_SETS, *_WHY_NOT)
