"""Sessions behind drivers: Python's, as a program of its own. The other languages: `sh tests/languages/run.sh`."""

import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import msgspec
import pytest
from stepwire.driver import Driver

from tests.protocol.planted_sessions.faults import FAULTS
from tests.protocol.planted_sessions.plant import driver_with

from . import campaign, shrink
from .driven import CannotPlay, DriverCommand, Drivers
from .world import World

PYTHON = DriverCommand("python-driver", (sys.executable, "-m", "stepwire.driver"))
SEEDS = 12
SEEDS_IN_PROCESS = 15
OTHERS = range(40)  # seeds, because another version of the simulation takes another course
# Faults of tests/protocol/planted_sessions, a seed that notices each of them, and the check that does.
NOTICED = {
    "the slots are not counted": (4, "W a worker runs at most as many steps as it has slots"),
    "at_most_once steps start without permission": (0, "P5 an at_most_once step starts only when granted"),
    "the lease counts from the welcome": (5, "W a step starts within the lease"),
}


def _processes(command: DriverCommand) -> closing[Drivers]:
    return closing(Drivers(command))


def test_no_seed_breaks_a_promise_if_each_worker_is_a_process_of_pythons_driver() -> None:
    total = campaign.run(range(SEEDS), jobs=1, driver=PYTHON)
    assert total.violations == []
    assert total.session == "python-driver"
    assert total.figures["runs"] > 100


def test_a_seed_produces_the_same_run_in_processes_that_have_played_another_seed() -> None:
    with _processes(PYTHON) as drivers:
        runs = [World(seed, drivers=drivers).run().trace_hash for seed in (3, 4, 3)]
    assert runs[0] == runs[2] != runs[1]


@pytest.mark.parametrize("name", NOTICED)
def test_a_planted_fault_of_a_session_is_noticed_through_its_driver(name: str) -> None:
    noted, check = NOTICED[name]
    program = (sys.executable, "-m", "tests.protocol.planted_sessions", name)
    with _processes(DriverCommand("planted", program)) as drivers:
        violations = (World(seed, drivers=drivers).run().violation for seed in (noted, *OTHERS))
        assert any(violation is not None and violation.startswith(check + ":") for violation in violations)


def test_a_seed_that_a_driver_fails_is_shrunk_with_the_driver() -> None:
    program = (sys.executable, "-m", "tests.protocol.planted_sessions", "the slots are not counted")
    with _processes(DriverCommand("planted", program)) as drivers:
        seed = next(seed for seed in (4, *OTHERS) if World(seed, drivers=drivers).run().violation is not None)
        whole = World(seed, drivers=drivers).run()
        kept, runs = shrink.shrink(seed, drivers)
        assert World(seed, frozenset(kept), drivers=drivers).run().violation is not None
    assert len(kept) <= len(whole.fired)
    assert runs > 1


def test_a_driver_that_ends_fails_the_seed_with_the_name_of_its_session() -> None:
    with _processes(DriverCommand("cobol", ("sh", "-c", "read op; exit 3"))) as drivers:
        violation = World(0, drivers=drivers).run().violation
    assert violation is not None
    assert violation.startswith("W a session answers every op: the session of cobol: the driver ended")
    assert "exit status 3" in violation


def test_a_driver_that_reports_an_error_fails_the_seed_with_the_name_of_its_session() -> None:
    with _processes(DriverCommand("cobol", ("sed", "-u", 's/.*/{"error":"no carrier"}/'))) as drivers:
        violation = World(0, drivers=drivers).run().violation
    assert violation == "W a session answers every op: the session of cobol: the driver reports an error: no carrier"


def test_a_driver_that_replies_in_another_form_fails_the_seed() -> None:
    with _processes(DriverCommand("cobol", ("sed", "-u", 's/.*/{"actions":[]}/'))) as drivers:
        violation = World(0, drivers=drivers).run().violation
    assert violation is not None
    assert "the reply to 'start' has not the form of DRIVER.md" in violation


def test_a_driver_that_is_not_built_ends_the_command_with_a_sentence() -> None:
    expected = r"the driver of go cannot play: .*sh handlers_sdk/go/check\.sh build"
    with (
        _processes(DriverCommand("go", ("/nowhere/driver",))) as drivers,
        pytest.raises(CannotPlay, match=expected),
    ):
        drivers.try_out()


def test_campaigns_of_different_sessions_do_not_add_up() -> None:
    merged = campaign.Sum()
    merged.merge(campaign.run(range(1), jobs=1))
    with pytest.raises(ValueError, match="the session python-driver, and those before python"):
        merged.merge(campaign.run(range(1, 2), jobs=1, driver=PYTHON))


def test_the_session_and_lease_that_the_frames_give_are_those_of_pythons_session() -> None:
    """The checks use them in place of the session's own."""
    drivers = Compared(Driver)
    assert [violation for seed in range(SEEDS_IN_PROCESS) if (violation := drivers.play(seed)) is not None] == []
    assert drivers.in_a_session > 2_000


def test_a_lease_that_differs_from_that_of_the_frames_shows_in_the_comparison() -> None:
    fault = next(fault for fault in FAULTS if fault.name == "the lease counts from the ack")
    assert "until_ms" in str(Compared(driver_with(fault)).play(3))


class Compared:
    """Python's drivers in this process. After each op, the session is compared with what the frames give."""

    name = "python"

    def __init__(self, driver: type[Any]) -> None:
        self.in_a_session = 0  # comparisons
        self._new = driver
        self._world: World

    def play(self, seed: int) -> str | None:
        self._of: dict[int, Any] = {}
        self._world = World(seed, drivers=self)  # type: ignore[arg-type]
        return self._world.run().violation

    def of_worker(self, number: int) -> "ComparedDriver":
        driver: ComparedDriver = self._of.setdefault(
            number, ComparedDriver(self._new(), partial(self._compare, number))
        )
        return driver

    def _compare(self, number: int, driver: Any) -> None:
        observed = self._world.workers[number].session.peer  # type: ignore[attr-defined]
        peer = driver._session.brokers.get("b1")
        session, until_ms = (None, 0.0) if peer is None else (peer.session, peer.lease.until_ms)
        assert observed.session == session
        assert observed.lease.until_ms == until_ms
        self.in_a_session += session is not None


class ComparedDriver:
    def __init__(self, driver: Any, compare: Callable[[Any], None]) -> None:
        self._driver = driver
        self._compare = compare

    def exchange(self, op: dict[str, Any]) -> dict[str, Any]:
        reply: dict[str, Any] = self._driver.handle(msgspec.json.decode(msgspec.json.encode(op)))
        self._compare(self._driver)
        return reply
