"""The chain of audit rows: complete after every commit, refusal, restart and cut. Every store promises this."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from stepwire_broker.core.definitions.settings import RetentionSettings
from stepwire_broker.core.model.commit_group import AuditNew, ControlChanged
from stepwire_broker.store import retention
from stepwire_broker.store.audit_chain import START, AuditRow, faults
from stepwire_broker.store.ports import LANE
from stepwire_broker.store.retention import Retention
from stepwire_broker.store.rows import AuditFilter

from tests.store.running import Place, Running
from tests.store.stored_rows import NOW, fact, submission, task_changed, workflow_new

DAY_MS = 24 * 3600 * 1000


def audit_new(action: str = "cancel_task", **changes: Any) -> AuditNew:
    new = AuditNew(NOW, "ci", "token", action, "task 10", "a reason", '{"steps":1}', "done", "1.7")
    return new._replace(**changes)


def stored(run: Running, **filters: Any) -> list[AuditRow]:
    """Every row, the oldest first."""
    rows: list[AuditRow] = run.queries.audit_rows(AuditFilter(1, 0, 1 << 50, 10_000, **filters))
    return rows[::-1]


def is_complete(run: Running) -> bool:
    found = list(faults(run.queries.audit_chains(), stored(run)))
    assert found == []
    return True


def test_rows_are_numbered_and_linked_over_groups_and_restarts(place: Place) -> None:
    with Running(place) as run:
        assert run.queries.audit_chains() == []
        run.write(audit=[audit_new("one"), audit_new("two")])
        run.write(audit=[audit_new("three", request_id=None)])
    with Running(place) as run:
        run.write(audit=[audit_new("four")])
        rows = stored(run)
        assert [(row.n, row.action) for row in rows] == [(1, "one"), (2, "two"), (3, "three"), (4, "four")]
        (chain,) = run.queries.audit_chains()
        assert (chain.n, chain.hash, chain.cut_n, chain.cut_hash) == (4, rows[-1].hash, 0, START)
        assert is_complete(run)


def test_rows_are_found_by_each_filter(place: Place) -> None:
    with Running(place) as run:
        run.write(audit=[audit_new(), audit_new("x", principal="p", target="t", outcome="refused", at_ms=NOW + 9)])
        for members in ({"principal": "p"}, {"action": "x"}, {"target": "t"}, {"outcome": "refused"}):
            assert [row.n for row in stored(run, **members)] == [2]
        assert [row.n for row in stored(run, since_ms=NOW + 9)] == [2]
        assert [row.n for row in stored(run, until_ms=NOW + 9)] == [1]


def test_a_row_whose_effect_the_database_refuses_is_left_out_without_a_hole(place: Place) -> None:
    with Running(place) as run:
        run.workflow()
        run.write(submissions=[submission(1, 10, 20)])
        outcome = run.write(
            tasks_changed=[task_changed(10, state="no such state"), task_changed(20, deadline_ms=NOW)],
            history=[fact(10), fact(20)],
            controls=[ControlChanged("rule", "a::**", "{}", 1)],
            audit=[
                audit_new("refused", part=("task", 10)),
                audit_new("written", part=("task", 20)),
                audit_new("rule", part=("control", "rule a::**")),
                audit_new("alone"),
            ],
        )
        assert [one.task_id for one in outcome.rejected] == [10]
        rows = stored(run)
        assert sorted(row.action for row in rows) == ["alone", "rule", "written"]
        assert [row.n for row in rows] == [1, 2, 3]
        assert is_complete(run)


def test_the_application_of_a_workflow_has_the_outcome_that_the_database_decides(place: Place) -> None:
    with Running(place) as run:
        for changes in ({}, {}, {"digest": "another"}):
            applied = workflow_new(**changes)
            run.write(workflows=[applied], audit=[audit_new(part=("request", applied.request))])
        assert [row.outcome for row in stored(run)] == ["done", "unchanged", "version_conflict"]


@pytest.mark.parametrize("reason", ["\ud800", "a\0b", "\u2028", "é" * 200])
def test_no_reason_keeps_a_row_out_of_the_chain(place: Place, reason: str) -> None:
    with Running(place) as run:
        run.write(audit=[audit_new(reason=reason), audit_new()])
        assert len(stored(run)) == 2
        assert is_complete(run)


@contextmanager
def retaining(run: Running, clock: Callable[[], float] = lambda: 0.0) -> Iterator[Retention]:
    settings = RetentionSettings(audit_ms=400 * DAY_MS)
    yield Retention(run.store._database.pruning[LANE], settings, wall_ms=lambda: NOW, mono_s=clock)


def prune(run: Running) -> int:
    with retaining(run) as one:
        while (pruned := one.work()) is None:
            pass
        return pruned.audit


def ages(*days: int) -> Sequence[AuditNew]:
    return [audit_new(at_ms=NOW - day * DAY_MS) for day in days]


def test_retention_cuts_old_rows_and_the_chain_goes_on_from_the_cut(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "AUDIT_MAX", 2)  # several pieces
    with Running(place) as run:
        run.write(audit=ages(500, 450, 401, 399, 450, 1))
        last_removed = stored(run)[2]
        assert prune(run) == 3
        assert [row.n for row in stored(run)] == [4, 5, 6], "a row behind a younger row stays: a chain has no gap"
        (chain,) = run.queries.audit_chains()
        assert (chain.cut_n, chain.cut_hash) == (3, last_removed.hash)
        assert is_complete(run)
        assert prune(run) == 0
        run.write(audit=ages(0))
        assert is_complete(run)


def test_a_chain_whose_rows_are_all_removed_goes_on_from_its_last_number(place: Place) -> None:
    with Running(place) as run:
        run.write(audit=ages(500, 450))
        assert prune(run) == 2
        assert stored(run) == []
        assert is_complete(run)
        run.write(audit=ages(0))
        assert [row.n for row in stored(run)] == [3]
        assert is_complete(run)
