"""The posture of a running broker: what it leaves open to other users or hosts.

The start line, `/readyz`, the metrics and `stepwire doctor` show it.
"""

from typing import TYPE_CHECKING, Final

from .core.definitions.settings import Settings

if TYPE_CHECKING:
    from .bus.sockets import Bound

INSECURE: Final[dict[str, str]] = {
    "bus_loopback": "every user of this host can read steps and send results over tcp without a key",
    "bus_network": "every host on the network can read steps and send results over tcp without a key",
    "http_network": "tokens may travel unencrypted over the network",
    "client_files": "a file of bus.curve.clients_dir is invalid, so its principal keeps its former rights",
}


def of(settings: Settings, listeners: "tuple[Bound, ...]", client_faults: tuple[str, ...]) -> list[str]:
    """Return the codes that apply, in the order of INSECURE."""
    open_endpoints = [endpoint for pair in listeners for endpoint in pair.endpoints if endpoint.is_open]
    applies = {
        "bus_loopback": any(endpoint.is_loopback for endpoint in open_endpoints),
        "bus_network": any(not endpoint.is_loopback for endpoint in open_endpoints),
        "http_network": settings.http.allow_insecure and not settings.http.tls.is_on,
        "client_files": bool(client_faults),
    }
    return [what for what in INSECURE if applies[what]]
