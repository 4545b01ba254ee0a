"""The order in which the kit runs its cases."""

import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from stepwire_conform.case import Case, CaseVerdict, Level
from stepwire_conform.endpoints import PrivateEndpoints
from stepwire_conform.scheduling import LONG_S, CaseOutcome, Schedule
from stepwire_conform.setting import Setting
from stepwire_conform.stage import Stage

BOUND_S = 60.0


def test_a_thread_without_a_long_case_helps_with_the_others_and_the_longest_begin_first() -> None:
    begun: list[str] = []
    have_begun = threading.Event()

    def waits(_: Stage) -> None:
        """Keep the only lane until all cases with a program of their own have begun."""
        assert have_begun.wait(BOUND_S), "only the lane runs short cases"

    def begins(name: str) -> Callable[[Stage], None]:
        def check(_: Stage) -> None:
            begun.append(name)
            if len(begun) == 3:
                have_begun.set()

        return check

    cases = [
        _case("shared", waits, lasts_s=1.0),
        *[_case(f"lasts {s:g}", begins(f"lasts {s:g}"), lasts_s=s, fresh=True) for s in (1.0, 3.0, LONG_S)],
    ]
    outcomes = _run(cases)
    assert [outcome.verdict for outcome in outcomes] == [CaseVerdict.PASS] * len(cases)
    assert begun == [f"lasts {LONG_S:g}", "lasts 3", "lasts 1"]


def _case(name: str, check: Callable[[Stage], None], *, lasts_s: float, fresh: bool = False) -> Case:
    """A case that needs no program."""
    return Case(name, Level.ONE, "a rule", "1", check, fresh=fresh, auto=False, lasts_s=lasts_s)


def _run(cases: list[Case]) -> list[CaseOutcome]:
    with tempfile.TemporaryDirectory() as directory:
        setting = Setting(("true",), dict(os.environ), PrivateEndpoints(Path(directory)), "order")
        return Schedule(setting, ("ipc",), lambda outcome: None, lanes=1).run(cases)
