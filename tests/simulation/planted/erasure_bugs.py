"""Bugs that leave a payload of an erased task somewhere."""

from typing import Any, Final

from stepwire_broker.core.answers import erasing
from stepwire_broker.core.commit import scrubbing
from stepwire_broker.core.intake import erasure

from .plant import Bug, Plant


def _messages_stay(plant: Plant) -> None:
    plant.function(scrubbing.scrubbed, lambda original, row: row)


def _fact_without_rows(plant: Plant) -> None:
    def erase(original: Any, state: Any, task: Any, *more: Any) -> None:
        original(state, task, *more)
        task.erase_ms = None

    plant.function(erasure.erase, erase)


def _retried_again(plant: Plant) -> None:
    plant.function(erasing.erased_ms, lambda original, labels: None)


BUGS: Final = (
    Bug("an erasure leaves the messages in the history", _messages_stay),
    Bug("an erasure records its fact and changes no rows", _fact_without_rows),
    Bug("an erased task is erased or retried like any other", _retried_again),
)
