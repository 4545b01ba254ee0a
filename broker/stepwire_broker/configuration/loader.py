"""Loads the configuration, and records where each value comes from.

A value comes from the first of these that sets it: flag, `STEPWIRE_SECTION__KEY`, `STEPWIRE_SECTION__KEY_FILE` (a file
that holds the value), `DATABASE_URL` for the database, the configuration file, the default. All of them accept a key
`…_ms` with a whole number of milliseconds, or the key without the suffix with a duration (`lease: 10s`). Relative
paths, also in values, are relative to the current directory, as are the defaults under `.stepwire/`.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import GenericAlias
from typing import Any, Final, NamedTuple, get_type_hints

import msgspec
from msgspec import Struct
from stepwire_protocol.decode_errors import fault_of

from stepwire_broker.core.definitions.fields import NAMESPACE_CHARACTERS_MAX, namespace
from stepwire_broker.core.definitions.settings import OneOrMore, QuotaSettings, Settings, listed
from stepwire_broker.core.reading import durations
from stepwire_broker.core.reading.nearest import did_you_mean, echoed
from stepwire_broker.errors import BrokerError
from stepwire_broker.file_owners import OTHERS_WRITE, is_inside, strange_owner

from . import hidden, misspelt_names, seed_block
from .hidden import without_password

FILE_NAME: Final = "stepwire.yaml"
FILE_BYTES_MAX: Final = 256 * 1024
PREFIX: Final = "STEPWIRE_"
DEFAULT: Final = "default"
HEARTBEATS_MIN: Final = 2  # in the time of a lease
HEARTBEATS_GOOD: Final = 5


class SettingsError(BrokerError):
    """A setting is wrong. The message names the key, its origin, and the form that it needs; `hint`, a command."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Given(NamedTuple):
    """A value before its conversion to the setting's type. `is_text`: the value is a string that may hold a number."""

    key: str
    value: Any
    origin: str
    is_text: bool


class Configuration(NamedTuple):
    settings: Settings
    origins: dict[str, str]  # of every key
    file: Path | None
    notes: tuple[str, ...] = ()  # for the operator: accepted values that are probably mistakes
    is_named: bool = False  # True: the user has named the file

    def is_from_here(self, key: str) -> bool:
        """Whether the value comes from a file that was found in the working directory. A checkout or an archive may
        have brought such a file, without the user's knowledge."""
        return self.file == Path(FILE_NAME) and not self.is_named and self.origins[key] == str(self.file)


def load(config_file: str | None, flags: Mapping[str, str], environ: Mapping[str, str]) -> Configuration:
    """Load the settings and the origin of each. Raises SettingsError."""
    file = find_file(config_file, environ)
    notes: list[str] = []
    layers = [_of_flags(flags), _of_environment(environ), _of_file(file, notes) if file else []]
    values: dict[str, Any] = {}
    origins = dict.fromkeys(KEYS, DEFAULT)
    for layer in reversed(layers):
        in_layer: dict[str, Given] = {}
        for given in layer:
            key, value = _typed(given)
            if key in in_layer and _is_shared(given) == _is_shared(in_layer[key]):
                raise SettingsError(_set_twice(in_layer[key], given))
            in_layer[key] = given
            values[key] = value
            origins[key] = given.origin
    settings = _settings(values)
    _check_heartbeat(settings, origins)
    _check_quotas(settings, origins)
    notes += [*_environment_notes(environ), *_inproc_notes(settings), *_heartbeat_notes(settings)]
    notes += _quota_notes(settings)
    configuration = Configuration(
        settings, origins, file, tuple(notes), is_named=_named(config_file, environ) is not None
    )
    _check_tokens_file(configuration)
    return configuration


def find_file(config_file: str | None, environ: Mapping[str, str]) -> Path | None:
    """Find the configuration file: `--config`, `$STEPWIRE_CONFIG`, in the current directory, the user's, the system's.
    The first one that exists is used. Raises SettingsError if a named file does not exist."""
    named = _named(config_file, environ)
    if named:
        path = Path(named)
        if not path.is_file():
            origin = "--config" if config_file else "STEPWIRE_CONFIG"
            text = f"{origin} names {named}, which is not a file"
            raise SettingsError(text, f"a file with every setting: stepwire config init {named}")
        return path
    home = environ.get("XDG_CONFIG_HOME") or (f"{environ['HOME']}/.config" if environ.get("HOME") else None)
    places = [Path(FILE_NAME), *([Path(home, "stepwire", FILE_NAME)] if home else []), Path("/etc/stepwire", FILE_NAME)]
    return next((path for path in places if path.is_file()), None)


def _named(config_file: str | None, environ: Mapping[str, str]) -> str | None:
    return config_file or environ.get("STEPWIRE_CONFIG") or None


def show(configuration: Configuration) -> list[tuple[str, Any, str]]:
    """(key, value, origin) of every setting, without secrets."""
    shown = []
    for key in KEYS:
        value = value_of(configuration.settings, key)
        if isinstance(value, tuple):
            value = list(value)
        elif key == _COMMANDS:
            value = {name: hidden.without_secrets(command) for name, command in value.items()}
        elif key == _NAMESPACES:
            value = {name: _limits_of(quota) for name, quota in value.items()}
        elif key == _OPTIONS:
            value = {executor: dict.fromkeys(options, hidden.HIDDEN) for executor, options in value.items()}
        elif isinstance(value, str):
            value = without_password(value)
        shown.append((key, value, configuration.origins[key]))
    return shown


def _limits_of(quota: QuotaSettings) -> dict[str, int]:
    return {name: value for name, value in msgspec.structs.asdict(quota).items() if value is not None}


def value_of(settings: Settings, key: str) -> Any:
    value: Any = settings
    for name in key.split("."):
        value = getattr(value, name)
    return value


def shown_without_password(text: str, url: str) -> str:
    """A message that contains the database URL, with the password removed."""
    return text.replace(url, without_password(url))


def _keys(struct: type[Struct], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, kind in get_type_hints(struct, include_extras=True).items():
        if isinstance(kind, type) and issubclass(kind, Struct):
            yield from _keys(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", kind


KEYS: Final[dict[str, Any]] = dict(_keys(Settings))  # dotted key → type
_DURATIONS: Final = {key.removesuffix("_ms"): key for key in KEYS if key.endswith("_ms")}
_SECTIONS: Final = {key.rpartition(".")[0] for key in KEYS} | {key.split(".")[0] for key in KEYS if "." in key}
_OTHER_SPELLINGS: Final = {
    "defaultExecutionMode": "execution.default_execution_mode",
    "execution.defaultExecutionMode": "execution.default_execution_mode",
}
_COMMANDS: Final = "executors.exec.commands"
_OPTIONS: Final = "executors.options"
_NAMESPACES: Final = "limits.namespaces"
_URLS: Final = frozenset({"database.url", "database.listen_url"})  # may hold a password


def _of_flags(flags: Mapping[str, str]) -> list[Given]:
    return [Given(key, value, f"--set {key}", True) for key, value in flags.items()]


def _of_environment(environ: Mapping[str, str]) -> list[Given]:
    """The settings in the environment: names with a double underscore, and top-level keys. Clients and workers use
    other STEPWIRE_ variables."""
    given = []
    if environ.get("DATABASE_URL"):
        given.append(Given("database.url", environ["DATABASE_URL"], "DATABASE_URL", True))
    for name in sorted(environ):
        if not name.startswith(PREFIX):
            continue
        key = _key_of(name)
        if _is_ignored(key):
            continue
        text = environ[name]
        if key.endswith("_file") and not _is_known(key):
            key = key.removesuffix("_file")
            if name.removesuffix("_FILE") in environ:
                raise SettingsError(f"{name.removesuffix('_FILE')} and {name} are the same setting: keep one")
            text = _read_value(name, text) if _is_known(key) else ""
        given.append(Given(key, text, name, True))
    return given


def _key_of(variable: str) -> str:
    return variable.removeprefix(PREFIX).lower().replace("__", ".")


def _is_ignored(key: str) -> bool:
    return "." not in key and not _is_known(key) and not _is_known(key.removesuffix("_file"))


def _environment_notes(environ: Mapping[str, str]) -> Iterator[str]:
    ignored = sorted(name for name in environ if name.startswith(PREFIX) and _is_ignored(_key_of(name)))
    settings = [key.upper().replace(".", "__") for key in (*KEYS, *_DURATIONS)]
    return misspelt_names.notes(ignored, settings, PREFIX)


def _of_file(path: Path, notes: list[str]) -> list[Given]:
    from stepwire_broker import definition_files

    text = _read_config(path)
    try:
        has_content = any(line and not line.startswith("#") for line in map(str.strip, text.splitlines()))
        document = definition_files.read_yaml(text) if has_content else {}
    except definition_files.DocumentError as error:
        raise SettingsError(f"{error.where(str(path))}: {error.message}") from None
    given = [*_of_seed_block(document, path, notes), *_flat(document, path)]
    if any(each.key in _URLS and "@" in str(each.value) for each in given) and path.stat().st_mode & 0o044:
        text = "holds a database URL with a password and can be read by other users"
        raise SettingsError(f"{path} {text}: chmod 600 {path}")
    return given


def _of_seed_block(document: Any, path: Path, notes: list[str]) -> Iterator[Given]:
    """Remove the `step_execution` block from the document, and map its keys to settings."""
    block = document.pop(seed_block.BLOCK, None) if isinstance(document, dict) else None
    if block is None:
        return
    if not isinstance(block, dict):
        raise SettingsError(f"{seed_block.BLOCK} in {path} must be a map of keys")
    try:
        for mapped in seed_block.map_keys(block):
            notes.append(f"{path}: {seed_block.BLOCK}.{mapped.name} {mapped.note}")
            if mapped.key is not None:
                yield Given(mapped.key, mapped.value, f"{path}, {seed_block.BLOCK}.{mapped.name}", False)
    except seed_block.UnknownKey as error:
        raise SettingsError(f"{path}: {error}") from None


def _check_heartbeat(settings: Settings, origins: Mapping[str, str]) -> None:
    """Refuse an interval with which one lost heartbeat would end the lease of a healthy worker."""
    bus = settings.bus
    if bus.heartbeat_ms * HEARTBEATS_MIN > bus.lease_ms:
        raise SettingsError(
            f"bus.heartbeat_ms ({origins['bus.heartbeat_ms']}) is {bus.heartbeat_ms} and bus.lease_ms"
            f" ({origins['bus.lease_ms']}) is {bus.lease_ms}: a heartbeat must be at most half of the lease"
        )


def _check_quotas(settings: Settings, origins: Mapping[str, str]) -> None:
    """Refuse a quota that is for no namespace, or limits nothing."""
    for name, quota in settings.limits.namespaces.items():
        where = f"{_NAMESPACES} ({origins[_NAMESPACES]}) has a quota for {name[:64]!r}"
        if "*" in name:
            raise SettingsError(f"{where}: a quota is for one namespace, so a pattern is not possible")
        if len(name) > NAMESPACE_CHARACTERS_MAX or re.fullmatch(namespace.pattern, name) is None:
            raise SettingsError(
                f"{where}, which is no namespace: it needs {namespace.form}, at most {NAMESPACE_CHARACTERS_MAX} "
                "characters"
            )
        if quota == QuotaSettings():
            members = ", ".join(QuotaSettings.__struct_fields__)
            raise SettingsError(f"{where} that limits nothing: it needs at least one of {members}")


def _quota_notes(settings: Settings) -> Iterator[str]:
    limits = settings.limits
    for name, quota in limits.namespaces.items():
        if quota.max_open_steps is not None and quota.max_open_steps > limits.max_open_steps:
            yield (
                f"{_NAMESPACES}.{name}.max_open_steps is {quota.max_open_steps}, more than limits.max_open_steps"
                f" ({limits.max_open_steps}) of all namespaces together: the quota is never reached"
            )


def _check_tokens_file(configuration: Configuration) -> None:
    """Refuse a file that was found here and names a file elsewhere: commands send the first word of the tokens file to
    the address in the same configuration."""
    tokens_file = configuration.settings.http.tokens_file
    if tokens_file is None or not configuration.is_from_here("http.tokens_file"):
        return
    if not is_inside(Path(tokens_file), Path()):
        raise SettingsError(
            f"http.tokens_file in {configuration.file} is {tokens_file!r}, outside of this directory: a configuration "
            "that is only found in the working directory may not name secrets elsewhere",
            f"if the configuration is yours, name it: --config {configuration.file}",
        )


def _heartbeat_notes(settings: Settings) -> Iterator[str]:
    bus = settings.bus
    if bus.heartbeat_ms * HEARTBEATS_GOOD > bus.lease_ms:
        yield (
            f"bus.heartbeat_ms is {bus.heartbeat_ms}, more than a fifth of bus.lease_ms ({bus.lease_ms}):"
            " a healthy worker may lose its lease after a few lost or late heartbeats"
        )


def _inproc_notes(settings: Settings) -> Iterator[str]:
    for key in ("bus.steps", "bus.results"):
        value = value_of(settings, key)
        if all(endpoint.startswith("inproc://") for endpoint in listed(value)):
            yield (
                f"{key} is {value}: only handlers in the broker's process can connect to it;"
                f" for others use a form like ipc://.stepwire/{key.removeprefix('bus.')}.sock"
            )


def _flat(value: Any, path: Path, prefix: str = "") -> Iterator[Given]:
    if not isinstance(value, dict):
        raise SettingsError(f"{prefix.rstrip('.') or 'the document'} in {path} must be a map of keys")
    for name, member in value.items():
        key = f"{prefix}{name}"
        if key in _SECTIONS:
            if member is not None:  # an empty section is None
                yield from _flat(member, path, f"{key}.")
        else:
            yield Given(key, member, str(path), False)


def _typed(given: Given) -> tuple[str, Any]:
    """The key in its canonical spelling, and the value in the setting's type."""
    key, value = _OTHER_SPELLINGS.get(given.key, given.key), given.value
    if key in _DURATIONS:
        key = _DURATIONS[key]
        ms = durations.milliseconds(value) if isinstance(value, str) else None
        if ms is None:
            raise SettingsError(f"{_given_text(given)}: use a form like 30s, 5m or 7d (or {key} in milliseconds)")
        value = ms
    if key not in KEYS:
        raise SettingsError(_unknown(given))
    kind = KEYS[key]
    try:
        if given.is_text and isinstance(value, str):
            value = _of_text(value, kind)
        return key, msgspec.convert(value, kind, strict=not given.is_text)
    except msgspec.ValidationError as error:
        raise SettingsError(_invalid(given, str(error), kind)) from None
    except msgspec.DecodeError:
        raise SettingsError(f"{_given_text(given)}, but is not JSON: see `stepwire config schema`") from None


def _of_text(text: str, kind: Any) -> Any:
    """Parse a text: commas separate the items of a list, structures are JSON. An empty text is None if the type allows
    None."""
    if text[:1] in ("[", "{") and (isinstance(kind, GenericAlias) or kind == OneOrMore):
        return msgspec.json.decode(text)
    if "tuple" in str(kind) or "list" in str(kind):
        parts = [part.strip() for part in text.split(",") if part.strip()]
        return text if kind == OneOrMore and len(parts) <= 1 else parts
    return None if not text and "None" in str(kind) else text


def _settings(values: dict[str, Any]) -> Settings:
    nested: dict[str, Any] = {}
    for key, value in values.items():
        *sections, name = key.split(".")
        at = nested
        for section in sections:
            at = at.setdefault(section, {})
        at[name] = value
    return msgspec.convert(nested, Settings)


def _read_config(path: Path) -> str:
    """The text of the configuration file. A file that other users control is refused."""
    try:
        with open(path, encoding="utf-8", opener=_open_without_waiting) as file:
            status = os.fstat(file.fileno())
            _check_owner(path, file.fileno())
            if status.st_mode & OTHERS_WRITE:
                raise SettingsError(f"{path} can be written by other users: chmod go-w {path}")
            if status.st_size > FILE_BYTES_MAX:
                raise SettingsError(f"{path} has {status.st_size} bytes; the maximum is {FILE_BYTES_MAX}")
            return file.read()
    except UnicodeDecodeError:
        raise SettingsError(f"{path} is not UTF-8 text") from None
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from None


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # `find_file` saw a file; it may have become a pipe


def _check_owner(path: Path, descriptor: int) -> None:
    owner = strange_owner(path, descriptor)
    if owner is not None:
        raise SettingsError(
            f"{path} belongs to the user {owner}: a configuration names the programs to run and the server that gets "
            "your token, so it must belong to you or to root",
            f"remove the file, run the command elsewhere, or name your own: --config FILE; to trust it: chown {path}",
        )


def _read_value(name: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{name} names {path!r}, which cannot be read: {error}") from None


def _is_known(key: str) -> bool:
    return key in KEYS or key in _DURATIONS


def _is_shared(given: Given) -> bool:
    """True for DATABASE_URL. Other programs use this variable too, so STEPWIRE_DATABASE__URL may be set as well, and
    has precedence."""
    return given.origin == "DATABASE_URL"


def _unknown(given: Given) -> str:
    known = [*KEYS, *_DURATIONS, *_SECTIONS]
    hint = did_you_mean(given.key, known) or "`stepwire config schema` prints all keys"
    key = echoed(given.key)
    where = f"{key} in {given.origin}" if not given.is_text else f"{echoed(given.origin)} ({key})"
    return f"{where} is not a known setting; {hint}"


def _given_text(given: Given) -> str:
    value = without_password(given.value) if isinstance(given.value, str) else given.value
    shown = hidden.HIDDEN if given.key.startswith((_COMMANDS, _OPTIONS)) else repr(value)[:100]
    return f"{given.origin} is {shown}" if given.is_text else f"{given.key} in {given.origin} is {shown}"


def _invalid(given: Given, error: str, kind: Any) -> str:
    fault = fault_of(error, kind)
    if fault is None:
        return f"{_given_text(given)}: {error}"
    if fault.place:
        return f"{_given_text(given)}: `{fault.place}` {fault.text}"
    form, _, actual = fault.text.partition(", not ")  # the message shows the actual value already
    remedy = ": quote it" if actual.endswith(": quote it") else ""
    return f"{_given_text(given)}, but {form}{remedy}"


def _set_twice(first: Given, second: Given) -> str:
    if first.origin != second.origin:
        return f"{first.origin} and {second.origin} are the same setting: keep one"
    if first.key == second.key:
        return f"{first.key} is set twice in {first.origin}: keep one"
    return f"{first.key} and {second.key} in {first.origin} are the same setting: keep one"
