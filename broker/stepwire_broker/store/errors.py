"""The errors of a store that refuses to work. Every message names the fault and the remedy for the operator."""

from stepwire_broker.errors import BrokerError


class StoreRefused(BrokerError):
    """The database cannot be used as it is."""


class InUse(StoreRefused):
    """Another process has the right to write the database."""


class WouldReplace(StoreRefused):
    """A file of this name already exists."""


class NotThere(StoreRefused):
    """The database does not exist."""


class DatabaseAway(BrokerError):
    """The database did not answer, so nothing was read: the caller can repeat the query."""


class OrderNotStored(BrokerError):
    """An order for another broker was not stored. After any other error it may have been."""


class TaskIsGone(BrokerError):
    """The task had ended, and retention has removed it before its change was written."""
