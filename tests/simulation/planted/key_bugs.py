"""Bugs that shut workers out when the brokers' key is rotated, or that admit workers with an old key."""

from typing import Any, Final

from stepwire.session.endpoints import BrokerLinks
from stepwire_broker.bus.keys.server_key import BrokerKeys
from stepwire_broker.bus.served_keys import ServedKeys
from stepwire_protocol import limits

from .plant import Bug, Plant


def _not_announced(plant: Plant) -> None:
    async def serve(original: Any, self: ServedKeys, keys: BrokerKeys) -> None:
        self.announced = keys
        await original(self, keys)

    plant.method(ServedKeys, "serve", serve)


def _old_key_still_served(plant: Plant) -> None:
    async def serve(original: Any, self: ServedKeys, keys: BrokerKeys) -> None:
        self._served = BrokerKeys(keys.current, self._served.next)
        await original(self, keys)

    plant.method(ServedKeys, "serve", serve)


def _next_serves_the_current_key(plant: Plant) -> None:
    async def serve_next(original: Any, self: ServedKeys, keys: BrokerKeys) -> None:
        await original(self, BrokerKeys(keys.current))

    plant.method(ServedKeys, "_serve_next", serve_next)


def _welcome_lists_only_the_new_key(plant: Plant) -> None:
    plant.value(ServedKeys, "replaced", None)


def _not_followed(plant: Plant) -> None:
    def follow(original: Any, self: BrokerLinks, broker: str, keys: list[str], now_ms: float) -> None:
        self._keys[broker] = keys

    plant.method(BrokerLinks, "_follow_key", follow)


def _one_key_tried(plant: Plant) -> None:
    plant.method(BrokerLinks, "_next_key", lambda _, self, link, keys: keys[0])


def _second_key_tried_late(plant: Plant) -> None:
    plant.value(limits, "SERVER_KEY_RETRY_MS", limits.SOCKET_REBUILD_MS)


BUGS: Final = (
    Bug("keys: workers are not told the brokers' new key", _not_announced),
    Bug("keys: the brokers' old key is still served after its rotation", _old_key_still_served),
    Bug("keys: bus.next serves the current key", _next_serves_the_current_key),
    Bug(
        "keys: a worker that joins shortly before the new key learns only that key",
        _welcome_lists_only_the_new_key,
        True,
    ),
    Bug("keys: a worker does not follow the brokers' new key", _not_followed),
    Bug("keys: a silent worker tries only the first listed key", _one_key_tried),
    Bug("keys: a silent worker tries the second key too late", _second_key_tried_late),
)
