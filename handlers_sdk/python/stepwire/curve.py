"""The CURVE keys of a worker: from arguments, environment variables or a file, all three or none.

No error names a key: it could be the secret one.
"""

import os
import re
import stat
from collections.abc import Mapping
from typing import Final, NamedTuple

from stepwire_protocol import topics

from .errors import ConfigurationError

SERVER_KEY: Final = "STEPWIRE_CURVE_SERVER_KEY"
PUBLIC_KEY: Final = "STEPWIRE_CURVE_PUBLIC_KEY"
SECRET_KEY: Final = "STEPWIRE_CURVE_SECRET_KEY"
FILE: Final = "STEPWIRE_CURVE_FILE"
NAMES: Final = (SERVER_KEY, PUBLIC_KEY, SECRET_KEY)
FILE_BYTES_MAX: Final = 64 * 1024

_KEY: Final = re.compile(topics.CURVE_KEY_PATTERN)
_LINE: Final = re.compile(r"""(?:export\s+)?(\w+)\s*=\s*(?:'([^']*)'|"([^"]*)"|(\S*))""")


class CurveKeys(NamedTuple):
    """The brokers' public key, and the key pair of this worker. Z85, 40 characters each."""

    server: str
    public: str
    secret: str


def read(environ: Mapping[str, str]) -> tuple[str | None, str | None, str | None]:
    """The keys from the environment, and from the file that STEPWIRE_CURVE_FILE names. A variable wins over the file.
    Raises ConfigurationError."""
    path = environ.get(FILE)
    in_file = _of_file(path) if path else {}
    server, public, secret = (environ.get(name) or in_file.get(name) or None for name in NAMES)
    return server, public, secret


def keys(server: str | None, public: str | None, secret: str | None) -> CurveKeys | None:
    """The keys, checked; None if there are none. Raises ConfigurationError, also if only some of them are there."""
    given = (server, public, secret)
    if not any(given):
        return None
    for name, key in zip(NAMES, given, strict=True):
        if not key:
            raise ConfigurationError(
                f"{name} is missing: CURVE needs {', '.join(NAMES[:2])} and {NAMES[2]}, as variables or in the file"
                f" that {FILE} names"
            )
        if not _KEY.fullmatch(key):
            raise ConfigurationError(f"{name} is no key: it needs 40 characters of Z85, and has {len(key)} characters")
    checked = CurveKeys(*map(str, given))
    _check_pair(checked.public, checked.secret)
    return checked


def _check_pair(public: str, secret: str) -> None:
    import zmq

    if not zmq.has("curve"):
        raise ConfigurationError(f"{SECRET_KEY} is set, but this libzmq has no CURVE: install pyzmq from PyPI")
    if zmq.curve_public(secret.encode()) != public.encode():
        raise ConfigurationError(f"{PUBLIC_KEY} does not belong to {SECRET_KEY}: take both from one key pair")


def _of_file(path: str) -> dict[str, str]:
    """The lines NAME='value' of a key file. Other lines are ignored."""
    try:
        with open(path, encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            if stat.S_ISREG(mode) and mode & 0o077:
                raise ConfigurationError(
                    f"{FILE} is {path!r}: its group or others may use this file, and it holds a secret key:"
                    f" chmod 600 {path}"
                )
            text = file.read(FILE_BYTES_MAX)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigurationError(f"{FILE} is {path!r}: it cannot be read: {reason}") from None
    found = (_LINE.fullmatch(line.strip()) for line in text.splitlines())
    return {line[1]: line[2] or line[3] or line[4] or "" for line in found if line and line[1] in NAMES}
