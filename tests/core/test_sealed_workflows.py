"""Workflows with sealed payloads in the core: the broker refuses what it could read, and stores none of it."""

from typing import Any

import msgspec
import pytest
from msgspec import Raw
from stepwire_broker import definition_files
from stepwire_broker.core.definitions.settings import LimitSettings
from stepwire_broker.core.definitions.workflow import InvalidWorkflow, read_workflow
from stepwire_broker.core.reading.sealed_results import checked
from stepwire_broker.stages.requests import read_task
from stepwire_protocol.errors import InvalidMessage
from stepwire_protocol.messages import ErrorDetail, Result, ResultMetadata
from stepwire_protocol.sealed_payloads import ERROR_MESSAGE, ERROR_NOT_SEALED

OUTPUT = {"$sealed": "v1", "kid": "k", "nonce": "A" * 16, "data": "A" * 24, "clear": {}}
TASK = {"namespace": "default", "workflow": "w", "key": "a"}
CONTEXT = {**OUTPUT, "task": TASK}

WORKFLOW = """\
name: w
payloads: sealed
steps:
  - {name: a, handler_class: A}
  - name: b
    handler_class: B
    depends_on: [a]
    input:
      good: context.clear.region
      total: results.a.total
      all: context
    trigger_rule:
      all:
        - {context: card, op: exists}
        - {context: clear.region, op: exists}
        - {result: a.clear.ok, op: exists}
        - {result: a, op: exists}
output:
  whole: results.a
  ok: results.a.clear.ok
"""


def test_every_path_into_a_sealed_part_is_refused_with_its_line_and_the_path_to_write() -> None:
    document = definition_files.read_document(WORKFLOW, "w.yaml")
    with pytest.raises(InvalidWorkflow) as refused:
        read_workflow(document.value, document.where)
    found = {(problem.where, problem.path, problem.message.rpartition(" ")[2]) for problem in refused.value.problems}
    assert found == {
        ("w.yaml:10", "steps[1].input.total", "results.a.clear.total"),
        ("w.yaml:11", "steps[1].input.all", "context.clear"),
        ("w.yaml:14", "steps[1].trigger_rule.all[0].context", "clear.card"),
        ("w.yaml:17", "steps[1].trigger_rule.all[3].result", "a.clear"),
        ("w.yaml:19", "output.whole", "results.a.clear"),
    }
    document.value["payloads"] = "open"
    assert not read_workflow(document.value).is_sealed


def read(context: Any, key: str | None = "a") -> Any:
    task = {"workflow": "w", "context": context, **({"idempotency_key": key} if key else {})}
    return read_task(msgspec.json.encode(task), LimitSettings())


def test_a_sealed_context_is_accepted_for_its_own_task_only() -> None:
    assert read(CONTEXT).is_sealed
    assert not read({"a": 1}).is_sealed
    for context, key in ((CONTEXT, "b"), (CONTEXT, None), ({**CONTEXT, "task": {**TASK, "workflow": "v"}}, "a")):
        with pytest.raises(InvalidMessage, match=r"another task|needs its idempotency key"):
            read(context, key)


@pytest.mark.parametrize(
    "change",
    [
        {"$sealed": "v2"},
        {"extra": "plaintext"},
        {"kid": "a b"},
        {"nonce": "AAAA"},
        {"data": "plaintext!"},
        {"data": ""},
        {"clear": []},
        {"data": None},
    ],
)
def test_a_payload_of_another_form_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessage, match="`context`: "):
        read({**CONTEXT, **change})
    assert checked(completed({**OUTPUT, **change}), at_most_once=False).error is not None


def completed(output: Any) -> Result:
    return Result(step_id=1, delivery=1, status="completed", output=Raw(msgspec.json.encode(output)))


@pytest.mark.parametrize("output", [OUTPUT, None])
def test_a_sealed_output_and_null_are_accepted(output: Any) -> None:
    result = completed(output)
    assert checked(result, at_most_once=False) is result


@pytest.mark.parametrize(("at_most_once", "code"), [(False, "output_not_sealed"), (True, "outcome_unknown")])
def test_an_open_output_is_dropped_and_its_step_fails_or_is_held(at_most_once: bool, code: str) -> None:
    for output in ({"card": "4929"}, "4929", {"$sealed": "4929"}, [OUTPUT], {**OUTPUT, "4929": 1}):
        result = checked(completed(output), at_most_once=at_most_once)
        assert (result.status, result.error.code, bytes(result.output)) == ("error", code, b"null")
        assert "4929" not in str(result)


def test_the_text_of_an_open_error_and_standard_error_are_dropped() -> None:
    error = ErrorDetail(message="card 4929", code="code 4929", category="unavailable", backtrace=["4929"])
    metadata = ResultMetadata(execution_time_ms=1.5, stderr="4929")
    result = checked(Result(step_id=1, status="failed", error=error, metadata=metadata), at_most_once=False)
    assert "4929" not in str(result)
    assert (result.error.message, result.error.code) == (ERROR_NOT_SEALED, None)
    assert (result.error.category, result.metadata.execution_time_ms) == ("unavailable", 1.5)


def test_a_sealed_error_is_kept_only_with_its_fixed_message() -> None:
    envelope = msgspec.json.encode(OUTPUT).decode()
    sealed = ErrorDetail(message=ERROR_MESSAGE, code="Declined", backtrace=[envelope])
    kept = Result(step_id=1, status="failed", error=sealed)
    assert checked(kept, at_most_once=False) is kept
    changes = [{"message": "4929"}, {"backtrace": [envelope, "4929"]}, {"backtrace": ["4929"]}, {"backtrace": None}]
    for change in changes:
        error = msgspec.structs.replace(sealed, **change)
        result = checked(msgspec.structs.replace(kept, error=error), at_most_once=False)
        assert result.error.message == ERROR_NOT_SEALED
        assert "4929" not in str(result)
