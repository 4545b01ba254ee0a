"""Classify errors of PostgreSQL and of its driver: bad data, temporary trouble, or a broken database.

A temporary trouble includes every lost connection: the same group is then repeated, and the fence notices a group that
was committed although its answer was lost.
"""

from typing import Final

from stepwire_broker.core.model.commit_group import StallCode
from stepwire_broker.errors import BrokerError
from stepwire_broker.store.errors import TaskIsGone
from stepwire_broker.store.lane import Trouble

from .failures import CommitUnconfirmed, ConnectionLost, NotYet, StatementFailed

# By SQLSTATE, or by its class: the first two characters. The whole code is looked up first.
PASSING: Final[dict[str, StallCode]] = {
    "08": "database_unavailable",  # connection exceptions
    "53": "database_unavailable",  # insufficient resources: memory, connections
    "53100": "disk_full",
    "57014": "database_locked",  # a statement was cancelled, by an operator or by a time limit
    "57P01": "database_unavailable",  # the connection was ended by an administrator
    "57P02": "database_unavailable",  # the server crashed
    "57P03": "database_unavailable",  # the server is starting or stopping
    "57P05": "database_unavailable",  # the session was idle for too long
    "25P03": "database_locked",  # the transaction was idle for too long: the broker was suspended
    "25006": "database_read_only",
    "40001": "database_locked",
    "40P01": "database_locked",
    "55P03": "database_locked",
}
DATA: Final = frozenset({"22", "23", "54"})


def trouble_of(error: Exception) -> Trouble:
    """Classify an error for the lane. An error that is not listed here is a fault of this program, of the schema or of
    the disk. Such an error stops the lane, because it would recur and no data is at fault."""
    text = str(error) if isinstance(error, BrokerError) else f"{type(error).__name__}: {error}"
    if isinstance(error, ConnectionLost | CommitUnconfirmed):
        return Trouble("passing", "database_unavailable", text)
    if isinstance(error, NotYet):
        return Trouble("passing", "database_locked", text)
    if isinstance(error, UnicodeError | OverflowError | TaskIsGone):
        return Trouble("data", None, text)  # a value that has no form in JSON or in UTF-8
    if not isinstance(error, StatementFailed):
        return Trouble("broken", None, text)
    code = error.sqlstate
    passing = PASSING.get(code) or PASSING.get(code[:2])
    if passing is not None:
        return Trouble("passing", passing, text)
    return Trouble("data" if code[:2] in DATA else "broken", None, text)
