"""Why a store refuses to work: whose fault it is, and what to do. Every message is for the operator."""

from stepwire_broker.errors import BrokerError


class StoreRefused(BrokerError):
    """The database cannot be used as it is."""


class InUse(StoreRefused):
    """Another process has the right to write the database."""


class WouldReplace(StoreRefused):
    """A file of this name already exists."""


class NotThere(StoreRefused):
    """There is no such database."""
