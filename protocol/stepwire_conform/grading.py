"""Grades one command: looks at it, runs the cases of the levels, and adds up the verdicts."""

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from . import cases as _cases  # registers them
from .arrival import look
from .case import CASES, LEVEL_WORDS, Case, CaseVerdict, Level, RuleBroken
from .endpoints import PrivateEndpoints, Transport
from .program import adopted_orphans, children_of, end_adopted
from .scheduling import LANES, CaseOutcome, Schedule
from .setting import Setting
from .stage import Stage

assert _cases

PREFIX: Final = "stepwire-conform-"
_REMOVED: Final = (
    *("STEPWIRE_CURVE_SERVER_KEY", "STEPWIRE_CURVE_PUBLIC_KEY", "STEPWIRE_CURVE_SECRET_KEY"),
    *("STEPWIRE_SECRETS_DIR", "STEPWIRE_SEAL_KEYS_FILE"),
)


class Grade(NamedTuple):
    """The result of a run. `problem`: why the program could not be graded."""

    outcomes: tuple[CaseOutcome, ...]
    speaks: Level | None  # the level that the program speaks by itself: 0 or 1
    asked: Level | None  # that of --level
    transports: tuple[Transport, ...]
    handlers: tuple[str, ...]
    seconds: float
    problem: str = ""
    is_usage: bool = False

    def count(self, verdict: CaseVerdict, up_to: Level | None = None) -> int:
        return sum(o.verdict is verdict for o in self.outcomes if up_to is None or o.case.level <= up_to)

    @property
    def reached(self) -> Level | None:
        """The highest level of which every case was run and none prevents conformance, as of all levels below."""
        if self.speaks is None:
            return None
        reached = None
        for level in (Level.ZERO,) if self.speaks is Level.ZERO else (Level.ONE, Level.FULL, Level.HARDENED):
            own = [o for o in self.outcomes if o.case.level is level]
            if not own or len(own) < sum(case.level is level for case in CASES.values()) or any(map(_prevents, own)):
                break
            reached = level
        return reached

    @property
    def decides(self) -> Level | None:
        """The level whose cases decide about the exit code."""
        return self.speaks if self.asked is None else self.asked

    @property
    def has_failed(self) -> bool:
        return bool(self.problem) or self.count(CaseVerdict.FAIL, self.decides) > 0


def _prevents(outcome: CaseOutcome) -> bool:
    """Whether this outcome prevents conformance at its level. What is only recommended or optional may be missing."""
    is_needed = outcome.case.strength == "must" and not outcome.case.optional
    is_missing = outcome.verdict is CaseVerdict.MISSING and is_needed
    return is_missing or outcome.verdict is CaseVerdict.FAIL


def selected(level: Level | None, speaks: Level | None, only: Sequence[str] = ()) -> list[Case]:
    """The cases of a run. Level 0 is separate: a worker with sessions has none of its cases."""
    if speaks is None:
        levels = tuple(Level)
    elif Level.ZERO in (level, speaks):
        levels = (Level.ZERO,)
    else:
        levels = tuple(one for one in Level if Level.ZERO < one <= (Level.HARDENED if level is None else level))
    return [case for case in CASES.values() if case.level in levels and (not only or _is_meant(case.name, only))]


def _is_meant(name: str, only: Sequence[str]) -> bool:
    """Whether --only means this case. The whole name of a case means that case alone."""
    return any(name == word or (word not in CASES and name.startswith(word)) for word in only)


def grade(
    command: Sequence[str],
    *,
    level: Level | None = None,
    only: Sequence[str] = (),
    report: Callable[[CaseOutcome], None] = lambda outcome: None,
    found: Callable[[Grade, int], None] = lambda grade, cases: None,
    environ: dict[str, str] | None = None,
    patience: float = 1.0,
    lanes: int = LANES,
) -> Grade:
    """Run the cases against the command. Leaves no process and no file behind, whatever happens."""
    began_s = time.monotonic()
    known = frozenset(children_of(os.getpid()))
    directory = Path(tempfile.mkdtemp(prefix=PREFIX))
    with adopted_orphans():
        try:
            given = dict(os.environ if environ is None else environ)
            for name in _REMOVED:
                given.pop(name, None)
            setting = Setting(command, given, PrivateEndpoints(directory), secrets.token_hex(8), patience=patience)
            return _grade(setting, level, only, report, found, lanes, began_s)
        finally:
            end_adopted(known)
            shutil.rmtree(directory, ignore_errors=True)


def _grade(
    setting: Setting,
    level: Level | None,
    only: Sequence[str],
    report: Callable[[CaseOutcome], None],
    found: Callable[[Grade, int], None],
    lanes: int,
    began_s: float,
) -> Grade:
    arrival = look(setting)
    speaks = None if arrival.level is None else Level(arrival.level)
    first = Grade((), speaks, level, arrival.transports, arrival.handlers, 0.0, arrival.problem, arrival.is_usage)
    if arrival.problem:
        return first._replace(seconds=time.monotonic() - began_s)
    mismatch = _mismatch(level, speaks)
    if mismatch:
        return first._replace(problem=mismatch, seconds=time.monotonic() - began_s)
    setting.handlers = arrival.handlers
    setting.is_level0 = speaks is Level.ZERO
    if setting.is_level0:
        setting.handlers = _handlers_at_level0(setting, arrival.transports[0])
    chosen = selected(level, speaks, only)
    found(first._replace(handlers=setting.handlers), len(chosen))
    schedule = Schedule(setting, arrival.transports, report, lanes=lanes)
    try:
        outcomes = schedule.run(chosen)
    except BaseException:
        schedule.stop()
        raise
    return first._replace(outcomes=tuple(outcomes), handlers=setting.handlers, seconds=time.monotonic() - began_s)


def _mismatch(level: Level | None, speaks: Level | None) -> str:
    if level is None or speaks is None or (level is Level.ZERO) == (speaks is Level.ZERO):
        return ""
    word = LEVEL_WORDS[level]
    if speaks is Level.ZERO:
        return f"--level {word}: the program subscribes `steps ` and sends no `hello`: it is a handler at level 0"
    return f"--level {word}: the program sends `hello`: it is a worker at level 1"


def _handlers_at_level0(setting: Setting, transport: Transport) -> tuple[str, ...]:
    """A program at level 0 does not list its handlers: it is asked for one of the conformance worker."""
    from .cases.level0 import CONFORM_HANDLERS, offers
    from .scheduling import open_stage

    stage = Stage(setting, transport)
    known = []
    try:
        for name in CONFORM_HANDLERS:
            if stage.program is None:
                open_stage(stage)
            if offers(stage, name):
                known.append(name)
            if stage.running.exit_code() is not None:
                stage.end_program()
                stage.broker.forget_connections()
    except RuleBroken:
        pass  # the cases will show why
    finally:
        stage.close()
    return tuple(known)


def as_json(grade: Grade) -> dict[str, Any]:
    """The whole result, for programs."""
    return {
        "level": None if grade.reached is None else grade.reached.word,
        "speaks": None if grade.speaks is None else grade.speaks.word,
        "transports": list(grade.transports),
        "handlers": list(grade.handlers),
        "seconds": round(grade.seconds, 1),
        "problem": grade.problem or None,
        "counts": {verdict.value: grade.count(verdict) for verdict in CaseVerdict},
        "cases": [outcome_json(outcome) for outcome in grade.outcomes],
    }


def outcome_json(outcome: CaseOutcome) -> dict[str, Any]:
    """One case of the result."""
    return {
        "case": outcome.case.name,
        "level": outcome.case.level.word,
        "verdict": outcome.verdict.value,
        "rule": outcome.rule or outcome.case.rule,
        "section": outcome.section or outcome.case.section,
        "transport": outcome.transport,
        "seconds": round(outcome.seconds, 2),
        "what": outcome.what or None,
        "causes": list(outcome.causes),
        "frames": list(outcome.frames),
    }


def cases_json(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """The cases, for --list."""
    return [
        {"case": c.name, "level": c.level.word, "rule": c.rule, "section": c.section, "strength": c.strength}
        for c in cases
    ]
