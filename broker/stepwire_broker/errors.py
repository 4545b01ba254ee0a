"""The base of the broker's exceptions. docs/reference/errors.md draws the tree."""

from stepwire_protocol.errors import StepwireError


class BrokerError(StepwireError):
    """Base of every exception that the broker's code defines."""
