"""Progress reports for the clients of the event stream: at most one per step and second, and always the newest.

Reports are in memory only. A client that reads slowly receives fewer of them, and a client that reconnects receives
none again.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from stepwire_broker.core.model.live import StepProgress

from . import core_views
from .engine_port import EnginePort

EVERY_S: Final = 1.0  # between two reports of one step
WAITING_MAX: Final = 1_000  # reports of different steps that wait for one client; the oldest is dropped


class ProgressReader:
    """The reports that wait for one client. `wake` is called when there is a new one."""

    def __init__(self, broker: EnginePort, wake: Callable[[], None]) -> None:
        self._broker = broker
        self._wake = wake
        self._waiting: OrderedDict[int, StepProgress] = OrderedDict()

    def put(self, report: StepProgress) -> None:
        self._waiting[report.step.id] = report
        if len(self._waiting) > WAITING_MAX:
            self._waiting.popitem(last=False)
        self._wake()

    def take(self) -> list[StepProgress]:
        """The waiting reports of steps that still run."""
        reports = [each for each in self._waiting.values() if core_views.is_of_running_step(self._broker, each)]
        self._waiting.clear()
        return reports


class ProgressFeed:
    """Passes reports on to the readers. It listens to the broker only while there is a reader."""

    def __init__(self, broker: EnginePort) -> None:
        self._broker = broker
        self._readers: set[ProgressReader] = set()
        self._remove: Callable[[], None] | None = None
        self._passed_s: OrderedDict[int, float] = OrderedDict()  # by step id, the oldest first: within EVERY_S
        self._later: dict[int, StepProgress] = {}  # newer reports of these steps
        self._timer: asyncio.TimerHandle | None = None

    def open(self, wake: Callable[[], None]) -> ProgressReader:
        reader = ProgressReader(self._broker, wake)
        self._readers.add(reader)
        if self._remove is None:
            self._remove = self._broker.add_progress_listener(self._on_report)
        return reader

    def close(self, reader: ProgressReader) -> None:
        self._readers.discard(reader)
        if self._readers or self._remove is None:
            return
        self._remove()
        self._remove = None
        self._later.clear()
        self._passed_s.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_report(self, report: StepProgress) -> None:
        now_s = asyncio.get_running_loop().time()
        self._forget_until(now_s - EVERY_S)
        if report.step.id in self._passed_s:
            self._later[report.step.id] = report
            self._set_timer()
        else:
            self._pass(report, now_s)

    def _pass(self, report: StepProgress, now_s: float) -> None:
        self._passed_s[report.step.id] = now_s
        for reader in self._readers:
            reader.put(report)

    def _set_timer(self) -> None:
        """Wake when the next of the steps with a newer report may be reported again."""
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(next(iter(self._passed_s.values())) + EVERY_S, self._on_time)

    def _on_time(self) -> None:
        self._timer = None
        now_s = asyncio.get_running_loop().time()
        self._forget_until(now_s - EVERY_S)
        due = [step_id for step_id in self._later if step_id not in self._passed_s]
        for step_id in due:
            report = self._later.pop(step_id)
            if core_views.is_of_running_step(self._broker, report):
                self._pass(report, now_s)
        if self._later:
            self._set_timer()

    def _forget_until(self, until_s: float) -> None:
        while self._passed_s and next(iter(self._passed_s.values())) <= until_s:
            self._passed_s.popitem(last=False)
