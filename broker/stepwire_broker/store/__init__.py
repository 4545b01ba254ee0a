"""The database: the lane that writes, the port for databases, and the adapters. The core makes all decisions."""

from stepwire_broker.core.definitions.stored_rows import Opened

from .errors import StoreRefused
from .lane import Faults
from .store import Store, open_store

__all__ = ["Faults", "Opened", "Store", "StoreRefused", "open_store"]
