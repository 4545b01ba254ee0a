"""Where a token may be sent: not over plain HTTP beyond this machine, and not to an address that was merely found."""

import ipaddress
import os
import stat
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from stepwire.errors import ConfigurationError

ALLOW_INSECURE: Final = "STEPWIRE_ALLOW_INSECURE"
URL_FILE: Final = ".stepwire/url"  # a broker writes it when it starts
_ROOT: Final = 0


def url_of_directory() -> str | None:
    """The address of the broker that was started last in the current directory, or None. Raises ConfigurationError if
    another user may have written it."""
    return read_found(URL_FILE) or None


def read_found(name: str) -> str | None:
    """The text of a file in the state directory `.stepwire`, or None if it does not exist. The user has not named this
    file: raises ConfigurationError if another user may have written it, or if it leads to another file."""
    path = Path(name)
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, encoding="ascii") as file:
            statuses = (os.fstat(descriptor), path.parent.stat())
            text = file.read().strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path.absolute()} cannot be read: {error}") from None
    if all(map(_is_ours, statuses)):
        return text
    raise ConfigurationError(
        f"{path.absolute()} could have been written by another user, who must not choose what is sent where: run this "
        "as the broker's user, or name the broker and its token (STEPWIRE_URL, STEPWIRE_TOKEN_FILE)"
    )


def _is_ours(status: os.stat_result) -> bool:
    return status.st_uid in (os.geteuid(), _ROOT) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def check_found(url: str) -> None:
    """Refuse to send a token from the environment to this address from the working directory, unless it is on this
    machine. Raises ConfigurationError."""
    if not is_this_machine(url):
        raise ConfigurationError(found_text(url, URL_FILE))


def found_text(url: str, origin: str) -> str:
    """Why a token from the environment is not sent to an address that was found in a file."""
    return (
        f"the token from the environment is not sent to {url}: that address was only found in {origin} in the working "
        f"directory. If the broker there is yours, name it: --url {url}, or STEPWIRE_URL={url}"
    )


def check_transport(url: str, *, is_insecure_allowed: bool = False) -> None:
    """Refuse to send a token to this address if others can read it on the way. Raises ConfigurationError."""
    if urlsplit(url).scheme != "http" or is_this_machine(url) or is_insecure_allowed or _is_allowed():
        return
    raise ConfigurationError(
        f"the token is not sent to {url}: plain HTTP beyond this machine shows it to the network. Use an https:// "
        f"address or a tunnel (ssh -L); on a network that you trust, set {ALLOW_INSECURE}=true"
    )


def is_this_machine(url: str) -> bool:
    """Whether connections to the address stay on this machine."""
    host = (urlsplit(url).hostname or "").partition("%")[0]
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified  # a connection to 0.0.0.0 goes to the loopback


def _is_allowed() -> bool:
    text = os.environ.get(ALLOW_INSECURE, "").lower()
    if text in ("", "0", "false", "1", "true"):
        return text in ("1", "true")
    raise ConfigurationError(f"{ALLOW_INSECURE} is {text!r}: it needs to be true or false")
