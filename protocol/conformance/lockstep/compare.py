"""Compares the replies of two drivers, after the differences that do not matter are removed. DRIVER.md lists them."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from stepwire_protocol.errors import InvalidMessage

from conformance import driver_frames
from conformance.driver_process import Op, Reply
from conformance.values import members

NUMBER_TOLERANCE: Final = 1e-6
WAKE_TOLERANCE_MS: Final = 1.0
KNOWN: Final = frozenset({"send", "run", "request_stop", "quit", "connect", "disconnect", "rebuild"})


def first_difference(ops: Sequence[Op], expected: Sequence[Reply], seen: Sequence[Reply]) -> tuple[int, str] | None:
    """The number of the first reply that differs, and how. A missing reply differs."""
    for i, op in enumerate(ops):
        if i >= len(seen):
            return i, "the driver gave no reply"
        how = difference(expected[i], seen[i], op["now_ms"])
        if how is not None:
            return i, how
    return None


def difference(expected: Reply, seen: Reply, now_ms: float) -> str | None:
    """How the second reply differs from the first. None: not at all."""
    if "error" in seen or "error" in expected:
        return None if "error" in seen and "error" in expected else "one driver reports an error"
    try:
        return next(_differences(expected, seen, now_ms), None)
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        return f"the reply has not the form of DRIVER.md: {type(error).__name__}: {error}"


def _differences(expected: Reply, seen: Reply, now_ms: float) -> Iterator[str]:
    ours = [action for action in expected["actions"] if action["action"] in KNOWN]
    theirs = [action for action in seen.get("actions", []) if action["action"] in KNOWN]
    for i, (our, their) in enumerate(zip(ours, theirs, strict=False)):
        if our != their:
            for how in _of_action(our, their):
                yield f"action {i + 1}: {how}"
    if len(ours) != len(theirs):
        longer, which = (ours, "missing") if len(ours) > len(theirs) else (theirs, "too many")
        yield f"action {min(len(ours), len(theirs)) + 1} is {which}: {shown(longer[min(len(ours), len(theirs))])}"
    yield from _of_wake(expected["wake_at_ms"], seen.get("wake_at_ms"), now_ms)
    if expected["holding"] != seen.get("holding"):
        yield from _of_values([list(item) for item in expected["holding"]], seen.get("holding"), "holding")


def _of_action(our: dict[str, Any], their: dict[str, Any]) -> Iterator[str]:
    if our["action"] != their["action"]:
        yield f"{shown(our)}, not {shown(their)}"
    elif our["action"] == "send":
        yield from _of_frames(our["frame"], their["frame"])
    else:
        yield from _of_values(our, {name: their.get(name) for name in our}, our["action"])


def _of_frames(ours: str, theirs: str) -> Iterator[str]:
    if ours == theirs:
        return
    our_topic, _, our_body = ours.partition(" ")
    their_topic, _, their_body = theirs.partition(" ")
    if our_topic != their_topic:
        yield f"the topic is {our_topic!r}, not {their_topic!r}"
        return
    try:
        their_message = members(driver_frames.decode_worker(their_body.encode()))
    except InvalidMessage as invalid:
        yield f"a broker refuses the frame ({invalid}): {theirs[:300]}"
        return
    except UnicodeEncodeError:
        yield f"the frame is not Unicode: {theirs[:300]!r}"
        return
    our_message = members(driver_frames.decode_worker(our_body.encode()))
    yield from _of_values(our_message, their_message, our_message["type"])


def _of_wake(ours: float | None, theirs: float | None, now_ms: float) -> Iterator[str]:
    if ours is None or theirs is None:
        if ours is not theirs:
            yield f"wake_at_ms is {ours}, not {theirs}"
    elif abs(max(ours, now_ms) - max(theirs, now_ms)) > WAKE_TOLERANCE_MS:
        yield f"wake_at_ms is {ours}, not {theirs}"


def _of_values(ours: Any, theirs: Any, at: str) -> Iterator[str]:
    """Where two JSON values differ. Integers and floats are one type, booleans another."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name in ours.keys() | theirs.keys():
            if name not in ours or name not in theirs:
                yield f"{at}.{name} is {'absent' if name not in ours else shown(ours[name])} here only"
            else:
                yield from _of_values(ours[name], theirs[name], f"{at}.{name}")
    elif isinstance(ours, list) and isinstance(theirs, list):
        if len(ours) != len(theirs):
            yield f"{at} is {shown(ours)}, not {shown(theirs)}"
            return
        for i, (our, their) in enumerate(zip(ours, theirs, strict=True)):
            yield from _of_values(our, their, f"{at}[{i}]")
    elif _is_number(ours) and _is_number(theirs):
        if abs(ours - theirs) > NUMBER_TOLERANCE:
            yield f"{at} is {ours}, not {theirs}"
    elif type(ours) is not type(theirs) or ours != theirs:
        yield f"{at} is {shown(ours)}, not {shown(theirs)}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 600 else text[:600] + "…"
