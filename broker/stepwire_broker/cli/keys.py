"""`stepwire keys`: CURVE keys of the brokers and of the principals that may connect to the bus.

The commands change files only. A running broker reads `bus.curve.clients_dir` every 2 s.
"""

from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import msgspec

from stepwire_broker.bus.keys import client_file, server_key, trusted_text
from stepwire_broker.bus.keys.client_file import ClientFile
from stepwire_broker.bus.keys.clients import Clients, proofs_of
from stepwire_broker.bus.keys.key_text import KeyFileError, KeyPair, is_key, new_pair
from stepwire_broker.bus.keys.server_key import BrokerKeys
from stepwire_broker.core.model.principal import Grant
from stepwire_broker.last_uses import read_uses, uses_file
from stepwire_broker.timestamps import rfc3339_or_none

from . import output
from .config_commands import load
from .failure import Exit, Failure, usage
from .grant_options import GrantOptions, grant_options, now_ms
from .options import Options, StepwireGroup

COLUMNS: Final = [
    output.Column("name", "name"),
    output.Column("state", "state"),
    output.Column("keys", "keys", is_figure=True),
    output.Column("unix", "unix"),
    output.Column("handlers", "handlers"),
    output.Column("last used", "last_used_at"),
    output.Column("expires", "expires_at"),
]
_SERVER, _PUBLIC, _SECRET = (f"STEPWIRE_CURVE_{name}_KEY" for name in ("SERVER", "PUBLIC", "SECRET"))
_WITHIN: Final = "a running broker applies this within 3 s"


class _Places(NamedTuple):
    """The files that the commands work on, and whether the configuration names them."""

    secret_file: Path
    clients_dir: Path
    are_configured: bool


@click.group(cls=StepwireGroup)
def keys() -> None:
    """Create the keys of the bus, and decide which principal may connect, as which workers, for which handlers."""


@keys.command()
@click.pass_obj
def init(options: Options) -> None:
    """Create the brokers' key pair and the directory of clients, and print the two settings.

    A key pair that exists is kept.
    """
    places = _places(options)
    with _Failures():
        pair = server_key.init(places.secret_file, places.clients_dir)
    secret_file, clients_dir = str(places.secret_file.absolute()), str(places.clients_dir.absolute())
    facts = {"server_public": pair.public, "secret_file": secret_file, "clients_dir": clients_dir}
    settings = f"bus:\n  curve:\n    secret_file: {_quoted(secret_file)}\n    clients_dir: {_quoted(clients_dir)}"
    if options.output == "text":
        click.echo(settings)
    else:
        output.one(options, facts, "")
    output.note(options, f"the brokers' public key: {pair.public}")
    if not places.are_configured:
        output.note(options, "write these settings into stepwire.yaml, and restart the broker")
    output.note(options, "next: stepwire keys new NAME --handlers PATTERN --out FILE")


@keys.command()
@click.argument("name")
@grant_options
@click.option("--out", required=True, metavar="FILE", help="File for the keys of the workers. Its mode is 0600.")
@click.pass_obj
def new(options: Options, name: str, rights: GrantOptions, out: str) -> None:
    """Create a principal with a new key pair, and write its keys into FILE.

    Workers read FILE with STEPWIRE_CURVE_FILE. The broker keeps only the public key.
    """
    places = _places(options)
    with _Failures():
        server = _server(places)
        path = _new_client(places, name)
        pair = new_pair()
        client = ClientFile(grant=rights.applied(Grant(principal=name, workers=(name,))), public=(pair.public,))
        _write_worker_file(Path(out), server.public, pair)
        trusted_text.replace(path, client_file.text_of(client))
    facts = {"name": name, "public": pair.public, "file": out, "client_file": str(path)}
    output.one(options, facts, f"{out} holds the keys of {name}: set STEPWIRE_CURVE_FILE={out} for its workers")
    _note_no_handlers(options, client)
    output.note(options, _WITHIN)


@keys.command()
@click.argument("name")
@click.argument("public_key", required=False)
@click.option("--unix", "uid", type=int, metavar="UID", help="Admit this user of the host over ipc, without a key.")
@grant_options
@click.pass_obj
def allow(options: Options, name: str, public_key: str | None, uid: int | None, rights: GrantOptions) -> None:
    """Admit a public key, or a user of this host, as the principal NAME.

    The worker's key pair can be made on its own machine: stepwire keys pair. If NAME exists, the key is added to it and
    only the given options change. Without a key and a user, a revoked principal gets its access back.
    """
    if public_key is not None and not is_key(public_key):
        usage(f"{public_key!r} is no public key: it needs 40 characters of Z85", "stepwire keys pair --out FILE")
    places = _places(options)
    with _Failures():
        trusted_text.make_directory(places.clients_dir)
        client_file.check_name(name)
        path = places.clients_dir / name
        before = client_file.read(path) if path.exists() else None
        if before is None and public_key is None and uid is None:
            raise Failure(Exit.NOT_FOUND, f"no principal is called {name}", "name its PUBLIC_KEY, or --unix UID")
        client = before or ClientFile(grant=Grant(principal=name, workers=(name,)))
        client = ClientFile(
            grant=rights.applied(client.grant),
            public=_added(client.public, public_key),
            unix=_added(client.unix, uid),
        )
        _write_client(places, client)
    facts = {"name": name, "public": list(client.public), "unix": list(client.unix), "client_file": str(path)}
    output.one(options, facts, f"{name} is admitted: {path}")
    _note_no_handlers(options, client)
    output.note(options, _WITHIN)


@keys.command()
@click.option("--out", required=True, metavar="FILE", help="File for the keys of the workers. Its mode is 0600.")
@click.option("--server-key", metavar="KEY", help="The brokers' public key, as `stepwire keys init` prints it.")
@click.pass_obj
def pair(options: Options, out: str, server_key: str | None) -> None:
    """Create a key pair on the worker's machine, and print the public key for `stepwire keys allow`.

    The secret key never leaves this machine.
    """
    if server_key is not None and not is_key(server_key):
        usage(f"--server-key: {server_key!r} is no public key: it needs 40 characters of Z85")
    made = new_pair()
    with _Failures():
        _write_worker_file(Path(out), server_key, made)
    output.one(options, {"public": made.public, "file": out}, made.public)
    if server_key is None:
        output.note(options, f"add the brokers' public key to {out}: {_SERVER}='…'")
    output.note(options, "on the broker's host: stepwire keys allow NAME PUBLIC_KEY --handlers PATTERN")


@keys.command(name="list")
@output.columns_option
@click.pass_obj
def list_principals(options: Options) -> None:
    """List the principals with their state (valid, expired or revoked) and their last use, to the hour.

    Invalid files are printed to stderr.
    """
    places = _places(options)
    reading = Clients(places.clients_dir).read() if places.clients_dir.exists() else None
    clients = reading.clients if reading is not None else ()
    none = f"{places.clients_dir} has no principals; create one: stepwire keys new NAME --handlers PATTERN --out FILE"
    uses = read_uses(uses_file(places.clients_dir))
    output.several(options, [_shown(client, uses) for client in clients], COLUMNS, none)
    for fault in reading.faults if reading is not None else ():
        output.note(options, f"invalid: {fault}")
    if server_key.next_file(places.secret_file).exists():
        with _Failures():
            output.note(options, server_key.read_all(places.secret_file).phase)


@keys.command()
@click.argument("name")
@click.pass_obj
def show(options: Options, name: str) -> None:
    """Print the keys and the rights of a principal, and the last use of each key, to the hour."""
    places = _places(options)
    with _Failures():
        client = _client(places, name)
    shown = _shown(client, read_uses(uses_file(places.clients_dir)))
    used = [f"# {proof} was last used at {at or 'an unknown time'}" for proof, at in shown["last_uses"].items()]
    text = "\n".join([f"# {name}: {_state(client)}", *used, client_file.text_of(client).rstrip()])
    output.one(options, shown, text)


@keys.command()
@click.argument("names", metavar="NAME..", nargs=-1, required=True)
@click.option(
    "--now",
    "is_dead",
    is_flag=True,
    help="State that the workers of NAME have ended: their steps run again without waiting for the end of a lease.",
)
@click.pass_obj
def revoke(options: Options, names: tuple[str, ...], is_dead: bool) -> None:
    """Revoke principals: their connections end, and no key of theirs is admitted.

    The file is kept, so that `stepwire keys allow NAME` restores the access.
    """
    places = _places(options)
    for name in names:
        with _Failures():
            client = _client(places, name)
            _write_client(places, msgspec.structs.replace(client, revoked_ms=now_ms(), is_dead=is_dead))
        output.one(options, {"name": name, "revoked": True}, f"revoked {name}")
    output.note(options, _WITHIN)


@keys.command()
@click.argument("name", required=False)
@click.option("--server", is_flag=True, help="Rotate the brokers' own key, and not that of a principal.")
@click.option("--out", metavar="FILE", help="File for the new keys. Its mode is 0600.")
@click.option("--finish", is_flag=True, help="Remove all keys but the newest.")
@click.option("--cancel", is_flag=True, help="With --server: remove the new key, and keep the old one.")
@click.pass_obj
def rotate(options: Options, name: str | None, server: bool, out: str | None, finish: bool, cancel: bool) -> None:
    """Give a principal, or with --server the brokers, a new key. The old keys stay valid until --finish.

    First: stepwire keys rotate NAME --out FILE. Then restart the workers with FILE, and end the old keys with --finish.

    With --server: the brokers serve the new key at bus.next, and tell it to their workers. With --finish it replaces
    the old key, and connected workers follow without a restart.
    """
    if server is (name is not None):
        usage("rotate needs either NAME, a principal, or --server")
    if server:
        if out is not None or (finish and cancel):
            usage("rotate --server takes no FILE, and only one of --finish and --cancel")
        _rotate_server(options, finish=finish, cancel=cancel)
        return
    assert name is not None
    if cancel:
        usage("--cancel is an option of rotate --server")
    if finish is (out is not None):
        usage("rotate needs either --out FILE, which adds a key, or --finish, which removes the old keys")
    places = _places(options)
    with _Failures():
        client = _client(places, name)
        if out is None:
            if not client.public:
                raise Failure(Exit.WRONG_STATE, f"{name} has no keys: it is a user of this host")
            _write_client(places, msgspec.structs.replace(client, public=client.public[:1]))
            text = f"{name} has one key"
        else:
            made = new_pair()
            changed = msgspec.structs.replace(client, public=(made.public, *client.public))
            client_file.parse(name, client_file.text_of(changed), str(places.clients_dir / name))  # too many keys
            _write_worker_file(Path(out), _server(places).public, made)
            _write_client(places, changed)
            text = f"{out} holds the new keys of {name}; then: stepwire keys rotate {name} --finish"
        keys_left = list(_client(places, name).public)
    output.one(options, {"name": name, "public": keys_left, "file": out}, text)
    output.note(options, _WITHIN)


def _rotate_server(options: Options, *, finish: bool, cancel: bool) -> None:
    secret_file = _places(options).secret_file
    with _Failures():
        before = server_key.read_all(secret_file)
        if before.next is None and (finish or cancel):
            raise Failure(
                Exit.WRONG_STATE, "no rotation of the brokers' key has begun", "stepwire keys rotate --server"
            )
        if finish:
            after = server_key.finish_rotation(secret_file)
            text = f"the brokers' key is {after.current.public}"
        elif cancel:
            after = server_key.cancel_rotation(secret_file)
            text = f"the rotation is cancelled: the brokers' key stays {after.current.public}"
        else:
            after, text = _begin_rotation(options, secret_file, before), ""
    following = None if after.next is None else after.next.public
    text = text or f"the brokers' next key is {following}; then: stepwire keys rotate --server --finish"
    facts = {"server_public": after.current.public, "next_public": following}
    output.one(options, facts, text)
    if not cancel:
        when = "from now on" if finish else "at bus.next, or after --finish,"
        output.note(options, f"a worker that starts {when} needs this key in its file: {_SERVER}='…'")
    output.note(options, _WITHIN)


def _begin_rotation(options: Options, secret_file: Path, before: BrokerKeys) -> BrokerKeys:
    if before.next is not None:
        raise Failure(Exit.WRONG_STATE, before.phase, "to keep the old key: stepwire keys rotate --server --cancel")
    if load(options).settings.bus.next.steps is None:
        hint = "set bus.next.steps and bus.next.results to tcp endpoints, and restart the broker"
        raise Failure(Exit.WRONG_STATE, "bus.next is not set, so the brokers cannot serve two keys", hint)
    return server_key.begin_rotation(secret_file)


class _Failures:
    """Turns errors of key files into failures of the command."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, KeyFileError):
            raise Failure(Exit.USAGE, str(error)) from None


def _places(options: Options) -> _Places:
    curve = load(options).settings.bus.curve
    return _Places(
        Path(curve.secret_file or server_key.SECRET_FILE),
        Path(curve.clients_dir or server_key.CLIENTS_DIR),
        curve.secret_file is not None and curve.clients_dir is not None,
    )


def _server(places: _Places) -> KeyPair:
    if not places.secret_file.exists():
        raise Failure(Exit.WRONG_STATE, f"{places.secret_file} does not exist", "stepwire keys init")
    return server_key.read(places.secret_file)


def _new_client(places: _Places, name: str) -> Path:
    client_file.check_name(name)
    trusted_text.make_directory(places.clients_dir)
    path = places.clients_dir / name
    if path.exists():
        raise Failure(Exit.WRONG_STATE, f"{name} exists already", f"stepwire keys rotate {name}, or another name")
    return path


def _client(places: _Places, name: str) -> ClientFile:
    client_file.check_name(name)
    path = places.clients_dir / name
    if not path.exists():
        raise Failure(Exit.NOT_FOUND, f"{places.clients_dir} has no principal {name}", "stepwire keys list")
    return client_file.read(path)


def _write_client(places: _Places, client: ClientFile) -> None:
    """Replace the file. Raises KeyFileError if the result is invalid, for example with a key of another principal."""
    path = places.clients_dir / client.name
    text = client_file.text_of(client)
    client_file.parse(client.name, text, str(path))
    for other in Clients(places.clients_dir).read().clients:
        shared = {*client.public, *client.unix} & {*other.public, *other.unix} if other.name != client.name else None
        if shared:
            raise KeyFileError(f"{other.name} has {shared.pop()} already: each principal needs its own")
    trusted_text.replace(path, text)


def _write_worker_file(path: Path, server_public: str | None, made: KeyPair) -> None:
    lines = [(_SERVER, server_public), (_PUBLIC, made.public), (_SECRET, made.secret)]
    trusted_text.write_new(path, "".join(f"{name}='{key}'\n" for name, key in lines if key is not None))


def _shown(client: ClientFile, uses: dict[str, int]) -> dict[str, Any]:
    """`uses`: the times of last use, by the proofs of identity."""
    grant = client.grant
    used = {line: uses.get(proof) for line, proof in proofs_of(client).items()}
    return {
        "name": client.name,
        "state": _state(client),
        "keys": len(client.public),
        "public": list(client.public),
        "unix": list(client.unix),
        "workers": list(grant.workers),
        "handlers": list(grant.handlers),
        "namespaces": list(grant.namespaces),
        "labels": dict(grant.labels),
        "level0": grant.level0,
        "sessions": grant.sessions,
        "slots": grant.slots,
        "messages_per_s": grant.messages_per_s,
        "bytes_per_s": grant.bytes_per_s,
        "last_used_at": rfc3339_or_none(max((at for at in used.values() if at is not None), default=None)),
        "last_uses": {proof: rfc3339_or_none(at) for proof, at in used.items()},
        "expires_at": rfc3339_or_none(grant.expires_ms),
        "revoked_at": rfc3339_or_none(client.revoked_ms),
    }


def _state(client: ClientFile) -> str:
    return (client.refusal(now_ms()) or "valid").removesuffix("_key")


def _note_no_handlers(options: Options, client: ClientFile) -> None:
    if not client.grant.handlers:
        output.note(options, f"{client.name} may offer no handler yet: stepwire keys allow {client.name} --handlers …")


def _added(values: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    return values if value is None or value in values else (value, *values)


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()
