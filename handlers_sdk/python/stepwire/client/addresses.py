"""The addresses of the brokers that a client may use: of one, or of several on one database."""

import os
from collections.abc import Sequence
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit

from stepwire.errors import ConfigurationError

URL_DEFAULT: Final = "http://127.0.0.1:7410"
SEPARATOR: Final = ","


class BrokerAddress(NamedTuple):
    """One broker's address. `prefix` is the part of the path before `/v1`."""

    url: str
    host: str
    port: int | None
    prefix: str
    socket_path: str | None  # a Unix socket is used instead of `host` and `port`
    is_tls: bool


def addresses_of(urls: str | Sequence[str]) -> tuple[BrokerAddress, ...]:
    """Parse one URL, several URLs separated by commas, or a sequence of URLs. Raises ConfigurationError."""
    texts = urls.split(SEPARATOR) if isinstance(urls, str) else list(urls)
    found = tuple(address_of(text.strip()) for text in texts)
    if not found:
        raise ConfigurationError(f"url {urls!r}: it needs at least one address like {URL_DEFAULT}")
    return found


def address_of(url: str) -> BrokerAddress:
    """Parse one URL. Raises ConfigurationError."""
    parts = urlsplit(url)
    if parts.scheme == "unix":
        if not parts.path or parts.netloc:
            raise ConfigurationError(f"url {url!r}: it needs a form like unix:/srv/shop/.stepwire/http.sock")
        return BrokerAddress(url, "localhost", None, "", os.path.abspath(unquote(parts.path)), is_tls=False)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError(f"url {url!r}: it needs a form like {URL_DEFAULT}")
    return BrokerAddress(url, parts.hostname, parts.port, parts.path.rstrip("/"), None, parts.scheme == "https")
