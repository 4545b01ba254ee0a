"""The records that the demo's handlers write, independent of the broker: a ledger of runs, and the bank's book.

Each line is one write to a file that is opened for appending, so a killed process leaves complete lines. The level-0
programs write lines of the same form in their own languages.
"""

import os
import secrets
import time
from pathlib import Path
from typing import Final, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

T = TypeVar("T", bound=Struct)
Event: TypeAlias = Literal["started", "finished", "failed"]

LEDGERS: Final = "ledgers"
BANK: Final = "bank.jsonl"
BANK_IS_SLOW: Final = "bank-is-slow"  # the bank is slow while this file exists


class LedgerRun(Struct, frozen=True):
    """One event of one run of a handler."""

    at_ns: int
    event: Event
    task_id: int
    step_id: int
    step: str
    attempt: int
    language: str
    pid: int


class Booking(Struct, frozen=True):
    at_ns: int
    what: Literal["charge", "refund"]
    task_id: int
    key: str
    cents: int
    transaction: str
    pid: int


def write_run(event: Event, task_id: int, step_id: int, step: str, attempt: int) -> None:
    run = LedgerRun(time.time_ns(), event, task_id, step_id, step, attempt, "python", os.getpid())
    _append(f"{LEDGERS}/python-{run.pid}.jsonl", run)


def book(what: Literal["charge", "refund"], task_id: int, key: str, cents: int) -> str:
    """Book a charge or refund at a bank without idempotency: a second call books a second time."""
    transaction = f"txn_{secrets.token_hex(4)}"
    _append(BANK, Booking(time.time_ns(), what, task_id, key, cents, transaction, os.getpid()))
    return transaction


def read_runs(directory: Path) -> list[LedgerRun]:
    """The runs of all ledgers, in the order in which they happened."""
    files = sorted((directory / LEDGERS).glob("*.jsonl"))
    return sorted((run for file in files for run in _read(file, LedgerRun)), key=lambda run: run.at_ns)


def read_bank(directory: Path) -> list[Booking]:
    return _read(directory / BANK, Booking)


def _append(file: str, line: Struct) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, msgspec.json.encode(line) + b"\n")
    finally:
        os.close(descriptor)


def _read(file: Path, kind: type[T]) -> list[T]:
    try:
        whole, _, _ = file.read_bytes().rpartition(b"\n")  # the last line may be incomplete
    except FileNotFoundError:
        return []
    return msgspec.json.Decoder(kind).decode_lines(whole)
