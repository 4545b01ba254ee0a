"""The autoscaler: looks at the backlog every second, and starts and ends copies as the decision says.

Nothing here ends a copy that holds a step, except after the time limit of the autoscaler's own end. While the broker
does not answer, the copies stay as they are, and those that end are replaced.
"""

import asyncio
import re
import secrets
import signal
import time
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from stepwire_broker.errors import BrokerError

from .copies import Copy, CopyNotStarted, CopyState
from .deaths import DeathReports
from .deciding import ChangeDecision, ChangeReason, CopyFigures, CopyLimits, decide
from .guard import OrphanGuard
from .look import BrokerQuestions, ConnectedWorker, Look, NoAnswer, SeenBacklog
from .output import Passing

LOOK_S: Final = 1.0
FAILED_STARTS_MAX: Final = 5  # in a row: then the autoscaler ends
RESTART_S: Final = 0.2
RESTART_MAX_S: Final = 30.0
SETTLED_S: Final = 60.0  # a copy that served this long is replaced without the longer waits
START_S: Final = 60.0  # for a copy to open a session
ASK_S: Final = 5.0  # for a leaving copy to end by itself once it holds no step; then it gets TERM
KILL_S: Final = 10.0  # then it is killed
UNLISTED_S: Final = 60.0  # a worker that the broker does not list is expected to hold its steps for this time
STRANGE_ROUNDS: Final = 2  # the broker may have restarted between the two answers of one round
DOUBLINGS_MAX: Final = 8

_DIGITS: Final = re.compile(r"\d+")


class CopyEvent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that changed, for the output of the command."""

    event: str
    text: str
    copies: int | None = None
    copy: int | None = None
    worker: str | None = None
    reason: str | None = None
    waiting: int | None = None
    running: int | None = None


class CopiedCommand(Struct, frozen=True, kw_only=True):
    """The worker command, and how many copies of it to keep."""

    argv: tuple[str, ...]
    environ: Mapping[str, str]
    limits: CopyLimits
    slots: int | None
    drain_s: float  # for the copies to finish their steps when the autoscaler ends


class StartsFail(BrokerError):
    """The command ended before it opened a session, five times in a row. `printed`: the end of its last output."""

    def __init__(self, text: str, printed: str) -> None:
        super().__init__(text)
        self.printed = printed


class Supervisor:
    def __init__(
        self,
        command: CopiedCommand,
        questions: BrokerQuestions,
        deaths: DeathReports,
        passing: Passing,
        tell: Callable[[CopyEvent], None],
    ) -> None:
        self._command = command
        self._questions = questions
        self._deaths = deaths
        self._passing = passing
        self._tell = tell
        self._mark = secrets.token_hex(8)
        self._guard = OrphanGuard(self._mark)
        self._copies: dict[int, Copy] = {}
        self._owners: dict[str, Copy | None] = {}  # by worker id, of the workers of this host
        self._copies_before = 0  # at the last answer of the broker
        self._strange_rounds = 0  # in a row: copies have sessions, and the broker counts none as a worker of this kind
        self._waits: set[asyncio.Task[None]] = set()
        self._numbered = 0
        self._slots_per_copy = command.slots
        self._changed_s: float | None = None
        self._start_after_s = 0.0
        self._deaths_in_row = 0
        self._failed_starts = 0
        self._counted_s = 0.0  # when the last failed start was counted
        self._failure: StartsFail | None = None
        self._is_stopping = False
        self._woken = asyncio.Event()
        self._told: dict[str, str] = {}  # the last sentence of each kind, so that it is not repeated

    async def run(self, stop: asyncio.Event) -> None:
        """Keep the copies until `stop` is set. Raises StartsFail, after the copies have ended."""
        stopping = asyncio.ensure_future(stop.wait())
        try:
            while not stop.is_set() and self._failure is None:
                self._guard.keep()
                await self._round()
                woken = asyncio.ensure_future(self._woken.wait())
                await asyncio.wait((stopping, woken), timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                woken.cancel()
                self._woken.clear()
        finally:
            stopping.cancel()
        if self._failure is not None:
            await self.end()
            raise self._failure

    async def end(self) -> None:
        """Drain the copies, wait until they have ended, and kill those that take too long."""
        self._is_stopping = True
        for copy in self._alive():
            await self._leave(copy)
        until_s = time.monotonic() + self._command.drain_s
        while self._copies and time.monotonic() < until_s:
            look = await self._look()
            for copy in self._alive():
                if isinstance(look, Look):
                    self._see(copy, self._workers_of(copy, look))
                elif copy.in_state_s > LOOK_S:
                    copy.ask_to_end()  # a worker drains by itself then
            await self._await_ends(LOOK_S)
        self.kill()
        while self._copies:
            await self._await_ends(LOOK_S)

    def kill(self) -> None:
        for copy in self._alive():
            copy.kill()

    def close(self) -> None:
        """End whatever is left."""
        self._deaths.close()
        self._guard.close()

    # -- one round ----------------------------------------------------------------------------------------------------

    async def _round(self) -> None:
        look = await self._look()
        if isinstance(look, NoAnswer):
            self._tell_once("broker", f"the broker does not answer as it should: {look.error.message}")
            await self._replace_dead()
            return
        self._told.pop("broker", None)
        for copy in self._alive():
            self._see(copy, self._workers_of(copy, look))
        self._copies_before = len(self._staying())
        decision = self._decided(look)
        self._tell_reason(decision, look.backlog)
        if decision.change > 0:
            self._grow(decision, look.backlog)
        for _ in range(-decision.change):
            await self._shrink(decision, look.backlog)

    async def _look(self) -> Look | NoAnswer:
        return await asyncio.to_thread(self._questions.look, self._slots_per_copy)

    def _workers_of(self, copy: Copy, look: Look) -> list[ConnectedWorker]:
        known = {}
        for one in look.workers:
            owner = self._owners.get(one.id)
            if owner is None and one.id not in self._owners:
                owner = next((each for each in self._alive() if each.owns(one.pid)), None)
            known[one.id] = owner
        self._owners = known
        return [one for one in look.workers if known[one.id] is copy]

    def _decided(self, look: Look) -> ChangeDecision:
        staying = self._staying()
        own_slots = sum(copy.slots for copy in self._alive() if copy.state is CopyState.SERVING)
        self._strange_rounds = self._strange_rounds + 1 if own_slots and not look.backlog.slots else 0
        per_worker = look.backlog.slots_per_worker
        # `wanted_workers` leaves out the steps that no further worker would help.
        is_wanted = look.backlog.wanted_workers > 0
        load = min(look.backlog.waiting + look.backlog.running, look.backlog.wanted_workers * per_worker)
        seen = CopyFigures(
            load=load if is_wanted else 0,
            copies=len(staying),
            starting=sum(copy.state is CopyState.STARTING for copy in staying),
            leaving=len(self._copies) - len(staying),
            slots_per_copy=self._slots_per_copy,
            other_slots=max(0, look.backlog.slots - own_slots),
            unfit=look.backlog.unfit,
            are_other_workers=self._strange_rounds >= STRANGE_ROUNDS,
        )
        since_s = None if self._changed_s is None else time.monotonic() - self._changed_s
        return decide(self._command.limits, seen, None if since_s is None else int(since_s * 1000))

    async def _replace_dead(self) -> None:
        """Without an answer, keep as many copies as there were."""
        wanted = max(self._command.limits.least, self._copies_before)
        missing = wanted - len(self._staying())
        if missing > 0:
            self._start(min(missing, self._command.limits.step))

    # -- growth and reduction -----------------------------------------------------------------------------------------

    def _grow(self, decision: ChangeDecision, backlog: SeenBacklog) -> None:
        started = self._start(decision.change)
        if started:
            self._changed_s = time.monotonic()
            self._report("grown", f"started {_counted(started)}", decision, backlog)

    def _start(self, count: int) -> int:
        if time.monotonic() < self._start_after_s:
            return 0
        for done in range(count):
            self._numbered += 1
            try:
                copy = Copy(self._numbered, self._command.argv, self._command.environ, self._mark, self._passing)
            except CopyNotStarted as error:
                self._failure = StartsFail(str(error), "")
                return done
            self._guard.add(copy.pid)
            self._copies[copy.number] = copy
            task = asyncio.ensure_future(self._await_end(copy))
            self._waits.add(task)
            task.add_done_callback(self._waits.discard)
        return count

    async def _shrink(self, decision: ChangeDecision, backlog: SeenBacklog) -> None:
        copy = min(
            (each for each in self._copies.values() if each.state is CopyState.SERVING),
            key=lambda each: (each.holding, -each.number),
            default=None,
        )
        if copy is not None:
            self._changed_s = time.monotonic()
            await self._leave(copy)
            self._report("shrunk", f"copy {copy.number} drains and ends", decision, backlog)

    async def _leave(self, copy: Copy) -> None:
        """Let a copy finish the steps that it holds, and then end."""
        was = copy.state
        copy.enter(CopyState.LEAVING)
        if was is CopyState.STARTING or not copy.workers:
            copy.ask_to_end()
            return
        for worker in copy.workers:
            error = await asyncio.to_thread(self._questions.end_worker, worker)
            if error is not None:
                self._tell_once("drain", f"copy {copy.number} drains by TERM: {error.message}")
                copy.ask_to_end()
                return

    # -- the copies ---------------------------------------------------------------------------------------------------

    def _see(self, copy: Copy, workers: list[ConnectedWorker]) -> None:
        """Take over what the broker knows of the copy's workers."""
        copy.slots = sum(one.slots for one in workers if not one.is_leaving)
        if workers:
            copy.workers = {one.id: one.slots for one in workers}
            copy.holding = sum(one.holding for one in workers)
            copy.listed_s = time.monotonic()
        if copy.state is CopyState.STARTING:
            self._see_start(copy, workers)
        elif copy.state is CopyState.LEAVING:
            self._see_end(copy)

    def _see_start(self, copy: Copy, workers: list[ConnectedWorker]) -> None:
        if workers:
            copy.enter(CopyState.SERVING)
            self._failed_starts = 0
            self._slots_per_copy = copy.slots or self._slots_per_copy
            names = ", ".join(one.id for one in workers)
            self._tell(CopyEvent(event="serving", text=f"copy {copy.number} serves: {names}", copy=copy.number))
        elif copy.in_state_s > START_S:
            copy.kill()  # its end counts as a failed start

    def _see_end(self, copy: Copy) -> None:
        """End the process of a worker that holds no step and does not end by itself. A worker that is not listed may
        have lost its connection, and still holds what it held."""
        now_s = time.monotonic()
        if copy.holding and now_s - copy.listed_s < UNLISTED_S:
            copy.free_since_s = None
            return
        if copy.free_since_s is None:
            copy.free_since_s = now_s
        if now_s - copy.free_since_s > KILL_S:
            copy.kill()
        elif now_s - copy.free_since_s > ASK_S:
            copy.ask_to_end()

    async def _await_end(self, copy: Copy) -> None:
        code = await copy.wait(lambda: self._report_deaths(copy))
        self._guard.remove(copy.pid)
        del self._copies[copy.number]
        self._woken.set()
        if copy.state is CopyState.LEAVING or self._is_stopping:
            self._tell(CopyEvent(event="ended", text=f"copy {copy.number} has ended", copy=copy.number))
            return
        self._after_death(copy, code)

    def _report_deaths(self, copy: Copy) -> None:
        for worker in copy.workers:
            self._deaths.report(worker)

    def _after_death(self, copy: Copy, code: int) -> None:
        now_s = time.monotonic()
        is_start = copy.state is CopyState.STARTING
        if is_start and copy.started_s >= self._counted_s:  # copies that were started together count once
            self._failed_starts += 1
            self._counted_s = now_s
        if now_s - copy.started_s > SETTLED_S:
            self._deaths_in_row = 0
        wait_s = min(RESTART_S * 2**self._deaths_in_row, RESTART_MAX_S)
        self._deaths_in_row = min(self._deaths_in_row + 1, DOUBLINGS_MAX)
        self._start_after_s = now_s + wait_s
        how = _end_text(code)
        what = "before it opened a session" if is_start else "while it served"
        text = f"copy {copy.number} {how} {what}; the next one starts in {wait_s:g} s"
        self._tell(CopyEvent(event="died", text=text, copy=copy.number, worker=next(iter(copy.workers), None)))
        if self._failed_starts >= FAILED_STARTS_MAX:
            self._failure = StartsFail(
                f"the command {how} before it opened a session, {FAILED_STARTS_MAX} times in a row", copy.printed.end
            )

    async def _await_ends(self, most_s: float) -> None:
        if self._waits:
            await asyncio.wait(self._waits, timeout=most_s, return_when=asyncio.FIRST_COMPLETED)

    def _alive(self) -> list[Copy]:
        return list(self._copies.values())

    def _staying(self) -> list[Copy]:
        return [copy for copy in self._copies.values() if copy.state in (CopyState.STARTING, CopyState.SERVING)]

    # -- output -------------------------------------------------------------------------------------------------------

    def _report(self, event: str, text: str, decision: ChangeDecision, backlog: SeenBacklog) -> None:
        copies = len(self._staying())
        why = f"{backlog.waiting} steps wait, {backlog.running} run, {backlog.slots} slots are connected"
        self._tell(
            CopyEvent(
                event=event,
                text=f"{text}: {_counted(copies)} now ({why})",
                copies=copies,
                reason=decision.reason,
                waiting=backlog.waiting,
                running=backlog.running,
            )
        )

    def _tell_reason(self, decision: ChangeDecision, backlog: SeenBacklog) -> None:
        """Tell once why waiting steps start no copy."""
        if backlog.because:
            self._tell_once("because", f"no copy is started for some steps: {'; '.join(backlog.because)}")
        else:
            self._told.pop("because", None)
        if self._strange_rounds >= STRANGE_ROUNDS:
            self._tell_once("other", "the copies are connected, and none of them offers the handler with these labels")
        else:
            self._told.pop("other", None)
        if decision.reason is ChangeReason.AT_MAX:
            self._tell_once("max", f"{_counted(self._command.limits.most)} run, the largest number, and steps wait")
        else:
            self._told.pop("max", None)

    def _tell_once(self, kind: str, text: str) -> None:
        sentence = _DIGITS.sub("", text)  # a count that changes is no other reason
        if self._told.get(kind) != sentence:
            self._told[kind] = sentence
            self._tell(CopyEvent(event=kind, text=text, copies=len(self._staying())))


def _counted(copies: int) -> str:
    return f"{copies} copy" if copies == 1 else f"{copies} copies"


def _end_text(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
