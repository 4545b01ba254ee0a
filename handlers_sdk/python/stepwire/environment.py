"""The environment variables STEPWIRE_*, and checks of endpoints, because libzmq reports only an error number."""

import os
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from stepwire_protocol import limits

from . import curve, sealing, secret_values
from .actions import Link
from .errors import ConfigurationError

STEPS_DEFAULT: Final = "ipc://.stepwire/steps.sock"
RESULTS_DEFAULT: Final = "ipc://.stepwire/results.sock"
SLOTS_DEFAULT: Final = 10
SLOTS_MAX: Final = 10_000
IPC_PATH_BYTES_MAX: Final = 107
PORT_MAX: Final = 65_535

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,48}")
_LABEL: Final = re.compile(r"[^=,]{1,128}")
_ADDRESS: Final = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(?::(.*))?")


class Environment(NamedTuple):
    """The settings of a worker that the environment can hold."""

    steps: list[str]
    results: list[str]
    name: str | None
    slots: int
    labels: dict[str, str]
    handler_version: str
    curve_server_key: str | None
    curve_public_key: str | None
    curve_secret_key: str | None
    secrets: str | None
    seal_keys_file: str | None


def read(environ: Mapping[str, str] = os.environ) -> Environment:
    """Read STEPWIRE_STEPS, _RESULTS, _NAME, _SLOTS, _LABELS, _HANDLER_VERSION, _CURVE_*, _SECRETS_DIR and
    _SEAL_KEYS_FILE.
    Raises ConfigurationError."""
    return Environment(
        _list(environ.get("STEPWIRE_STEPS") or STEPS_DEFAULT),
        _list(environ.get("STEPWIRE_RESULTS") or RESULTS_DEFAULT),
        environ.get("STEPWIRE_NAME") or None,
        _slots(environ.get("STEPWIRE_SLOTS") or str(SLOTS_DEFAULT)),
        _labels(environ.get("STEPWIRE_LABELS") or ""),
        environ.get("STEPWIRE_HANDLER_VERSION") or "",
        *curve.read(environ),
        environ.get(secret_values.DIRECTORY) or None,
        environ.get(sealing.FILE) or None,
    )


def links(steps: list[str], results: list[str], has_context: bool) -> tuple[Link, ...]:
    """The endpoints in pairs, one pair for each broker. Raises ConfigurationError."""
    if not steps or len(steps) != len(results):
        raise ConfigurationError(
            f"{len(steps)} endpoints for steps and {len(results)} for results: each broker needs one of each, "
            "in the same order (STEPWIRE_STEPS, STEPWIRE_RESULTS; separate several with commas)"
        )
    for kind, endpoints in (("steps", steps), ("results", results)):
        for endpoint in endpoints:
            _check_endpoint(kind, endpoint, has_context)
    return tuple(Link(s, r) for s, r in zip(steps, results, strict=True))


def check_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ConfigurationError(f"worker name {name!r}: it needs 1 to 48 of letters, digits, . _ - (STEPWIRE_NAME)")
    return name


def check_slots(slots: int) -> int:
    if not 1 <= slots <= SLOTS_MAX:
        raise ConfigurationError(f"slots is {slots}: it needs to be 1 to {SLOTS_MAX} (STEPWIRE_SLOTS)")
    return slots


def check_handler_version(version: str) -> str:
    if len(version) > limits.HANDLER_VERSION_MAX:
        raise ConfigurationError(
            f"handler_version has {len(version)} characters: it needs at most {limits.HANDLER_VERSION_MAX}"
            " (STEPWIRE_HANDLER_VERSION)"
        )
    return version


def _check_endpoint(kind: str, endpoint: str, has_context: bool) -> None:
    subject = f"the {kind} endpoint {endpoint!r}"
    scheme, separator, rest = endpoint.partition("://")
    if not separator or not rest:
        raise ConfigurationError(f"{subject} needs a form like tcp://127.0.0.1:7411 or ipc://.stepwire/{kind}.sock")
    if scheme == "tcp":
        _check_address(subject, rest)
    elif scheme == "ipc":
        size = len(os.fsencode(rest))
        if size > IPC_PATH_BYTES_MAX:
            raise ConfigurationError(
                f"{subject}: the path has {size} bytes, and the system allows {IPC_PATH_BYTES_MAX}: use a relative path"
            )
    elif scheme == "inproc":
        if not has_context:
            raise ConfigurationError(
                f"{subject} reaches only a broker in this process: pass its context, Worker(context=...), or use ipc://"
            )
    else:
        raise ConfigurationError(f"{subject}: {scheme}:// is not supported; use tcp://, ipc:// or inproc://")


def _check_address(subject: str, address: str) -> None:
    parts = _ADDRESS.fullmatch(address)
    host, port = parts.groups() if parts else ("", None)
    if port in (None, "", "0"):
        raise ConfigurationError(f"{subject} has no port: it needs a form like tcp://127.0.0.1:7411")
    if not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > PORT_MAX:
        raise ConfigurationError(f"{subject}: the port {port!r} needs to be 1 to {PORT_MAX}")
    if host in ("", "*", "[]"):
        raise ConfigurationError(f"{subject} names no host: a worker connects, and only a broker may bind to *")


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _slots(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,6}", text):
        raise ConfigurationError(f"STEPWIRE_SLOTS is {text!r}: it needs a whole number, 1 to {SLOTS_MAX}")
    return check_slots(int(text))


def _labels(text: str) -> dict[str, str]:
    labels = {}
    for part in _list(text):
        key, separator, value = part.partition("=")
        if not separator or not _LABEL.fullmatch(key.strip()):
            raise ConfigurationError(f"STEPWIRE_LABELS has {part!r}: it needs a form like region=eu,gpu=true")
        labels[key.strip()] = value.strip()
    return labels
