"""The slots of a worker's runners."""

from stepwire.runners.run_slots import RunSlots
from stepwire.session import Offer


class Call:
    def __init__(self, number: int, offer: int = 0) -> None:
        self.number = number
        self.offer = offer


def numbers(calls: list[Call]) -> list[int]:
    return [call.number for call in calls]


def test_calls_start_in_their_order_and_at_most_as_many_as_there_are_slots() -> None:
    slots: RunSlots[Call] = RunSlots(2, [Offer("h")])
    first, second, *rest = [Call(i) for i in range(4)]
    assert slots.add([first, second, rest[0]]) == [first, second]
    assert slots.add([rest[1]]) == []
    assert slots.release(second) is rest[0]
    assert slots.release(first) is rest[1]
    assert slots.release(rest[0]) is None
    assert numbers(slots.add([Call(5), Call(6)])) == [5]


def test_a_handler_keeps_to_its_concurrency_and_delays_no_other() -> None:
    slots: RunSlots[Call] = RunSlots(3, [Offer("narrow", concurrency=1), Offer("h")])
    narrow = [Call(i, 0) for i in range(3)]
    wide = [Call(i, 1) for i in range(10, 13)]
    assert slots.add([*narrow, *wide]) == [narrow[0], wide[0], wide[1]]
    assert slots.release(wide[0]) is wide[2]
    assert slots.release(narrow[0]) is narrow[1]
    assert slots.release(wide[1]) is None
    assert slots.release(narrow[1]) is narrow[2]
    assert slots.release(narrow[2]) is None
    assert slots.release(wide[2]) is None
    assert slots.add([Call(20, 0), Call(21, 0), Call(22, 1), Call(23, 1), Call(24, 1)])[-1].number == 23
