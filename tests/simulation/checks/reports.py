"""Reports of workers about their runs are stored: the error and duration of every attempt, and standard error."""

from typing import Any, Final

import msgspec
from stepwire_protocol import codec
from stepwire_protocol import messages as wire

from tests.simulation.broker_node import BrokerNode

from .books import Books

MESSAGE_CHARACTERS_MAX: Final = 200
STDERR_BYTES_MAX: Final = 16 * 1024


def note_sent(books: Books, message: wire.Results) -> None:
    for result in message.results:
        books.reported.setdefault((result.step_id, int(result.delivery)), []).append(result)  # type: ignore[arg-type]


def note_received(books: Books, broker: BrokerNode, frame: bytes) -> None:
    if frame.startswith(b"results") and b'"completed"' in frame:  # the topic carries other messages too
        message = _results(codec.split(frame)[1])
        books.succeeded[broker.id] |= {
            (r.step_id, message.batch_id) for r in message.results if r.status == "completed"
        }


class _Result(msgspec.Struct):
    step_id: int
    status: str


class _Results(msgspec.Struct):
    batch_id: str = ""
    results: list[_Result] = []


_results: Final = msgspec.json.Decoder(_Results).decode


def check_completed(books: Books, step_id: int, fact: list[Any]) -> None:
    """A completed step has the duration that its worker reported for this delivery."""
    if step_id in books.resolved_outputs:
        return
    reported = [result for result in books.reported.get((step_id, fact[3]), ()) if result.status == "completed"]
    _check_duration(books, step_id, fact, fact[6], reported)


def check_ended(books: Books, step_id: int, fact: list[Any]) -> None:
    """A failed attempt has its error, and the duration that its worker reported."""
    run_ms, message = fact[-2:]
    if not message or len(message) > MESSAGE_CHARACTERS_MAX or "\n" in message:
        books.fail("R the history has every attempt's error", f"step {step_id}: {fact}")
    if run_ms is not None:
        reported = [result for result in books.reported.get((step_id, fact[3]), ()) if result.status != "completed"]
        _check_duration(books, step_id, fact, run_ms, reported)


def _check_duration(
    books: Books, step_id: int, fact: list[Any], run_ms: int | None, reported: list[wire.Result]
) -> None:
    durations = {
        None
        if result.metadata is None or result.metadata.execution_time_ms is None
        else round(result.metadata.execution_time_ms)
        for result in reported
    }
    if reported and run_ms not in durations:
        books.fail("R a run has the duration that its worker measured", f"step {step_id}: {fact}, not {durations}")


def check_stderr_kept(books: Books, step_id: int, delivery: int) -> None:
    """The step was completed by this delivery: its standard error is in the store, in the same transaction."""
    texts = [_stderr(result) for result in books.reported.get((step_id, delivery), ()) if result.status == "completed"]
    if (
        not texts
        or step_id in books.resolved_outputs
        or books.world.tables.steps[step_id].stored.task_id in books.erased
    ):
        return
    row = books.world.tables.stderr.get(step_id)
    kept = None if row is None or row.delivery != delivery else row.text
    if kept not in texts:
        books.fail(
            "R the standard error of a step's last run is kept", f"step {step_id}, delivery {delivery}: {kept!r}"
        )


def check_stderr(books: Books, step_id: int, delivery: int, text: str) -> None:
    """A stored text is the end of a text that a worker reported for this delivery."""
    texts = [_stderr(result) for result in books.reported.get((step_id, delivery), ())]
    if text not in texts or len(text.encode()) > STDERR_BYTES_MAX:
        books.fail("R a stored standard error was reported", f"step {step_id}, delivery {delivery}: {text[:99]!r}")


def _stderr(result: wire.Result) -> str | None:
    text = None if result.metadata is None else result.metadata.stderr
    return None if text is None else text.encode()[-STDERR_BYTES_MAX:].decode(errors="ignore")
