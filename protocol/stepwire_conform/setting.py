"""The setting that all stages of one run share: the command, its environment and its limits."""

import itertools
import signal
import threading
from collections.abc import Mapping, Sequence
from typing import Final

from .endpoints import PrivateEndpoints

NAME: Final = "conform"
SLOTS: Final = 4
ENOUGH_S: Final = 12.0  # for anything that a good worker does at once; only a failing case waits until the end
START_S: Final = 25.0  # from the start of the program to its first message
STARTS_MAX: Final = 4  # programs that start at a time: many runtimes that start at once would delay each other


class Setting:
    """The command of a run, and what the first look found out about it."""

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        endpoints: PrivateEndpoints,
        token: str,
        *,
        patience: float = 1.0,
    ) -> None:
        self.command = command
        self.environ = environ
        self.endpoints = endpoints
        self.token = token
        self.patience = patience
        self.handlers: tuple[str, ...] = ()  # that the program offers
        self.is_level0 = False
        self.starts = threading.BoundedSemaphore(STARTS_MAX)  # held from a program's start to its session
        self._numbers = itertools.count(1)

    def next_token(self) -> str:
        return f"{self.token}-{next(self._numbers)}"

    def has(self, handler: str) -> bool:
        return handler in self.handlers


def ended(code: int) -> str:
    return f"been ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def last_lines(output: str, count: int = 6) -> str:
    lines = [line for line in output.splitlines() if line.strip()][-count:]
    return "; its last lines:\n" + "\n".join(f"    {line[:300]}" for line in lines) if lines else "; it wrote nothing"
