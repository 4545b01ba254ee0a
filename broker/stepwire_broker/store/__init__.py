"""The adapter for SQL: the schema, the lane that writes, the queries that read. Nothing here decides anything."""

from .errors import StoreRefused
from .lane import Faults
from .store import Opened, Store

__all__ = ["Faults", "Opened", "Store", "StoreRefused"]
