"""Why no broker answers at an endpoint: ZeroMQ reports nothing, so this module looks itself."""

import errno
import os
import socket
import stat
from typing import Final

from stepwire.actions import Link

from .events import key_of

CONNECT_S: Final = 1.0
ELSEWHERE: Final = "set STEPWIRE_STEPS and STEPWIRE_RESULTS to what `stepwire serve` prints"


def shown(endpoint: str) -> str:
    """The endpoint with an absolute path."""
    path = _path_of(endpoint)
    return endpoint if path is None else f"ipc://{os.path.abspath(path)}"


def diagnosis(link: Link, public_key: str | None = None) -> tuple[str, str]:
    """The endpoint at fault, and why no broker answers there. Waits at most CONNECT_S for each connection."""
    for endpoint in link:
        fault = _fault(endpoint)
        if fault is not None:
            return shown(endpoint), fault
    keys = "A broker with CURVE needs keys, STEPWIRE_CURVE_FILE"
    if public_key is not None:
        keys = f"Check also the three CURVE keys: {key_of(public_key)}, and its log for the code (connection_refused)"
    return shown(link.steps), (
        "a process accepts connections there, but does not answer as a broker. Check that STEPWIRE_STEPS and"
        " STEPWIRE_RESULTS name the broker's `bus.steps` and `bus.results`, in this order, and not its HTTP address."
        f" {keys}"
    )


def _path_of(endpoint: str) -> str | None:
    """The path of an ipc endpoint; None for other transports and for abstract names."""
    scheme, _, rest = endpoint.partition("://")
    return rest if scheme == "ipc" and not rest.startswith("@") else None


def _fault(endpoint: str) -> str | None:
    scheme, _, rest = endpoint.partition("://")
    path = _path_of(endpoint)
    if path is not None:
        return _fault_of_path(path)
    if scheme == "tcp":
        host, _, port = rest.rpartition(":")
        return _fault_of_address(host.strip("[]"), int(port))
    return None


def _fault_of_path(path: str) -> str | None:
    try:
        mode = os.stat(path).st_mode
    except PermissionError:
        return "this user may not read the directory"
    except OSError:
        if os.path.isabs(path):
            return f"there is no such socket. Start the broker, or {ELSEWHERE}"
        return (
            "there is no such socket. The path is relative to this directory:"
            f" start the worker where the broker runs, or {ELSEWHERE}"
        )
    if not stat.S_ISSOCK(mode):
        return f"this is not a socket. Remove it, or {ELSEWHERE}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(CONNECT_S)
        try:
            probe.connect(path)
        except PermissionError:
            return "this user may not connect to the socket: run worker and broker as the same user"
        except OSError:
            return "the socket exists, but no process listens there. Start the broker"
    return None


def _fault_of_address(host: str, port: int) -> str | None:
    try:
        socket.create_connection((host, port), timeout=CONNECT_S).close()
    except socket.gaierror:
        return f"the host name {host!r} cannot be resolved: check its spelling, and the name service of this machine"
    except TimeoutError:
        return "no answer: the host is down, or a firewall drops the connection"
    except OSError as error:
        if error.errno == errno.ECONNREFUSED:
            return f"no process listens on port {port}. Start the broker with this endpoint, or {ELSEWHERE}"
        return f"{error.strerror or error}"
    return None
