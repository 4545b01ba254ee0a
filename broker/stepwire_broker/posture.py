"""The posture of a running broker: what it leaves open to other users or hosts.

The start line, `/readyz`, the metrics and `stepwire doctor` show it.
"""

from typing import TYPE_CHECKING, Final

from .core.definitions.settings import HttpSettings, Settings

if TYPE_CHECKING:
    from .bus.sockets import Bound

NAMED_MAX: Final = 3  # programs that a sentence names

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
        "http_network": settings.http.allow_insecure and not has_tls(settings.http),
        "client_files": bool(client_faults),
    }
    return [what for what in INSECURE if applies[what]]


def has_tls(http: HttpSettings) -> bool:
    """Whether the broker itself encrypts the connections to `http.listen`."""
    return http.tls.is_on


def open_http(http: HttpSettings) -> str | None:
    """The sentence with which `security.strict` refuses these settings; None if it accepts them."""
    if http.listen is None or has_tls(http):
        return None
    return (
        f"http.listen is {http.listen!r}: security.strict refuses tcp without TLS, also on the loopback; set "
        "http.tls.cert_file and http.tls.key_file, or http.listen: null, so that only the Unix socket "
        f"{http.socket} is served"
    )


def programs_in_broker(settings: Settings) -> str | None:
    """The sentence with which `security.strict` refuses the programs of the executor `exec`; None without programs."""
    names = list(settings.executors.exec.commands)
    if not names:
        return None
    return (
        f"executors.exec.commands has programs ({', '.join(names[:NAMED_MAX])}{', …' if names[NAMED_MAX:] else ''}), "
        "which would run as the broker's user: security.strict refuses that; move the commands to a file of their own, "
        "and run them under another user: stepwire exec-worker -c FILE"
    )
