"""How a bug is planted: a function, method or value of the shipped code is replaced, and put back afterwards."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple


class Plant:
    """Replaces functions, methods and values wherever the shipped code refers to them, and undoes it."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def function(self, original: Any, instead: Callable[..., Any]) -> None:
        """Call `instead(original, …)` wherever the shipped code calls `original(…)`."""
        new = partial(instead, original)
        for module in list(sys.modules.values()):
            if module.__name__.split(".")[0] in ("stepwire", "stepwire_broker"):
                for name, value in list(vars(module).items()):
                    if value is original:
                        self._set(partial(setattr, module, name), new, original)
                    elif isinstance(value, dict):
                        for key, each in list(value.items()):
                            if each is original:
                                self._set(partial(value.__setitem__, key), new, original)

    def method(self, owner: type, name: str, instead: Callable[..., Any]) -> None:
        original = getattr(owner, name)

        def new(self: Any, *args: Any, **kwargs: Any) -> Any:
            return instead(original, self, *args, **kwargs)

        self._set(partial(setattr, owner, name), new, original)

    def value(self, owner: Any, name: str, new: Any) -> None:
        self._set(partial(setattr, owner, name), new, getattr(owner, name))

    def _set(self, replace: Callable[[Any], None], new: Any, original: Any) -> None:
        replace(new)
        self._undo.append(lambda: replace(original))

    def undo_all(self) -> None:
        for undo in reversed(self._undo):
            undo()


class Bug(NamedTuple):
    name: str
    plant: Callable[[Plant], None]
    was_real: bool = False
    always: frozenset[str] = frozenset()  # kinds of faults that a seed needs to find it
    brokers: int = 1  # of every seed
    is_rare: bool = False  # too few seeds find it for the tests; `--planted` searches for it


@contextmanager
def planted(bug: Bug) -> Iterator[None]:
    """Plant the bug for as long as the context lasts."""
    plant = Plant()
    try:
        bug.plant(plant)
        yield
    finally:
        plant.undo_all()
