"""The meaning of a program's end for its step."""

from typing import Any

import pytest
from msgspec import Raw
from stepwire_broker.executors.exec.exit_codes import outcome_of
from stepwire_broker.executors.exec.program import ProgramEnded

MAX = 4096


def ended_as(at_most_once: bool = False, **how: Any) -> tuple[str, str | None, str | None]:
    result = outcome_of(ProgramEnded(**how), at_most_once=at_most_once, stdout_bytes_max=MAX)
    assert result.should_retry is (None if result.status in ("completed", "held") else result.status == "retry")
    return result.status, result.code, result.error


@pytest.mark.parametrize(
    ("how", "at_least_once", "at_most_once"),
    [
        ({"exit_code": 0}, "completed", "completed"),
        ({"exit_code": 1}, "retry exit_1", "retry exit_1"),
        ({"exit_code": 65}, "failed exit_65", "failed exit_65"),
        ({"exit_code": 75}, "retry exit_75", "retry exit_75"),
        ({"exit_code": 81}, "held", "held"),
        ({"exit_code": 127}, "retry exit_127", "retry exit_127"),
        ({"exit_code": 255}, "retry exit_255", "retry exit_255"),
        # a killed program has not reported its outcome; a shell reports a kill by its exit code
        ({"killed_by": 9}, "retry SIGKILL", "held"),
        ({"killed_by": 63}, "retry signal_63", "held"),
        ({"exit_code": 137}, "retry exit_137", "held"),
        ({}, "retry no_exit_code", "held"),
        ({"killed_by": 15, "cancelled_for": "timeout"}, "retry timeout", "held"),
        ({"exit_code": 0, "stdout": b"1", "cancelled_for": "timeout"}, "retry timeout", "held"),
        ({"exit_code": 65, "cancelled_for": "task_cancelled"}, "retry cancelled", "held"),
        ({"killed_by": 9, "too_much": True}, "failed bad_output", "held"),
        ({"exit_code": 0, "stdout": b"oops"}, "failed bad_output", "held"),
    ],
)
def test_the_end_of_a_program_is_one_outcome_of_four(
    how: dict[str, Any], at_least_once: str, at_most_once: str
) -> None:
    for mode, expected in ((False, at_least_once), (True, at_most_once)):
        status, code, _ = ended_as(mode, **how)
        assert " ".join(filter(None, (status, code))) == expected, mode


@pytest.mark.parametrize(
    ("stdout", "output"),
    [
        (b"", b"null"),
        (b" \r\n\t", b"null"),
        (b"null\n", b"null"),
        (b' {"a": [1, 2.5, "\xc3\xa9"]}\n', b'{"a": [1, 2.5, "\xc3\xa9"]}'),
        (b"7", b"7"),
        (b"[]", b"[]"),
    ],
)
def test_one_json_value_or_nothing_is_an_output(stdout: bytes, output: bytes) -> None:
    result = outcome_of(ProgramEnded(exit_code=0, stdout=stdout), at_most_once=True, stdout_bytes_max=MAX)
    assert (result.status, result.output) == ("completed", Raw(output))


@pytest.mark.parametrize(
    ("stdout", "text"),
    [
        (b"Hello, world\n", "it begins with 'Hello, world'"),
        (b"{} {}", "it begins with '{} {}'"),
        (b'1}],"x":[{"output":2', "it begins with '1}],"),  # would fit where an output goes
        (b'{"a": 1,}', "malformed"),
        (b'{"a": 1, "a": 2}', "duplicate_key"),
        (b'{"a": "\\u0000"}', "nul_character"),
        (b"\0", "it begins with '\ufffd'"),
        (b"NaN", "NaN"),
        (b"\xff\xfe", "it begins with '\ufffd\ufffd'"),
        (b'"\\ud800"', "surrogate"),
        (b"9007199254740993", "integer_out_of_range"),
        (b"[" * 40 + b"]" * 40, "too_deep"),
        (b"[" * 2000 + b"]" * 2000, "begins with"),
    ],
)
def test_an_unusable_output_is_reported_with_its_beginning(stdout: bytes, text: str) -> None:
    status, code, error = ended_as(exit_code=0, stdout=stdout)
    assert (status, code) == ("failed", "bad_output")
    assert error is not None
    assert text in error
    assert len(error) < 600


@pytest.mark.parametrize(
    ("stderr", "message"),
    [
        (b"", "the program ended with exit code 1"),
        (b"  \n", "the program ended with exit code 1"),
        (b"warning: x\ncannot reach the bank\n", "warning: x\ncannot reach the bank"),
        (b"\xffa\0b", "\ufffda\ufffdb"),
        (b"first\n" + b"x" * 3000 + b"\nlast\n", "…\nlast"),
        (b"x" * 3000, "…" + "x" * 2000),
    ],
)
def test_the_message_of_a_failure_is_the_end_of_stderr(stderr: bytes, message: str) -> None:
    assert ended_as(exit_code=1, stderr=stderr)[2] == message


def test_an_error_document_on_stdout_takes_precedence_over_stderr() -> None:
    document = b'{"message": "no such card", "code": "card_unknown", "category": "card", "more": {}}'
    result = outcome_of(
        ProgramEnded(exit_code=1, stdout=document, stderr=b"trace"), at_most_once=False, stdout_bytes_max=MAX
    )
    assert (result.status, result.error, result.code, result.category) == (
        "retry",
        "no such card",
        "card_unknown",
        "card",
    )


@pytest.mark.parametrize(
    ("exit_code", "retryable", "status"),
    [
        (1, b"true", "retry"),
        (1, b"false", "failed"),
        (1, b"null", "retry"),
        (75, b"false", "retry"),
        (65, b"true", "failed"),
    ],
)
def test_the_exit_code_decides_about_a_retry_before_the_error_document(
    exit_code: int, retryable: bytes, status: str
) -> None:
    document = b'{"message": "m", "retry_after_ms": 1500, "retryable": ' + retryable + b"}"
    result = outcome_of(ProgramEnded(exit_code=exit_code, stdout=document), at_most_once=False, stdout_bytes_max=MAX)
    assert result.status == status
    assert result.retry_after_ms == (1500 if status == "retry" else None)


@pytest.mark.parametrize(
    "stdout",
    [b"{}", b'{"code": "x"}', b'{"message": 7}', b'{"message": "m", "retry_after_ms": -1}', b"[", b"1", b"\xff"],
)
def test_an_incomplete_error_document_is_ignored(stdout: bytes) -> None:
    assert ended_as(exit_code=3, stdout=stdout, stderr=b"why") == ("retry", "exit_3", "why")


def test_an_error_document_can_report_an_unknown_outcome() -> None:
    document = b'{"message": "no answer", "code": "outcome_unknown"}'
    assert ended_as(True, exit_code=1, stdout=document) == ("held", None, "no answer")
    assert ended_as(False, exit_code=1, stdout=document) == ("retry", "outcome_unknown", "no answer")
