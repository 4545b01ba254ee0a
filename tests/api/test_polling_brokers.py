"""Workers over HTTP with several brokers: each has one session, and every broker knows whose session it is."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from stepwire_broker.api import core_views
from stepwire_broker.core.brokers import addresses
from stepwire_broker.core.brokers.listeners import BrokerEndpoints, of_row
from stepwire_broker.core.membership.members import Members

from .poller import Poller
from .running_api import Answer, Api, running
from .test_polling import apply, item_of, polled, step_of, submit

OTHER_EPOCH = 987_654
OTHER = BrokerEndpoints("b2", epoch=OTHER_EPOCH, http="https://b2.example:7410")
THERE = f"{OTHER_EPOCH}.3"  # a session with it


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    tmp_path.chmod(0o700)
    with running(tmp_path, polled(tmp_path)) as found:
        apply(found)
        live_beside(found, OTHER)
        yield found


def live_beside(api: Api, *others: BrokerEndpoints) -> None:
    api.on_loop(lambda: addresses.on_others(api.broker.state, others, api.broker.now()))


def test_each_answer_names_the_broker_also_a_refusal(api: Api) -> None:
    poller = Poller(api)
    poller.open()
    assert poller.heartbeat().headers["stepwire-broker"] == "b1"
    refused = poller.heartbeat(session="1.77")
    assert (refused.status, refused.headers["stepwire-broker"]) == (409, "b1")


@pytest.mark.parametrize("what", ["lease", "heartbeat", "start", "bye"])
def test_a_call_in_a_session_of_another_live_broker_is_refused_with_the_url_of_that_broker(api: Api, what: str) -> None:
    calls: dict[str, dict[str, Any]] = {
        "lease": {"n": 1, "handlers": ["**"], "slots": 1},
        "heartbeat": {"n": 1},
        "start": {"items": [[1, 1]]},
        "bye": {"n": 1},
    }
    answer = Poller(api).call(what, session=THERE, **calls[what])
    assert (answer.status, answer.code) == (421, "other_broker")
    assert answer.json["url"] == OTHER.http
    assert "b2" in answer.json["detail"]


def test_a_worker_whose_broker_is_gone_gets_a_session_here(api: Api) -> None:
    poller = Poller(api)
    poller.session = THERE
    assert poller.lease_call().status == 421
    live_beside(api)
    answer = poller.lease_call()
    assert answer.status == 200
    assert answer.json["session"].partition(".")[0] == str(api.broker.epoch)


def test_a_worker_that_cannot_reach_its_broker_gets_a_session_here_without_naming_the_old_one(api: Api) -> None:
    poller = Poller(api)
    assert poller.lease_call(session=THERE).status == 421
    assert poller.lease_call(session=None).status == 200


def test_results_are_accepted_from_a_session_with_another_broker(api: Api) -> None:
    poller = Poller(api)
    poller.open()
    task_id = submit(api, "one")
    (step,) = poller.lease()
    assert poller.report(item_of(step), session=THERE).status == 200
    assert step_of(api, task_id)["state"] == "completed"


def test_the_row_of_a_broker_has_the_url_of_its_api(api: Api) -> None:
    row = api.on_loop(lambda: addresses.row_of(api.broker.state))
    assert of_row("b1", row).http == f"http://127.0.0.1:{api.port}"


@contextmanager
def dark(api: Api) -> Iterator[None]:
    """Let the broker be one of several whose lease in the database is over."""
    broker = api.broker
    long_ago = broker.now().mono - 3_600_000

    def darken() -> None:
        broker.state.members = Members("b1", broker.epoch, "1", lease_ms=1_000, begun_mono=long_ago)

    def lighten() -> None:
        broker.state.members = None

    api.on_loop(darken)
    yield
    api.on_loop(lighten)


@pytest.mark.parametrize("what", ["lease", "heartbeat"])
def test_a_dark_broker_receives_the_calls_of_its_workers_and_renews_none_of_their_leases(api: Api, what: str) -> None:
    """Another broker may own the steps. It takes their runs back when a lease has passed since this one spoke last."""
    poller = Poller(api)
    poller.open()
    session = api.broker.state.sessions[poller.id]

    def call() -> Answer:
        return poller.lease_call(wait_ms=100) if what == "lease" else poller.heartbeat()

    with dark(api):
        session.heard_mono = 0
        answer = call()
        assert (answer.status, answer.code) == (503, "broker_dark")
        assert session.heard_mono > 0
    assert call().status == 200


def test_a_dark_broker_opens_no_session(api: Api) -> None:
    with dark(api):
        answer = Poller(api).lease_call()
        assert (answer.status, answer.code) == (503, "broker_dark")


def test_results_at_a_dark_broker_are_refused_so_that_the_worker_tries_another_one(api: Api) -> None:
    """The broker may have stored the result. Its acknowledgement would be silent."""
    poller = Poller(api)
    poller.open()
    task_id = submit(api, "one")
    (step,) = poller.lease()
    with dark(api):
        answer = poller.report(item_of(step))
        assert (answer.status, answer.code) == (503, "broker_dark")
    assert poller.report(item_of(step)).status == 200
    assert step_of(api, task_id)["state"] == "completed"


def test_a_result_whose_step_gets_another_owner_is_asked_for_again_at_once(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The former owner never acknowledges it. The worker repeats it, and the broker then passes it on."""
    poller = Poller(api)
    poller.open()
    submit(api, "one")
    (step,) = poller.lease()
    has_arrived = threading.Event()
    hear = api.broker.hear

    def lose_results(topic: bytes, body: bytes, principal: str) -> None:
        if b'"results"' in body:
            has_arrived.set()
        else:
            hear(topic, body, principal)

    monkeypatch.setattr(api.broker, "hear", lose_results)
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(poller.report, item_of(step))
        assert has_arrived.wait(20)
        monkeypatch.setattr(core_views, "is_foreign", lambda broker, number: True)
        answer = waiting.result()
    assert (answer.status, answer.code) == (503, "overloaded")
    assert "another broker" in answer.json["detail"]


def test_an_ack_for_a_worker_that_was_detached_is_not_taken_for_one_of_its_next_session(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another owner may acknowledge a passed on result at any time: no two messages of a worker have one number."""
    rids: list[int] = []
    hear = api.broker.hear

    def note_rid(topic: bytes, body: bytes, principal: str) -> None:
        message = json.loads(body)
        rids.extend([message["rid"]] if "rid" in message else [])
        hear(topic, body, principal)

    monkeypatch.setattr(api.broker, "hear", note_rid)
    poller = Poller(api)
    for _ in range(2):
        poller.session = None
        poller.open()
        submit(api, "one")
        (step,) = poller.lease()
        assert poller.report(item_of(step)).status == 200
        assert poller.call("bye", n=poller.n + 1, session=poller.session).status == 200
        poller.n += 1
    assert len(set(rids)) == 2
