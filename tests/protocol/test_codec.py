"""Every value of every message is unchanged after encoding and decoding; all other bytes raise InvalidMessage."""

import json
from typing import Any, get_type_hints

import msgspec
import pytest
from conformance.vectors import frames_of, load
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import Raw, Struct, inspect
from stepwire_protocol import codec, limits, schema, topics
from stepwire_protocol.errors import InvalidMessage

from .receivers import read_as_broker, read_as_worker

# Text that a database and every language can store.
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
OUTPUTS = st.recursive(
    st.none() | st.booleans() | st.integers(-limits.INTEGER_MAX, limits.INTEGER_MAX) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


def strategy(kind: inspect.Type) -> st.SearchStrategy[Any]:
    """Any value of this type, derived from the type: a new message needs no new strategy."""
    match kind:
        case inspect.StructType():
            return st.builds(
                kind.cls,
                **{field.name: strategy(field.type) for field in kind.fields},
            )
        case inspect.Metadata():
            return strategy(kind.type)
        case inspect.IntType():
            return st.integers(kind.ge or 0, kind.le if kind.le is not None else limits.INTEGER_MAX)
        case inspect.FloatType():
            return st.floats(kind.ge, allow_nan=False, allow_infinity=False)
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case inspect.StrType() if kind.pattern:
            return st.from_regex(kind.pattern, fullmatch=True)
        case inspect.StrType():
            return TEXT.filter(lambda text: (kind.min_length or 0) <= len(text))
        case inspect.LiteralType():
            return st.sampled_from(kind.values)
        case inspect.ListType():
            return st.lists(strategy(kind.item_type), min_size=kind.min_length or 0, max_size=3)
        case inspect.TupleType():
            return st.tuples(*map(strategy, kind.item_types))
        case inspect.DictType():
            return st.dictionaries(strategy(kind.key_type), strategy(kind.value_type), max_size=2)
        case inspect.UnionType():
            return st.one_of(*map(strategy, kind.types))
        case inspect.RawType():
            return OUTPUTS.map(lambda value: Raw(msgspec.json.encode(value)))
    raise TypeError(f"no values are made for {kind}: give it a line here")


def made_valid(message: Struct) -> Struct:
    """Apply the rules that types cannot express: versions, and no duplicate items."""
    changes: dict[str, Any] = {}
    names = get_type_hints(type(message))
    version = limits.PROTOCOL_LEVEL_1 if "v" in names else limits.PROTOCOL_LEVEL_0
    for member in ("v", "protocol_version"):
        if member in names:
            changes[member] = version
    for member in ("items", "holding"):
        if member in names:
            changes[member] = list({item[:2]: item for item in getattr(message, member)}.values())
    if "results" in names:
        results = {r.step_id: r for r in message.results}  # type: ignore[attr-defined]
        if "rid" in names:
            results = {k: msgspec.structs.replace(r, delivery=r.step_id) for k, r in results.items()}
        changes["results"] = list(results.values())
        if "error" in names and not results:
            changes["error"] = "nothing could be run"
    return msgspec.structs.replace(message, **changes)


def topic_of(document: schema.SchemaDocument) -> bytes:
    topic = document.topic.replace("<broker>", "b1").replace("<worker>", "w:0123456789abcdef")
    return topic.encode()


@pytest.mark.parametrize("document", schema.DOCUMENTS, ids=lambda d: d.name)
def test_every_message_is_unchanged_after_encoding_and_decoding(document: schema.SchemaDocument) -> None:
    read = read_as_broker if document.sender == "worker" else read_as_worker
    topic = topic_of(document)

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(strategy(inspect.type_info(document.type)))
    def round_trip(message: Struct) -> None:
        message = made_valid(message)
        sent = codec.frame(topic, message)
        assert read([sent]) == message
        assert codec.frame(topic, read([sent])) == sent

    round_trip()


VALID = load("accepted")["messages"]
HOSTILE = [
    *(None, True, False, 0, -1, 1.5, 1.0, "", "x", "2.0", "1.0", [], {}, [[]], {"a": 1}, "\0", "\ud800"),
    *(2**53, -(2**53), 2**64, 10**30, "8127", [1], [1, 1], [[1, 1], [1, 1]], float("nan"), float("inf"), "x" * 9000),
]


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(path for key, member in inner for path in paths(member, (*at, key)))]


def mutated(value: Any, path: tuple[Any, ...], change: str, hostile: Any) -> Any:
    if not path:
        return hostile
    copy = json.loads(json.dumps(value))
    parent = copy
    for key in path[:-1]:
        parent = parent[key]
    if change == "delete":
        del parent[path[-1]]
    elif change == "double" and isinstance(parent, list):
        parent.append(parent[path[-1]])
    elif change == "add" and isinstance(parent, dict):
        parent[f"{path[-1]}x"] = hostile
    else:
        parent[path[-1]] = hostile
    return copy


def read_or_refuse(frames: list[bytes], sender: str) -> None:
    """Require a message or an InvalidMessage with a known code, for either receiver."""
    try:
        (read_as_broker if sender == "worker" else read_as_worker)(frames)
    except InvalidMessage:
        pass  # InvalidMessage itself asserts that its code is in REFUSALS
    for frame in frames:
        sender = codec.sender_of(frame)
        assert sender.rid is None or 1 <= sender.rid <= limits.INTEGER_MAX


@settings(max_examples=1000, deadline=None)
@given(st.data())
def test_a_valid_message_with_one_fault_is_read_or_refused(data: Any) -> None:
    vector = data.draw(st.sampled_from(VALID))
    value = json.loads(vector["text"])
    path = data.draw(st.sampled_from(paths(value)))
    change = data.draw(st.sampled_from(["replace", "delete", "double", "add"]))
    changed = mutated(value, path, change, data.draw(st.sampled_from(HOSTILE)))
    for ascii_only in (True, False):
        body = json.dumps(changed, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
        read_or_refuse([vector["topic"].encode() + body], vector["sender"])


@settings(max_examples=1000, deadline=None)
@given(st.data())
def test_a_valid_message_with_bytes_changed_is_read_or_refused(data: Any) -> None:
    vector = data.draw(st.sampled_from(VALID))
    frame = bytearray(frames_of(vector)[0])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(frame)))
        cut = data.draw(st.integers(0, 3))
        frame[at : at + cut] = data.draw(
            st.binary(max_size=3) | st.sampled_from([b'"', b"{", b"]", b"\\u", b" ", b"1"])
        )
    read_or_refuse([bytes(frame)], vector["sender"])


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=64), st.sampled_from([topics.WORKERS, topics.RESULTS, topics.results_to("b1"), b""]))
def test_any_bytes_are_read_or_refused(body: bytes, topic: bytes) -> None:
    read_or_refuse([topic + body], "worker")
    read_or_refuse([topics.to_worker("w:0123456789abcdef") + body], "broker")
    read_or_refuse([topics.STEPS + body], "broker")


def test_the_json_starts_after_the_first_space() -> None:
    assert codec.split(b'results@b1 {"a": "b c"}') == (b"results@b1 ", b'{"a": "b c"}')
    assert codec.split(b"results  {}") == (b"results ", b" {}")


def test_a_level_0_batch_begins_with_to() -> None:
    """The subscription that the broker grants to a peer is a prefix of these bytes."""
    for vector in VALID:
        if vector["topic"] == "steps " and "to" in vector["value"]:
            assert codec.encode(read_as_worker(frames_of(vector))).startswith(b'{"to":"0.7",')
            return
    raise AssertionError("no such vector")


LEVEL_1 = b'{"type":"results","results":[]}'


@pytest.mark.parametrize(
    ("body", "is_level1"),
    [
        (LEVEL_1, True),
        (b'{"batch_id":"b","results":[{"type":"results"}]}', False),
        (b'{"batch_id":"b","results":[{"type":"results"}],"x":NaN}', False),
        (b'{"type":"results","results":[NaN]}', True),
        (b'{"type":7}', True),
        (b'{"type":null}', False),
        (b"[]", False),
        (b"", False),
        (b'{"a":' * 5000, False),
    ],
)
def test_a_top_level_type_makes_a_message_level_1(body: bytes, is_level1: bool) -> None:
    assert codec.is_level1(body) is is_level1


HEARTBEAT = '{"type":"heartbeat","v":"2.0","worker":"shop-1:0123456789abcdef","n":7,"holding":[%s]}'


def held(count: int, then: str = "") -> bytes:
    return (HEARTBEAT % ",".join(f'[{n},1,"done",5]' for n in range(1, count + 1))).encode() + then.encode()


def test_a_heartbeat_with_more_held_items_than_allowed_is_refused_before_it_is_parsed() -> None:
    assert len(codec.decode_worker(held(limits.HELD_ITEMS_MAX)).holding) == limits.HELD_ITEMS_MAX  # type: ignore[union-attr]
    with pytest.raises(InvalidMessage, match="at most 20000 items"):
        codec.decode_worker(held(limits.HELD_ITEMS_MAX + 1))
    with pytest.raises(InvalidMessage) as refused:
        codec.decode_worker(held(180_000, then=" not JSON"))
    assert (refused.value.code, refused.value.message) == ("too_large", "180002 arrays and objects, at most 20100")


def test_results_may_hold_more_arrays_than_other_messages() -> None:
    output = "[" + ",".join(["[]"] * (limits.CONTROL_CONTAINERS_MAX + 1)) + "]"
    result = f'{{"step_id":1,"delivery":1,"status":"completed","output":{{"a":{output}}}}}'
    head = '"v":"2.0","protocol_version":"2.0","worker":"shop-1:0123456789abcdef","n":7,"session":"7.1","rid":3'
    head += ',"deployment":"4f9d2c81a07be356"'
    codec.decode_worker(f'{{"type":"results",{head},"batch_id":"b","results":[{result}]}}'.encode())


def test_the_sender_of_a_message_is_read_without_reading_other_values() -> None:
    body = b'{"type":[1e999],"worker":"shop-1:0123456789abcdef","rid":5}'  # a number that cannot be read
    assert codec.sender_of(body) == ("shop-1:0123456789abcdef", None, 5)
    assert codec.is_level1(body)
    assert codec.sender_of(b'{"type":"' + b"x" * 100_000 + b'","rid":5}') == (None, None, 5)
