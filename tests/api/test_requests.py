"""The bodies of submissions and commands, and the commands that are made from them."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stepwire_broker.core.definitions.settings import LimitSettings
from stepwire_broker.core.intake.commands import CancelTask, PauseTask, ResolveStep, RetryTask
from stepwire_broker.core.model.events import SubmitTasks
from stepwire_broker.operator_commands import CANCEL_TASK, PAUSE_TASK, RESOLVE_STEP, RETRY_TASK
from stepwire_broker.stages import requests
from stepwire_protocol.errors import InvalidMessage

LIMITS = LimitSettings()


def body(**members: object) -> bytes:
    return json.dumps({"workflow": "order", **members}).encode()


def batch(*tasks: dict[str, object]) -> bytes:
    return json.dumps({"tasks": tasks}).encode()


def test_a_submission_needs_nothing_but_its_workflow() -> None:
    task = requests.read_task(b'{"workflow": "order"}', LIMITS)
    assert task._asdict() == {
        "namespace": "default",
        "workflow": "order",
        "version": None,
        "context": b"{}",
        "key": None,
        "digest": b"",
        "priority": 0,
        "labels": None,
        "deadline_ms": None,
        "is_sealed": False,
    }


def test_every_member_arrives() -> None:
    task = requests.read_task(
        body(
            namespace="shop::eu",
            version="1.1",
            context={"order_id": 7},
            idempotency_key="k-1",
            priority=-100,
            labels={"b": "2", "a": "1"},
            deadline_ms=5000,
        ),
        LIMITS,
    )
    assert (task.namespace, task.version, task.context, task.key) == ("shop::eu", "1.1", b'{"order_id":7}', "k-1")
    assert (task.priority, task.labels, task.deadline_ms) == (-100, b'{"a":"1","b":"2"}', 5000)


@pytest.mark.parametrize(
    ("text", "context"),
    [
        (b'{"workflow":"w","context":{ "a" : [ 1 , 2 ] }}', b'{"a":[1,2]}'),
        (b'{"workflow":"w","context":{"a b" :"c d"}}', b'{"a b":"c d"}'),
        (b'{"workflow":"w","context":{"n":1.50,"m":1E2}}', b'{"n":1.50,"m":1E2}'),
        (b'{"workflow":"w","context":{"u":"\\u00e9"}}', b'{"u":"\\u00e9"}'),
    ],
)
def test_a_context_is_minified_and_otherwise_as_it_was_sent(text: bytes, context: bytes) -> None:
    assert requests.read_task(text, LIMITS).context == context


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        (b"", "empty", ""),
        (b"[]", "not_an_object", ""),
        (b"{", "not_json", ""),
        (b"{}", "bad_field", "`workflow`"),
        (b'{"workflow":"w","workflow":"v"}', "duplicate_key", "workflow"),
        (b'{"workflow":"w","context":{"a":1,"a":2}}', "duplicate_key", "'a'"),
        (b'{"workflow":"w","context":{"a":"\\u0000"}}', "nul_character", ""),
        (b'{"workflow":"w","context":{"a":9007199254740992}}', "integer_out_of_range", ""),
        (b'{"workflow":"w","context":' + b'{"a":' * 40 + b"1" + b"}" * 40 + b"}", "too_deep", ""),
        (body(context=[1]), "bad_field", "`context`"),
        (body(context=None), "bad_field", "`context`"),
        (body(workflow=""), "bad_field", "`workflow`"),
        (body(workflow="w" * 129), "bad_field", "`workflow`"),
        (body(priority=101), "bad_field", "`priority` must be at most 100"),
        (body(priority="1"), "bad_field", "`priority`"),
        (body(labels={"a": 1}), "bad_field", "`labels[…]`"),
        (body(labels={str(n): "" for n in range(65)}), "bad_field", "`labels`"),
        (body(deadline_ms=0), "bad_field", "`deadline_ms`"),
        (body(idempotency_key=""), "bad_field", "visible ASCII"),
        (body(idempotency_key="a b"), "bad_field", "visible ASCII"),
        (body(idempotency_key="k" * 256), "bad_field", "visible ASCII"),
        (body(idempotency_key="k\n"), "bad_field", "visible ASCII"),
        (body(prioritty=1), "bad_field", "did you mean priority?"),
        (body(idempotencykey="k"), "bad_field", "did you mean idempotency_key?"),
        (body(zzz=1), "bad_field", "`zzz` is not a known member"),
    ],
)
def test_a_wrong_submission_is_refused_with_the_member(text: bytes, code: str, says: str) -> None:
    with pytest.raises(InvalidMessage) as refused:
        requests.read_task(text, LIMITS)
    assert refused.value.code == code
    assert says in refused.value.message


def test_a_submission_or_a_context_over_the_limit_is_refused() -> None:
    small = LimitSettings(payload_bytes=64)
    with pytest.raises(InvalidMessage, match="too_large"):
        requests.read_task(body(context={"a": "x" * 64}), small)
    with pytest.raises(InvalidMessage, match="a context of 72 bytes, at most 64"):
        requests.read_tasks(batch({"workflow": "w", "context": {"a": "x" * 64}}), small)


def test_the_key_may_come_in_the_header_and_must_not_contradict_the_body() -> None:
    assert requests.read_task(body(), LIMITS, "k").key == "k"
    assert requests.read_task(body(idempotency_key="k"), LIMITS, "k") == requests.read_task(
        body(idempotency_key="k"), LIMITS
    )
    with pytest.raises(InvalidMessage, match="differ"):
        requests.read_task(body(idempotency_key="k"), LIMITS, "l")


def test_the_digest_covers_the_content_and_not_the_key() -> None:
    def digest(text: bytes, key: str = "k") -> bytes:
        return requests.read_task(text, LIMITS, key).digest

    first = digest(b'{"workflow":"w","context":{"a":1,"b":2}}')
    assert len(first) == 32
    assert digest(b'{"context": {"b": 2, "a": 1}, "workflow": "w"}') == first
    assert digest(b'{"workflow":"w","context":{"a":1,"b":2},"priority":0,"namespace":"default"}') == first
    assert digest(b'{"workflow":"w","context":{"a":1,"b":2}}', "another") == first
    others = [
        body(),
        body(context={"a": 1, "b": 3}),
        body(context={"a": 1, "b": 2}, priority=1),
        body(context={"a": 1, "b": 2}, namespace="n"),
        body(context={"a": 1, "b": 2}, version="1"),
        body(context={"a": 1, "b": 2}, labels={"l": "1"}),
        body(context={"a": 1, "b": 2}, deadline_ms=1),
    ]
    assert len({digest(other) for other in others} | {first}) == len(others) + 1


def test_no_context_and_an_empty_one_are_the_same_submission() -> None:
    assert (
        requests.read_task(body(idempotency_key="k"), LIMITS).digest
        == requests.read_task(body(idempotency_key="k", context={}), LIMITS).digest
    )


def test_a_task_of_a_batch_is_the_task_it_would_be_alone() -> None:
    one = {"workflow": "w", "context": {"a": 1}, "idempotency_key": "k", "labels": {"x": "y"}}
    assert requests.read_tasks(batch(one), LIMITS) == [requests.read_task(json.dumps(one).encode(), LIMITS)]


def test_a_batch_under_a_key_gives_its_tasks_keys() -> None:
    tasks = requests.read_tasks(batch({"workflow": "w"}, {"workflow": "w", "idempotency_key": "own"}), LIMITS, "k")
    assert [task.key for task in tasks] == ["k/0", "own"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b'{"tasks":[]}', "`tasks`"),
        (b"{}", "`tasks`"),
        (batch({"workflow": "w"}, {"workflw": "w"}), "did you mean workflow?"),
        (batch({"workflow": "w"}, {"context": {}}), "`tasks[1].workflow` is missing"),
        (batch({"workflow": "w"}, {"workflow": "w", "context": 1}), "`tasks[1].context`"),
        (
            batch({"workflow": "w", "idempotency_key": "k"}, {"workflow": "v", "idempotency_key": "k"}),
            "the key 'k' of `tasks[1]` occurs twice in this batch",
        ),
        (batch({"workflow": "w", "idempotency_key": "é"}), "`tasks[0].idempotency_key`"),
    ],
)
def test_a_wrong_batch_names_the_task(text: bytes, says: str) -> None:
    with pytest.raises(InvalidMessage) as refused:
        requests.read_tasks(text, LIMITS)
    assert says in refused.value.message


def test_the_same_key_in_two_namespaces_is_two_keys() -> None:
    tasks = requests.read_tasks(
        batch(
            {"workflow": "w", "idempotency_key": "k", "namespace": "a"},
            {"workflow": "w", "idempotency_key": "k", "namespace": "b"},
        ),
        LIMITS,
    )
    assert len(tasks) == 2


def test_the_number_of_tasks_in_a_batch_is_limited() -> None:
    few = LimitSettings(tasks_per_batch=2)
    assert len(requests.read_tasks(batch(*[{"workflow": "w"}] * 2), few)) == 2
    with pytest.raises(InvalidMessage, match="3 tasks in one batch, at most 2"):
        requests.read_tasks(batch(*[{"workflow": "w"}] * 3), few)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    # What a string may hold, without NUL and surrogates.
    | st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",))),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(st.characters(codec="ascii", exclude_characters="\0")), inner)
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.text("abc"), json_values), st.sampled_from([None, (",", ":"), (" , ", " : ")]), st.booleans())
def test_a_context_never_changes_its_value(
    context: dict[str, object], separators: tuple[str, str] | None, ascii_only: bool
) -> None:
    text = json.dumps({"workflow": "w", "context": context}, separators=separators, ensure_ascii=ascii_only)
    task = requests.read_task(text.encode(), LIMITS)
    assert json.loads(task.context) == context
    assert requests.read_tasks(b'{"tasks":[' + text.encode() + b"]}", LIMITS) == [task]


def test_entropy_is_fresh_for_every_submission() -> None:
    task = requests.read_task(body(), LIMITS)
    first, second = requests.submission([task])(1), requests.submission([task])(2)
    assert isinstance(first, SubmitTasks)
    assert isinstance(second, SubmitTasks)
    assert first.tasks == [task]
    assert first.entropy != second.entropy
    assert 0 <= first.entropy < 2**128


def test_the_bodies_of_commands_are_read() -> None:
    assert CANCEL_TASK.read(b"", 7, LIMITS)(1) == CancelTask(1, 7, "")
    assert CANCEL_TASK.read(b'{"reason": "wrong customer"}', 7, LIMITS)(1) == CancelTask(1, 7, "wrong customer")
    assert PAUSE_TASK.read(b"{}", 7, LIMITS)(1) == PauseTask(1, 7)
    retry = b'{"from_step":"pay","again":true,"new_key":true,"reason":"r"}'
    assert RETRY_TASK.read(retry, 7, LIMITS)(1) == RetryTask(1, 7, "pay", True, True, "r")
    resolution = b'{"outcome":"completed","output":{ "a": 1 },"reason":"seen"}'
    resolved = RESOLVE_STEP.read(resolution, 8, LIMITS)(1)
    assert isinstance(resolved, ResolveStep)
    assert (resolved.step_id, resolved.outcome, resolved.reason) == (8, "completed", "seen")
    assert bytes(resolved.output or b"") == b'{"a":1}'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b'{"outcome":"completed"}', "`reason`"),
        (b'{"outcome":"completed","reason":""}', "`reason`"),
        (b'{"outcome":"done","reason":"r"}', "`outcome` must be one of completed, failed, retry"),
        (b'{"outcome":"failed","reason":"r"}', "needs a message"),
        (b'{"outcome":"failed","reason":"r","message":"m","output":1}', "output"),
        (b'{"outcome":"retry","reason":"r","message":"m"}', "message"),
        (b'{"outcome":"completed","reason":"r","new_key":true}', "new key"),
        (b'{"outcome":"retry","reason":"r","newkey":true}', "did you mean new_key?"),
    ],
)
def test_a_resolution_with_contradictory_members_is_refused(text: bytes, says: str) -> None:
    with pytest.raises(InvalidMessage) as refused:
        RESOLVE_STEP.read(text, 8, LIMITS)
    assert says in refused.value.message
