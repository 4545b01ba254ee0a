"""Each cause alone excuses a second run, and what only resembles a cause does not."""

from collections.abc import Callable
from typing import Any

import pytest

from .forgeries import SECOND_NS, Forger, Line, encode
from .good_run import LEASE_MS, Evidence
from .judge import judge

LEASE_NS = LEASE_MS * 1_000_000
AGAIN, OVERLAP = "no_step_runs_again_without_a_cause", "runs_overlap_only_with_a_cause"

Excuse = Callable[[Forger, Line], Any]


def _fault(event: str, pid: int, at: int, role: str = "worker") -> Line:
    return {"event": event, "role": role, "pid": pid, "at": at, "program": "forged"}


def _add_faults(f: Forger, *faults: Line) -> None:
    f.lines("faults", lambda line: [line, *faults] if line is not None and line["event"] == "started" else line)


def _broker(f: Forger) -> int:
    """Return the process of the last broker, which was not killed."""
    return [int(line["pid"]) for line in f.read("faults") if line["role"] == "broker"][-1]


def _pause(f: Forger, pid: int, since: int, ns: int, role: str = "worker") -> None:
    _add_faults(f, _fault("paused", pid, since, role), _fault("resumed", pid, since + ns, role))


def _without_wire(f: Forger) -> None:
    for path in f.evidence.ledgers.glob("wire-*"):
        path.unlink()


def _pause_unrecorded(f: Forger, pid: int, run: Line, ns: int) -> None:
    """Suspend a process without a wire ledger. Recorded beats would show whether it was silent."""
    _without_wire(f)
    _pause(f, pid, run["at"], ns)


def _quiet_beats(f: Forger, run: Line, ns: int) -> None:
    """Remove the beats of the run's worker and their echoes for this long from its start."""

    def without_beats(line: Line) -> Line | None:
        is_beat = line["event"] in ("beat", "beat_heard") and line["pid"] == run["pid"]
        return None if is_beat and run["at"] <= line["at"] <= run["at"] + ns else line

    f.lines("wire", without_beats)


def _stopped(f: Forger, run: Line) -> None:
    """Stop the run before the second one begins, however long the real run took."""
    stopped = {"event": "stopped", "reason": "shutdown", "at": run["at"] + 1_000_000}
    f.run("chain-0", "a", "finished", lambda x: x | stopped)
    _add_faults(f, _fault("asked_to_end", run["pid"], run["at"]))


# Name, time in ms between the two runs, rules that must be broken, forgery.
EXCUSES: list[tuple[str, int, set[str], Excuse]] = [
    ("nothing", 10, {AGAIN}, lambda f, run: None),
    ("its worker was killed", 10, set(), lambda f, run: _add_faults(f, _fault("killed", run["pid"], run["at"] + 1))),
    ("another was killed", 10, {AGAIN}, lambda f, run: _add_faults(f, _fault("killed", 1, run["at"] + 1))),
    (
        "it was killed after the second run",
        10,
        {AGAIN},
        lambda f, run: _add_faults(f, _fault("killed", run["pid"], run["at"] + SECOND_NS)),
    ),
    (
        "its broker was suspended for a lease",
        3 * LEASE_MS,
        set(),
        lambda f, r: _pause_unrecorded(f, _broker(f), r, 2 * LEASE_NS),
    ),
    (
        "its broker was suspended for less",
        3 * LEASE_MS,
        {AGAIN},
        lambda f, r: _pause_unrecorded(f, _broker(f), r, LEASE_NS // 2),
    ),
    (
        "its broker was killed",
        10,
        {AGAIN},
        lambda f, r: _add_faults(f, _fault("killed", _broker(f), r["at"] + 1, "broker")),
    ),
    ("its beats had no echo for a lease", 3 * LEASE_MS, set(), lambda f, run: _quiet_beats(f, run, 2 * LEASE_NS)),
    (
        "it was suspended, and no beats were recorded",
        3 * LEASE_MS,
        set(),
        lambda f, run: _pause_unrecorded(f, run["pid"], run, 2 * LEASE_NS),
    ),
    (
        "it was suspended for less, and no beats were recorded",
        3 * LEASE_MS,
        {AGAIN},
        lambda f, run: _pause_unrecorded(f, run["pid"], run, LEASE_NS // 2),
    ),
    ("it was asked to end and stopped it", 10, set(), lambda f, run: _stopped(f, run)),
    (
        "it was asked to end and had finished it",
        10,
        {AGAIN},
        lambda f, run: _add_faults(f, _fault("asked_to_end", run["pid"], run["at"])),
    ),
]


@pytest.mark.parametrize(("after_ms", "named", "excuse"), [e[1:] for e in EXCUSES], ids=[e[0] for e in EXCUSES])
def test_a_second_run_is_excused_by(evidence: Evidence, after_ms: int, named: set[str], excuse: Excuse) -> None:
    forger = Forger(evidence)
    run = forger.started("chain-0", "a")
    excuse(forger, run)
    # Without a wall time, which would be in the future, so that the line would be left out.
    second = {"at": run["at"] + after_ms * 1_000_000, "wall": 0, "delivery": 2}
    forger.run("chain-0", "a", "started", lambda x: [x, x | second])
    assert _named(evidence) & {AGAIN} == named


LEVEL0_LEASE_MS = 5_500  # the step's timeout and 5 s
UNOCCUPIED_PID = 2**22 + 1  # higher than any process id

# The same for a level-0 run.
EXCUSES_AT_LEVEL0: list[tuple[str, int, set[str], Excuse]] = [
    ("nothing, while it had its lease", LEVEL0_LEASE_MS - 2_000, {AGAIN}, lambda f, run: None),
    ("the end of its lease", LEVEL0_LEASE_MS, set(), lambda f, run: None),
    (
        "no kill: the broker cannot detect it",
        LEVEL0_LEASE_MS - 2_000,
        {AGAIN},
        lambda f, run: _add_faults(f, _fault("killed", run["pid"], run["at"] + 1)),
    ),
    (
        "no silence: it sends no heartbeats",
        LEVEL0_LEASE_MS - 2_000,
        {AGAIN},
        lambda f, run: _pause(f, run["pid"], run["at"], 2 * LEASE_NS),
    ),
    (
        "the end of its lease, which began while it was stopped",
        LEVEL0_LEASE_MS - 2_000,
        set(),
        lambda f, run: _pause(f, run["pid"], run["at"] - 3 * SECOND_NS, 3 * SECOND_NS - 10_000_000),
    ),
    (
        "no stop that was over long before",
        LEVEL0_LEASE_MS - 2_000,
        {AGAIN},
        lambda f, run: _pause(f, run["pid"], run["at"] - 3 * SECOND_NS, 2 * SECOND_NS),
    ),
]


@pytest.mark.parametrize(
    ("after_ms", "named", "excuse"), [e[1:] for e in EXCUSES_AT_LEVEL0], ids=[e[0] for e in EXCUSES_AT_LEVEL0]
)
def test_a_second_run_of_a_level_0_step_is_excused_by(
    evidence: Evidence, after_ms: int, named: set[str], excuse: Excuse
) -> None:
    forger = Forger(evidence)
    step_id = forger.step("late-1", "b")
    # The handler had done nothing else: after another long step its lease would count from the end of that one.
    forger.lines("worker", lambda x: x | {"pid": UNOCCUPIED_PID} if x["step_id"] == step_id else x)
    (run,) = (x for x in forger.read("worker") if (x["step_id"], x["event"]) == (step_id, "started"))
    excuse(forger, run)
    second = {k: v for k, v in run.items() if k != "batch_id"}
    second |= {"at": run["at"] + after_ms * 1_000_000, "wall": 0, "delivery": 2}
    forger.run("late-1", "b", "started", lambda x: [x, second])
    assert _named(evidence) & {AGAIN} == named


@pytest.mark.parametrize("frozen_ms_before", [10, 500])
def test_a_worker_suspended_as_it_began_may_begin_after_its_successor(
    evidence: Evidence, frozen_ms_before: int
) -> None:
    """The suspension lies between its last check of the lease and the handler's first instruction."""
    forger = Forger(evidence)
    second = forger.started("slept-0", "a", 2)
    first = forger.started("slept-0", "a", 1)
    began = second["at"] + LEASE_NS
    _without_wire(forger)

    def freeze(line: Line) -> Line | None:
        if line.get("pid") != first["pid"] or line["event"] not in ("paused", "resumed"):
            return line
        at = second["at"] - LEASE_NS if line["event"] == "paused" else began - frozen_ms_before * 1_000_000
        return line | {"at": at}

    forger.lines("faults", freeze)
    forger.run("slept-0", "a", "started", lambda x: x | {"at": began}, delivery=1)
    forger.lines("worker", lambda x: None if _ends(x, first) else x)
    assert (AGAIN in _named(evidence)) is (frozen_ms_before > 100)


def test_two_runs_at_once_are_not_excused_by_a_failure(evidence: Evidence) -> None:
    forger = Forger(evidence)
    second = forger.started("flaky-0", "a", 2)
    forger.run("flaky-0", "a", "failed", lambda x: x | {"at": second["at"] + 1_000_000})
    assert _named(evidence) >= {OVERLAP}
    assert AGAIN not in _named(evidence)


@pytest.mark.parametrize("is_ordered", [True, False])
def test_an_operators_retry_excuses_a_run_only_if_a_client_sent_it(evidence: Evidence, is_ordered: bool) -> None:
    """The operator's retry is the only cause of the third run, once the second is changed to have had time left."""
    forger = Forger(evidence)
    third = forger.started("slow-0", "a", 3)
    forger.run("slow-0", "a", "started", lambda x: x | {"at": third["at"] - 50_000_000}, delivery=2)
    if not is_ordered:
        forger.lines("client", lambda x: None if x.get("order") == "retry" else x)
    assert (AGAIN in _named(evidence)) is not is_ordered


NAMED = {"b1": 4_194_305, "b2": 4_194_306}  # processes of brokers; higher than any process id
MS_NS = 1_000_000


class Polled:
    """Lets the worker of a run be one over HTTP: its session with b1 ends after 100 ms, and it goes on at b2."""

    def __init__(self, f: Forger, run: Line) -> None:
        self._f, self._run, self._who = f, run, {"pid": run["pid"], "wall": 0}
        self._left_ms = 6 * LEASE_MS
        (self._lane,) = f.sql("SELECT DISTINCT lane_id FROM history WHERE task_id = ?", run["task_id"])[0]
        _without_wire(f)
        self._who["worker"] = f.sql("SELECT worker FROM steps WHERE id = ?", run["step_id"])[0][0]
        f.lines("worker", lambda x: x | {"session": "of b1"} if _is_start(x, run) else x)
        began = run["at"] - 2 * LEASE_NS
        self._faults = [_fault("named", pid, began, "broker") | {"broker": id} for id, pid in NAMED.items()]

    def fault(self, event: str, pid: int, after_ms: int, role: str = "broker", **facts: Any) -> "Polled":
        self._faults.append(_fault(event, pid, self._run["at"] + after_ms * MS_NS, role) | facts)
        return self

    def owned(self, broker: str, after_ms: int) -> "Polled":
        return self.fault("owned", 0, after_ms, "lane", lane=self._lane, broker=broker)

    def leaves(self, after_ms: int) -> "Polled":
        """Let the worker leave b2 for a third broker."""
        self._left_ms = after_ms
        return self

    def _beat(self, n: int, ms: int) -> list[Line]:
        broker = "b1" if ms <= 100 else "b2" if ms <= self._left_ms else "b3"
        beat = {"at": self._run["at"] + ms * MS_NS, "n": n, **self._who}
        return [beat | {"event": "beat"}, beat | {"event": "beat_heard", "session": f"of {broker}", "broker": broker}]

    def write(self) -> None:
        lines = [line for n, ms in enumerate(range(-LEASE_MS, 6 * LEASE_MS, 100)) for line in self._beat(n, ms)]
        wire = self._f.evidence.ledgers / "wire-polled.jsonl"
        wire.write_bytes(b"".join(encode(line) + b"\n" for line in lines))
        path = self._f.evidence.ledgers / "faults-of-brokers.jsonl"
        path.write_bytes(b"".join(encode(line) + b"\n" for line in self._faults))


def _is_start(line: Line, run: Line) -> bool:
    return line["event"] == "started" and (line["step_id"], line.get("delivery")) == (run["step_id"], run["delivery"])


# The same for a worker over HTTP, whose session is with one broker.
EXCUSES_OVER_HTTP: list[tuple[str, int, bool, Callable[[Polled], Any]]] = [
    ("nothing, although its session ended", 3 * LEASE_MS, False, lambda p: p),
    ("the end of its broker", 3 * LEASE_MS, True, lambda p: p.fault("killed", NAMED["b1"], 200)),
    ("no end of its broker a moment ago", LEASE_MS // 2, False, lambda p: p.fault("killed", NAMED["b1"], 200)),
    ("no end of another broker", 3 * LEASE_MS, False, lambda p: p.fault("killed", NAMED["b2"], 200)),
    (
        "a suspension of its broker",
        3 * LEASE_MS,
        True,
        lambda p: p.fault("paused", NAMED["b1"], 200).fault("resumed", NAMED["b1"], 900),
    ),
    (
        "no suspension that was over before",
        3 * LEASE_MS,
        False,
        lambda p: p.fault("paused", NAMED["b1"], -900).fault("resumed", NAMED["b1"], -100),
    ),
    (
        "an outage of the server",
        3 * LEASE_MS,
        True,
        lambda p: p.fault("away", 0, 200, "database").fault("back", 0, 900, "database"),
    ),
    (
        "no outage of the server that was over before",
        3 * LEASE_MS,
        False,
        lambda p: p.fault("away", 0, -900, "database").fault("back", 0, -100, "database"),
    ),
    (
        "a cut between its broker and the server",
        3 * LEASE_MS,
        True,
        lambda p: p.fault("cut", NAMED["b1"], 200).fault("healed", NAMED["b1"], 900),
    ),
    ("no cut of another broker", 3 * LEASE_MS, False, lambda p: p.fault("cut", NAMED["b2"], 200)),
    (
        "no end of its broker, if it went on for a lease at the owner of its lane",
        3 * LEASE_MS,
        False,
        lambda p: p.fault("killed", NAMED["b1"], 200).owned("b1", -LEASE_MS).owned("b2", 600),
    ),
    (
        "the end of its broker, if the worker has left the owner of its lane",
        3 * LEASE_MS,
        True,
        lambda p: p.fault("killed", NAMED["b1"], 200).owned("b2", 600).leaves(2 * LEASE_MS + 500),
    ),
    (
        "the end of its broker, if its lane had a new owner a moment ago",
        3 * LEASE_MS,
        True,
        lambda p: p.fault("killed", NAMED["b1"], 200).owned("b1", -LEASE_MS).owned("b2", 2 * LEASE_MS + 100),
    ),
]
OVER_HTTP = pytest.mark.parametrize(
    ("after_ms", "is_excused", "excuse"), [e[1:] for e in EXCUSES_OVER_HTTP], ids=[e[0] for e in EXCUSES_OVER_HTTP]
)


@OVER_HTTP
def test_a_second_run_of_a_step_over_http_is_excused_by(
    evidence: Evidence, after_ms: int, is_excused: bool, excuse: Callable[[Polled], Any]
) -> None:
    forger = Forger(evidence)
    run = forger.started("chain-0", "a")
    polled = Polled(forger, run)
    excuse(polled)
    polled.write()
    second = {"at": run["at"] + after_ms * MS_NS, "wall": 0, "delivery": 2}
    forger.run("chain-0", "a", "started", lambda x: [x, x | second])
    assert (AGAIN in _named(evidence)) is not is_excused


@OVER_HTTP
def test_a_held_step_over_http_is_excused_by(
    evidence: Evidence, after_ms: int, is_excused: bool, excuse: Callable[[Polled], Any]
) -> None:
    forger = Forger(evidence)
    run = forger.started("held-0", "pay")
    forger.lines("faults", lambda x: None if x["event"] == "killed" and x["pid"] == run["pid"] else x)
    (held_ms,) = (fact[1] for fact in forger.facts("held-0") if fact[0] == "held")
    # The run began this long before the step was held.
    wall_minus_at = run["wall"] - run["at"]
    at = held_ms * MS_NS - wall_minus_at - after_ms * MS_NS
    forger.run("held-0", "pay", "started", lambda x: x | {"at": at, "wall": 0})
    polled = Polled(forger, run | {"at": at})
    excuse(polled)
    polled.write()
    assert ("a_held_step_has_a_cause" in _named(evidence)) is not is_excused


def _ends(line: Line, run: Line) -> bool:
    same = (line["step_id"], line.get("delivery"), line["pid"]) == (run["step_id"], run["delivery"], run["pid"])
    return same and line["event"] != "started"


def _named(evidence: Evidence) -> set[str]:
    verdict = judge(evidence.database, evidence.ledgers, lease_ms=LEASE_MS)
    return {violation.rule for violation in verdict.violations}
