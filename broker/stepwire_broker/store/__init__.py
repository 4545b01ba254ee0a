"""The database: the lane that writes, the port behind which a database is, and its adapters. Nothing here decides."""

from .errors import StoreRefused
from .lane import Faults
from .ports import Opened
from .store import Store, open_store

__all__ = ["Faults", "Opened", "Store", "StoreRefused", "open_store"]
