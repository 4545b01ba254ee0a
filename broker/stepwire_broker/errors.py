"""The base of the broker's exceptions. docs/reference/errors.md draws the tree."""


class BrokerError(Exception):
    """Base of every exception that the broker's code defines."""
