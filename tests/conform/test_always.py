"""The rules that hold for every frame of a worker."""

import pytest
from stepwire_conform.always import Watch, decoded
from stepwire_conform.case import RuleBroken
from stepwire_protocol import codec
from stepwire_protocol.messages import Heartbeat, Result, Results

WORKER = "shop:0123456789abcdef"


def see_heartbeat(watch: Watch, n: int, broker: str) -> None:
    message = decoded([codec.frame(b"workers ", Heartbeat(v="2.0", worker=WORKER, n=n))], is_level0=False)
    message.broker = broker
    watch.see(message)


def see_results(watch: Watch, rid: int, n: int) -> None:
    watch.sent((rid, 1), "at_least_once", "batch_1")
    results = Results(
        v="2.0",
        worker=WORKER,
        session="1.1",
        deployment="4f9d2c81a07be356",
        batch_id="batch_1",
        protocol_version="2.0",
        rid=rid,
        n=n,
        results=[Result(step_id=rid, delivery=1, status="completed")],
    )
    watch.see(decoded([codec.frame(b"results@b1 ", results)], is_level0=False))


def test_a_results_message_that_a_connection_lost_may_arrive_after_a_later_one() -> None:
    watch = Watch()
    see_results(watch, rid=2, n=24)
    see_results(watch, rid=1, n=22)
    see_results(watch, rid=3, n=25)
    assert sorted(watch.answered.values()) == [1, 2, 3]


def test_a_new_results_message_with_a_lower_rid_breaks_the_rule() -> None:
    watch = Watch()
    see_results(watch, rid=2, n=24)
    with pytest.raises(RuleBroken, match="`rid` is 1, after 2"):
        see_results(watch, rid=1, n=25)


def test_two_brokers_may_receive_one_heartbeat_in_any_order() -> None:
    watch = Watch()
    see_heartbeat(watch, 8, "b2")
    see_heartbeat(watch, 7, "b1")
    with pytest.raises(RuleBroken, match="`n` is 7 in this heartbeat, after 8"):
        see_heartbeat(watch, 7, "b2")
