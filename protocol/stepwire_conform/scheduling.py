"""Runs the cases: long ones side by side, short ones one after the other in a few lanes that keep their program.

A case that needs a program of its own gets one. The others share the program of their lane, which is replaced after a
case that failed, or that left a step behind. A thread that has no long case left helps with the cases that need a
program of their own: most of their time is waiting. Of each kind, the cases that last longest begin first.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from .case import Case, CaseVerdict, Missing, RuleBroken
from .endpoints import Transport
from .frames import shown
from .keys import ServerKeys
from .program import ProgramUnavailable
from .setting import START_S, Setting, last_lines
from .stage import Stage

LANES: Final = 4
LONG_S: Final = 5.0  # a case that lasts this long gets a thread of its own at once
LONG_MAX: Final = 14  # such threads at a time
IDLE_S: Final = 3.0


class CaseOutcome(NamedTuple):
    """The verdict on one case."""

    case: Case
    verdict: CaseVerdict
    seconds: float
    transport: Transport
    what: str = ""
    rule: str = ""
    section: str = ""
    causes: tuple[str, ...] = ()
    frames: tuple[str, ...] = ()


class Schedule:
    """Runs cases of one setting. `report` is called with each outcome, from any thread, one call at a time."""

    def __init__(
        self,
        setting: Setting,
        transports: Sequence[Transport],
        report: Callable[[CaseOutcome], None],
        *,
        lanes: int = LANES,
    ) -> None:
        self._setting = setting
        self._transports = transports
        self._report = report
        self._lanes = lanes
        self._lock = threading.Lock()
        self._has_stopped = False

    def stop(self) -> None:
        """Begin no further case."""
        self._has_stopped = True

    def run(self, cases: Sequence[Case]) -> list[CaseOutcome]:
        """Run every case. Returns the outcomes in the order of the cases."""
        outcomes: dict[str, CaseOutcome] = {}
        longest_first = sorted(cases, key=lambda c: -c.lasts_s)
        long = deque(c for c in longest_first if c.lasts_s >= LONG_S)
        fresh = deque(c for c in longest_first if c.lasts_s < LONG_S and c.fresh)
        shared = deque(c for c in longest_first if c.lasts_s < LONG_S and not c.fresh)

        def keep(outcome: CaseOutcome) -> None:
            with self._lock:
                outcomes[outcome.case.name] = outcome
                self._report(outcome)

        def work(queues: Sequence[deque[Case]], number: int) -> None:
            lane = _Lane(self._setting, self._transports, number)
            try:
                for queue in queues:
                    while not self._has_stopped:
                        try:
                            one = queue.popleft()
                        except IndexError:
                            break
                        keep(lane.run(one))
            finally:
                lane.close()

        plans: list[Sequence[deque[Case]]] = [[long, fresh] for _ in range(min(LONG_MAX, len(long)))]
        plans += [[shared, fresh] for _ in range(self._lanes)]
        threads = [
            threading.Thread(target=work, args=(plan, number), name=f"conform-{number}", daemon=True)
            for number, plan in enumerate(plans)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)  # in pieces, so that Ctrl-C is handled
        return [outcomes[one.name] for one in cases if one.name in outcomes]


class _Lane:
    """Runs one case after the other, with one shared stage."""

    def __init__(self, setting: Setting, transports: Sequence[Transport], number: int) -> None:
        self._setting = setting
        self._transports = transports
        self._number = number
        self._shared: Stage | None = None

    def run(self, case: Case) -> CaseOutcome:
        missing = [name for name in case.needs if not self._setting.has(name)]
        transport = self._transport(case)
        if missing or transport is None:
            what = f"the worker does not offer {', '.join(missing)}" if missing else f"no {case.transport}"
            return CaseOutcome(case, CaseVerdict.MISSING, 0.0, self._transports[0], what)
        began_s = time.monotonic()
        stage: Stage | None = None
        first_frame = 0
        try:
            stage = self._stage(case, transport)
            first_frame = len(stage.frames)
            if case.auto and stage.program is None:
                open_stage(stage)
            case.check(stage)
            stage.pump(0)
            outcome = CaseOutcome(case, CaseVerdict.PASS, time.monotonic() - began_s, stage.transport)
        except Missing as missed:
            outcome = CaseOutcome(case, CaseVerdict.MISSING, time.monotonic() - began_s, transport, str(missed))
        except RuleBroken as failed:
            assert stage is not None
            outcome = _failure(case, failed, stage, first_frame, began_s)
        except ProgramUnavailable as refusal:
            outcome = CaseOutcome(case, CaseVerdict.FAIL, 0.0, transport, f"the program cannot be started: {refusal}")
        except Exception as fault:
            assert stage is not None, "only a case raises here"
            what = f"the case could not read what the worker did: {type(fault).__name__}: {fault}"
            outcome = _failure(case, RuleBroken(what, rule=case.rule), stage, first_frame, began_s)
        if stage is not None:
            self._after(case, stage, outcome.verdict)
        return outcome

    def close(self) -> None:
        if self._shared is not None:
            self._shared.close()
            self._shared = None

    def _transport(self, case: Case) -> Transport | None:
        if case.transport != "any":
            return case.transport if case.transport in self._transports else None
        return self._transports[self._number % len(self._transports)]

    def _stage(self, case: Case, transport: Transport) -> Stage:
        if case.fresh:
            keys = ServerKeys() if case.curve else None
            return Stage(self._setting, transport, brokers=case.brokers, settings=case.settings, keys=keys)
        if self._shared is None:
            self._shared = Stage(self._setting, transport)
        return self._shared

    def _after(self, case: Case, stage: Stage, verdict: CaseVerdict) -> None:
        """Close a stage of its own. Keep the shared one only if nothing of the case is left."""
        if stage is not self._shared:
            stage.close()
        elif verdict is not CaseVerdict.PASS or not _is_clean(stage):
            self.close()


def open_stage(stage: Stage) -> None:
    """Start the program, and wait until it is ready for steps."""
    if not stage.setting.is_level0:
        stage.open_session()
        stage.drop_seen()
        return
    stage.open_brokers()
    broker = stage.broker
    is_subscribed = broker.is_subscribed
    with stage.setting.starts:
        stage.start()
        stage.until(
            lambda: is_subscribed(b"steps ") or is_subscribed(b"steps"), "subscription of `steps `", within_s=START_S
        )
        stage.until(lambda: broker.greeted["results"] > 0, "connection to the results endpoint", within_s=START_S)
    stage.wait(0.5)  # the time that a broker waits before the first batch


def _is_clean(stage: Stage) -> bool:
    """Return every switch, and wait until the worker holds nothing. False if the program must be replaced."""
    broker = stage.broker
    broker.reset_switches()
    stage.outgoing_filter = stage.incoming_filter = None
    stage.note_frames = stage.is_strict = True
    stage.watch.allows_second_answer = stage.watch.allows_lost_order = stage.may_end = False
    if stage.setting.is_level0:
        stage.inbox.clear()
        return True
    count = len(stage.inbox)
    try:
        stage.until(
            lambda: any(m.kind == "heartbeat" and not m.get("holding") for m in stage.inbox[count:]),
            "heartbeat that holds nothing",
            within_s=IDLE_S,
        )
    except RuleBroken:
        return False
    stage.inbox.clear()
    stage.frames.clear()
    return stage.sessions.get(broker.id) is not None


def _failure(case: Case, failed: RuleBroken, stage: Stage, first_frame: int, began_s: float) -> CaseOutcome:
    causes = [failed.cause] if failed.cause else []
    causes += stage.causes()
    if case.cause and not failed.rule:
        causes.append(case.cause)
    what = failed.what
    output = stage.output()
    if "last lines" not in what and output.strip():
        what += last_lines(output).replace("; its last lines", "\nthe last lines of the program", 1)
    return CaseOutcome(
        case,
        CaseVerdict.NON_STRICT if case.strength == "should" and not failed.rule else CaseVerdict.FAIL,
        time.monotonic() - began_s,
        stage.transport,
        what,
        failed.rule or case.rule,
        failed.section or case.section,
        tuple(dict.fromkeys(causes)),
        tuple(shown(stage.frames[first_frame:], began_s)),
    )
