"""The errors of the connection layer, each with the SQLSTATE that the server gave."""

from typing import Literal

from stepwire_broker.errors import BrokerError
from stepwire_broker.store.errors import DatabaseAway


class ConnectionLost(DatabaseAway):
    """The connection failed, or the server did not answer in time. The outcome of a COMMIT on the way is unknown."""


class StatementFailed(BrokerError):
    """The server refused a statement of a trip; the statements after it did not run."""

    def __init__(self, position: int, name: str, sqlstate: str, message: str, constraint: str | None) -> None:
        super().__init__(f"{message} ({sqlstate}, {name})")
        self.position = position  # in the trip
        self.name = name  # of the statement
        self.sqlstate = sqlstate
        self.message = message
        self.constraint = constraint


class CommitUnconfirmed(BrokerError):
    """The COMMIT is durable here, but the wait for the synchronous standby was cancelled: it may be lost there."""


class FenceRaised(BrokerError):
    """The fence of a group refused the group: see fence.py for what each verdict means."""

    def __init__(self, verdict: Literal["lane_lost", "commits_lost", "end_misread"], error: str) -> None:
        super().__init__(error)
        self.verdict = verdict


class NotYet(BrokerError):
    """The group cannot be written at this moment, and nothing is wrong with it."""
