"""Two brokers in processes of their own on one server: every command works at the broker that does not own the task."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.postgres.server import PostgresServer
from tests.system.harness import eventually

from .a_place import Ended, Place, Serving, place

OK, FAILURE, USAGE, NOT_FOUND = range(4)
WORKFLOW = """
name: order
steps:
  - {name: charge, handler_class: shop.charge}
"""


class Broker(NamedTuple):
    place: Place
    serving: Serving


class Pair(NamedTuple):
    """Two brokers. `b1` owns the lane of every task that it accepts."""

    b1: Place
    b2: Place

    def lanes(self) -> dict[int, str | None]:
        return {each["lane"]: each["broker"] for each in self.b1.stepwire("lane", "list", "--json").json}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with PostgresServer() as server:
        first = start(tmp_path_factory.mktemp("b1"), "b1", server)
        second = start(tmp_path_factory.mktemp("b2"), "b2", server)
        try:
            brokers = Pair(first.place, second.place)
            assert brokers.b1.stepwire("workflow", "apply", "w.yaml").code == OK
            eventually(lambda: set(brokers.lanes().values()) == {"b1", "b2"}, "each broker to own a lane", 60)
            yield brokers
        finally:
            for each in (first, second):
                each.serving.end(15)


def start(directory: Path, broker: str, server: PostgresServer) -> Broker:
    directory.chmod(0o700)
    here = place(directory)
    here.environ.update(
        DATABASE_URL=server.socket_url(),
        STEPWIRE_BROKER__ID=broker,
        STEPWIRE_BROKER__LEASE_MS="2000",
        STEPWIRE_DATABASE__LANES="3",
    )
    (directory / "w.yaml").write_text(WORKFLOW)
    serving = here.serve("-o", "json")
    here.environ["STEPWIRE_URL"] = json.loads(serving.ready)["http"]
    return Broker(here, serving)


def submitted(at: Place) -> int:
    done = at.stepwire("task", "submit", "order", "--json")
    assert done.code == OK, done
    number: int = done.json["task_id"]
    return number


def test_a_task_is_shown_explained_and_cancelled_at_the_other_broker_in_the_name_of_its_user(pair: Pair) -> None:
    task_id = submitted(pair.b1)
    shown = pair.b2.stepwire("task", "show", str(task_id), "--json").json
    assert (shown["task_id"], shown["state"]) == (task_id, "running")
    why = pair.b2.stepwire("why", str(task_id), "--json").json
    assert why["code"] == "no_worker_offers"
    done = pair.b2.stepwire("task", "cancel", str(task_id), "--reason", "sold out", "--json")
    assert (done.code, done.json["state"]) == (OK, "cancelled"), done
    kinds = [event["kind"] for event in pair.b2.stepwire("task", "events", str(task_id), "--json").json]
    assert kinds[-1] == "ended"
    rows = pair.b1.stepwire("audit", "list", "--target", f"task {task_id}", "--json").json
    assert [(row["action"], row["reason"]) for row in rows] == [("cancel_task", "sold out")]


def test_a_command_with_several_addresses_uses_one_that_answers(pair: Pair) -> None:
    first, second = (each.environ["STEPWIRE_URL"] for each in (pair.b1, pair.b2))
    several = f"http://127.0.0.1:1, {second}"
    done = pair.b2.stepwire("broker", "list", "--json", "--url", several)
    assert done.code == OK, done
    assert [one["broker"] for one in done.json if one["is_answering"]] == ["b2"]
    wrong = pair.b2.stepwire("broker", "list", STEPWIRE_URL=f"{first},{second}/v1")
    assert f"the URL {second}/v1 must not end in /v1" in wrong.err
    nothing = pair.b2.stepwire("broker", "list", "--url", "http://127.0.0.1:1,http://127.0.0.1:2")
    assert "no answer from http://127.0.0.1:1, http://127.0.0.1:2: connection refused" in nothing.err


def test_the_doctor_examines_each_address_and_the_deployment_once(pair: Pair) -> None:
    first, second = (each.environ["STEPWIRE_URL"] for each in (pair.b1, pair.b2))
    done = pair.b1.stepwire("doctor", "-o", "json", STEPWIRE_URL=f"{first},http://127.0.0.1:1,{second}")
    found = [(one["about"], one["text"]) for one in done.json]
    about_broker = [text for about, text in found if about == "broker" and "http://" in text]
    assert about_broker[0] == f"{first} accepts work"
    assert about_broker[1] == "no broker answers at http://127.0.0.1:1"
    assert second in about_broker[2], "the second broker has another token"
    (deployment,) = [text for about, text in found if about == "brokers"]
    assert deployment.startswith("2 of 2 alive: b1 with lane ")


def test_a_workflow_that_one_broker_applied_runs_at_the_other(pair: Pair) -> None:
    (pair.b2.directory / "new.yaml").write_text(WORKFLOW.replace("order", "fresh"))
    assert pair.b2.stepwire("workflow", "apply", "new.yaml").code == OK
    done = pair.b1.stepwire("task", "submit", "fresh", "--json")
    assert done.code == OK, done


def test_the_brokers_and_the_lanes_are_listed_at_each_broker(pair: Pair) -> None:
    for at, own in ((pair.b1, "b1"), (pair.b2, "b2")):
        found = {each["broker"]: each for each in at.stepwire("broker", "list", "--json").json}
        assert set(found) == {"b1", "b2"}
        assert [each["broker"] for each in found.values() if each["is_answering"]] == [own]
        assert all(each["is_alive"] and not each["config_differs"] for each in found.values())
        assert sorted(lane for each in found.values() for lane in each["lanes"]) == [1, 2, 3]
    assert "alive" in pair.b1.stepwire("broker", "list").out


def test_a_lane_moves_to_the_named_broker_and_a_wrong_name_is_refused(pair: Pair) -> None:
    # From the broker with two lanes to the one with one: so no lane has to move back.
    shares = Counter(eventually(lambda: _owners(pair), "each lane to have an owner", 60))
    (owner, _), (to, _) = shares.most_common()
    lane = next(number for number, each in pair.lanes().items() if each == owner)
    at: Place = pair.b1
    done: Ended = at.stepwire("lane", "move", str(lane), "--to", to, "--json")
    assert done.code == OK, done
    eventually(lambda: pair.lanes()[lane] == to, "the lane to be owned by the named broker", 60)
    (row,) = at.stepwire("audit", "list", "--action", "move_lane", "--json").json
    assert (row["target"], row["outcome"], row["detail"]) == (f"lane {lane}", "done", {"to": to})

    def is_refused() -> bool:
        """The broker that is asked sees the new owner at its next beat."""
        refused = at.stepwire("lane", "move", str(lane), "--to", "b9")
        return refused.code == NOT_FOUND and "no broker b9 is alive; alive are b1, b2" in refused.err

    eventually(is_refused, "the refusal of a broker that does not exist", 60)
    assert at.stepwire("lane", "move", "99", "--to", "b1").code == NOT_FOUND


def _owners(pair: Pair) -> list[str | None] | None:
    owners = list(pair.lanes().values())
    return owners if None not in owners and len(set(owners)) == 2 else None


def test_a_rule_holds_at_the_other_broker_when_the_wait_for_it_ends(pair: Pair) -> None:
    assert pair.b1.stepwire("executor", "route", "a::**", "--selector", "gpu=true").code == OK

    assert pair.b1.stepwire("broker", "list", "--wait").code == OK
    rules = pair.b2.stepwire("executor", "routes", "--json").json
    assert "a::**" in [rule["match"] for rule in rules]


def test_a_broker_with_a_file_is_alone(shop: Place) -> None:
    (broker,) = shop.stepwire("broker", "list", "--json").json
    (lane,) = shop.stepwire("lane", "list", "--json").json
    assert (broker["broker"], broker["lanes"], broker["is_alive"]) == (lane["broker"], [lane["lane"]], True)
    refused = shop.stepwire("lane", "move", str(lane["lane"]), "--to", "b2")
    assert "this database has one broker" in refused.err
