"""Regular checks on the loop: wake the core when a timer is due, and detect a blocked loop or a hanging commit."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import structlog

from .core.backlog.unroutable import Unroutable, find_unroutable
from .core.machine import Machine
from .core.model.commit_group import Broken, Stalled
from .core.model.events import Event, LoopWasLate
from .core.model.figures import Histogram
from .store.clocks import read_clocks

log = structlog.get_logger("stepwire.broker")

PULSE_MS: Final = 250  # how often the clock and the writer are checked
LATE_MS: Final = 500  # a longer gap means that the loop read nothing, so no worker was silent
UNROUTABLE_EVERY_MS: Final = 2_000
COMMIT_LATE_MS: Final = 1_000  # a longer commit is reported as trouble with the database
TICKS_PUT_OFF_MAX: Final = 50  # timers must run even under steady load, when there is always a message to read


class PulseActions(NamedTuple):
    """The functions that a pulse calls, and the histogram it fills."""

    handle: Callable[[Event], None]
    tick: Callable[[int], None]  # expires the timers that are due at this `mono`
    flush: Callable[[], None]
    is_behind: Callable[[], bool]  # the bus holds messages that were not read
    database_lost: Callable[[], str | None]  # why the database is no longer the one that was opened
    report: Callable[[Stalled | Broken], None]
    loop_lag_s: Histogram
    turned: Callable[[], None]  # the loop turns


class Pulse:
    """From `start` to `stop`, wakes the core when its next timer is due (`arm`), and beats every `PULSE_MS`."""

    def __init__(self, machine: Machine, actions: PulseActions) -> None:
        self._machine = machine
        self._state = machine.state
        self._actions = actions
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_mono = 0
        self._beat_due: asyncio.TimerHandle | None = None
        self._last_turn_mono = 0
        self._last_turn_cpu_s = 0.0
        self._ticks_put_off = 0
        self._unroutable_mono = 0
        self._unroutable: dict[Any, Unroutable] = {}

    @property
    def unroutable(self) -> list[Unroutable]:
        """The ready steps that no worker could take for too long, as of the last check."""
        return list(self._unroutable.values())

    def start(self) -> None:
        self._last_turn_mono = read_clocks().mono
        self._last_turn_cpu_s = time.thread_time()
        self._beat()
        self._tick()

    def stop(self) -> None:
        for handle in (self._timer, self._beat_due):
            if handle is not None:
                handle.cancel()

    def arm(self) -> None:
        """Schedule a wake-up for the core's next timer, unless an earlier wake-up is scheduled."""
        wake_at = self._machine.wake_at
        if wake_at is None or (self._timer is not None and self._timer_mono <= wake_at):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_mono = wake_at
        self._timer = self._loop.call_later(max(0, wake_at - read_clocks().mono) / 1000, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self._ticks_put_off < TICKS_PUT_OFF_MAX and self._actions.is_behind():
            # Read arrived messages before the core considers a worker silent.
            self._ticks_put_off += 1
            self._timer_mono = 0
            self._timer = self._loop.call_later(0, self._tick)
            return
        self._ticks_put_off = 0
        self._actions.tick(self._check_clock())
        self._actions.flush()

    def _beat(self) -> None:
        if self._beat_due is not None:
            self._actions.loop_lag_s.observe(max(0.0, self._loop.time() - self._beat_due.when()))
        self._beat_due = self._loop.call_later(PULSE_MS / 1000, self._beat)
        self._check_clock()
        self._actions.turned()
        self._check_writer()
        self._check_database()
        self._check_unroutable()

    def _check_clock(self) -> int:
        """Report a blocked loop to the core: no worker was silent while this broker did not read. Returns the `mono` of
        the check: timers that are due by then may expire. A suspension after it is found by the next check."""
        now = read_clocks()
        gap_ms = now.mono - self._last_turn_mono - PULSE_MS
        self._last_turn_mono = now.mono
        cpu_before_s, self._last_turn_cpu_s = self._last_turn_cpu_s, time.thread_time()
        if gap_ms > LATE_MS:
            busy_ms = round((self._last_turn_cpu_s - cpu_before_s) * 1000)
            log.warning("loop_was_late", gap_ms=gap_ms, busy_ms=busy_ms)
            self._actions.handle(LoopWasLate(gap_ms))
        return now.mono

    def _check_writer(self) -> None:
        """Report a commit that hangs, because its writer cannot. No new work is accepted until the commit ends."""
        now = read_clocks()
        for lane in self._state.outbox.lanes.values():
            late_ms = 0 if lane.is_idle else now.mono - lane.handed_mono
            if late_ms > COMMIT_LATE_MS and lane.stalled is None:
                text = f"a commit has taken {late_ms} ms so far"
                self._actions.report(Stalled(lane.number, lane.handed, "database_unavailable", text))

    def _check_database(self) -> None:
        """Report a removed database, which the writer of an idle broker would not notice."""
        lost = self._actions.database_lost()
        if lost is not None:
            self._actions.report(Broken(min(self._state.lanes, default=0), lost))

    def _check_unroutable(self) -> None:
        """Log each kind of unroutable step once, and again when it recurs."""
        now = read_clocks()
        if now.mono - self._unroutable_mono < UNROUTABLE_EVERY_MS:
            return
        self._unroutable_mono = now.mono
        unroutable = {each[:3]: each for each in find_unroutable(self._state, now)}
        for kind in unroutable.keys() - self._unroutable.keys():
            each = unroutable[kind]
            log.warning(
                "steps_unroutable",
                handler_class=each.handler_class,
                executor=each.executor,
                worker_selector=dict(each.worker_selector),
                steps=each.steps,
                hint="no connected worker can take them; `stepwire why TASK` gives the reason",
            )
        self._unroutable = unroutable
