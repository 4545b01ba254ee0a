"""What the store says when it will not open: whose fault it is, and what to do."""


class StoreRefused(Exception):
    """The database cannot be used as it is. The message is for the operator."""
