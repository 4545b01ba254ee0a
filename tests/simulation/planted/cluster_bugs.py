"""Bugs of several brokers on one database. Each is searched for in seeds with two brokers."""

from typing import Any, Final

from stepwire_broker.core.lanes import darkness
from stepwire_protocol import messages as wire

from tests.memory_store.writer import MemoryWriter

from .plant import Bug, Plant


def _fence_without_epoch(plant: Plant) -> None:
    plant.value(MemoryWriter, "_is_owner", property(lambda self: True))


def _heartbeats_acked_in_the_dark(plant: Plant) -> None:
    def silence(original: Any, state: Any, decision: Any, now: Any) -> None:
        acks = [send for send in decision.sends if isinstance(send.message, wire.HeartbeatAck)]
        original(state, decision, now)
        decision.sends = acks

    plant.function(darkness.silence, silence)


def _never_dark(plant: Plant) -> None:
    plant.function(darkness.is_dark, lambda _, state, now: False)


def _order_carried_out_again(plant: Plant) -> None:
    """The owner does not write the answer of an order in the transaction of its effect."""

    def write(original: Any, self: Any, answers: Any) -> None:
        return None

    plant.method(MemoryWriter, "answer_orders", write)


BUGS: Final = (
    Bug("cluster: the fence compares no epoch", _fence_without_epoch, brokers=2),
    Bug("cluster: a dark broker acks heartbeats", _heartbeats_acked_in_the_dark, brokers=2),
    Bug("cluster: no broker is ever dark", _never_dark, brokers=2),
    Bug("cluster: the answer of an order is not written with its effect", _order_carried_out_again, brokers=2),
)
