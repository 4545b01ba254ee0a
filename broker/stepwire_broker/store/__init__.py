"""The database: the lane that writes, the port for databases, and the adapters. The core makes all decisions."""

from stepwire_broker.core.definitions.stored_rows import Opened

from .errors import StoreRefused
from .lane import Faults
from .store import Store, check_server, check_settings, open_store

__all__ = ["Faults", "Opened", "Store", "StoreRefused", "check_server", "check_settings", "open_store"]
