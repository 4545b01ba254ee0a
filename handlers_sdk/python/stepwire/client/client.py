"""The client: one class for programs, composed of groups of calls."""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from stepwire.errors import ConfigurationError

from . import destinations
from .addresses import URL_DEFAULT
from .broker import BrokerCalls
from .executors import ExecutorCalls
from .outages import OUTAGE_S, OnOutage, Outages
from .routing import RoutingCalls
from .steps import StepCalls
from .streams import StreamCalls
from .tasks import TaskCalls
from .tls_files import tls_files
from .transport import TIMEOUT_S, Transport
from .workflows import WorkflowCalls

TOKEN_FILE_DEFAULT: Final = ".stepwire/token"


class Client(TaskCalls, StepCalls, WorkflowCalls, ExecutorCalls, RoutingCalls, StreamCalls, BrokerCalls):
    """A client with one keep-alive connection. Threads may share the client; their calls then run one at a time.

    The address is the first of: `url`, $STEPWIRE_URL, the content of `.stepwire/url`, http://127.0.0.1:7410. An address
    `unix:PATH` is a Unix socket, where the broker's own user needs no token. `url` may name several brokers of one
    database, as a sequence or separated by commas: the client uses one of them until it fails, and then the next.

    The token is the first of: `token`, the content of `token_file`, $STEPWIRE_TOKEN, the content of
    $STEPWIRE_TOKEN_FILE, the content of `.stepwire/token`. A file is read again when its token is refused: a new broker
    has a new one.

    A token is sent over plain HTTP only within this machine, unless `allow_insecure` or $STEPWIRE_ALLOW_INSECURE says
    otherwise. A token from the environment is not sent to another machine whose address was only found in
    `.stepwire/url`. Both raise ConfigurationError.

    At an https:// address, the certificate must name the address and come from an authority of the system, or of the
    file `ca_file` or $STEPWIRE_CA_FILE. `cert_file` and `key_file`, or $STEPWIRE_CLIENT_CERT_FILE and
    $STEPWIRE_CLIENT_KEY_FILE, are the client's own certificate. A token goes first: with one, the broker ignores the
    certificate.

    `seal_keys_file`, by default $STEPWIRE_SEAL_KEYS_FILE, has the keys of sealed payloads.

    While the broker does not answer, as during a restart, each call waits for it for at most `outage_s`; default:
    $STEPWIRE_OUTAGE_S, or 30. `first_contact_s` is the same limit until the first connection was made;
    default: `outage_s`. A call that was sent is sent again only if that cannot repeat its effect. `on_outage` is called
    with a sentence and False when an outage begins, and with True when it is over; without it, the logger
    `stepwire.client` gets the sentences.
    """

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        *,
        token: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        timeout_s: float = TIMEOUT_S,
        outage_s: float | None = None,
        first_contact_s: float | None = None,
        on_outage: OnOutage | None = None,
        allow_insecure: bool = False,
        ca_file: str | os.PathLike[str] | None = None,
        cert_file: str | os.PathLike[str] | None = None,
        key_file: str | os.PathLike[str] | None = None,
        seal_keys_file: str | os.PathLike[str] | None = None,
    ) -> None:
        named_url = url or os.environ.get("STEPWIRE_URL")
        found_url = None if named_url else destinations.url_of_directory()
        url = named_url or found_url or URL_DEFAULT
        if found_url and token is None and token_file is None and _is_token_in_environment():
            destinations.check_found(found_url)
        outage_s = outage_seconds(os.environ.get("STEPWIRE_OUTAGE_S")) if outage_s is None else outage_s
        outages = Outages(outage_s, outage_s if first_contact_s is None else first_contact_s, on_outage)
        transport = Transport(
            url,
            lambda: _find_token(token, token_file),
            timeout_s,
            outages,
            is_insecure_allowed=allow_insecure,
            tls=tls_files(ca_file, cert_file, key_file),
        )
        super().__init__(transport)
        self._seal_keys_file = seal_keys_file

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._transport.close()


def outage_seconds(text: str | None) -> float:
    """Read the value of STEPWIRE_OUTAGE_S. Raises ConfigurationError."""
    if not text:
        return OUTAGE_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ConfigurationError(f"STEPWIRE_OUTAGE_S is {text!r}: it needs a number of seconds, 0 or more")
    return seconds


def _find_token(token: str | None, token_file: str | os.PathLike[str] | None) -> str | None:
    if token is not None:
        return token
    if token_file is None:
        if os.environ.get("STEPWIRE_TOKEN"):
            return os.environ["STEPWIRE_TOKEN"]
        token_file = os.environ.get("STEPWIRE_TOKEN_FILE")
    if not token_file:
        return destinations.read_found(TOKEN_FILE_DEFAULT)
    try:
        return Path(token_file).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the token file {os.fspath(token_file)!r} cannot be read: {error}") from None


def _is_token_in_environment() -> bool:
    return bool(os.environ.get("STEPWIRE_TOKEN") or os.environ.get("STEPWIRE_TOKEN_FILE"))
