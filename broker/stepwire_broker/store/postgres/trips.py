"""The connection of a lane's writer, and the statements that are collected for its next trip."""

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Final

from .connecting import Pauses
from .failures import ConnectionLost, StatementFailed
from .pipeline import Pipeline, Row, Statement, StatementCall, StatementReply, Value


class Trips:
    """`connect` opens a connection and raises ConnectionLost. A lost connection is opened again by the next trip, after
    a pause that grows with each failure."""

    def __init__(self, connect: Callable[[], Pipeline]) -> None:
        self._connect = connect
        self._pipeline: Pipeline | None = None
        self._pauses = Pauses()
        self._connect_from_s = 0.0
        self._loss: ConnectionLost | None = None
        self.calls: list[StatementCall] = []  # collected, not sent

    def ask(self, statement: Statement, *values: Value) -> list[Row]:
        """Send what was collected and this statement, and return its rows."""
        return self.send(StatementCall(statement, values))[-1].rows

    def change(self, statement: Statement, *values: Value) -> int:
        """Send what was collected and this statement, and return the number of rows that it changed."""
        return self.send(StatementCall(statement, values))[-1].changed

    def later(self, statement: Statement, *values: Value) -> None:
        """Collect a statement whose answer decides nothing."""
        self.calls.append(StatementCall(statement, values))

    def send(self, *more: StatementCall) -> list[StatementReply]:
        """Send what was collected and these statements. Raises ConnectionLost, StatementFailed, CommitUnconfirmed."""
        calls, self.calls = [*self.calls, *more], []
        return self.run(calls) if calls else []

    def run(self, calls: Sequence[StatementCall]) -> list[StatementReply]:
        pipeline = self.connected()
        try:
            return pipeline.run(calls)
        except ConnectionLost:
            self.drop()
            raise

    def roll_back(self) -> None:
        """Forget what was collected, and end an open transaction in any state. Never raises."""
        self.calls = []
        if self._pipeline is not None and not self._pipeline.roll_back():
            self.drop()

    def end_namesakes(self) -> None:
        """End the other connections under the name of this one. A former connection of this writer may be open on the
        server for hours, with its locks, if nothing tells the server that this broker has given it up."""
        self.roll_back()
        with contextlib.suppress(ConnectionLost, StatementFailed):
            self.run([_END_NAMESAKES])

    def connected(self) -> Pipeline:
        if self._pipeline is None:
            if self._loss is not None and time.monotonic() < self._connect_from_s:
                raise self._loss
            try:
                self._pipeline = self._connect()
            except ConnectionLost as error:
                self._loss = error
                self._connect_from_s = time.monotonic() + self._pauses.next_s()
                raise
            self._loss = None
            self._pauses.reset()
        return self._pipeline

    def drop(self) -> None:
        if self._pipeline is not None:
            self._pipeline.close()
            self._pipeline = None


_END_NAMESAKES: Final = StatementCall(
    Statement(
        "end_namesakes",
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
        "AND application_name = current_setting('application_name') AND usename = current_user",
    )
)
