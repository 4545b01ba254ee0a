"""The key pair of a deployment's brokers: `bus.curve.secret_file`, written by `stepwire keys init`.

During a rotation, the next pair is in a further file: the same name with `.next` at the end. The end of the rotation
renames that file over the first, so that one pair is the current one at every moment.
"""

from pathlib import Path
from typing import Final, NamedTuple

from .key_text import KeyFileError, KeyPair, is_key, new_pair, public_of
from .trusted_text import make_directory, move, read_secret, write_new

KEYS_DIR: Final = Path(".stepwire/keys")
SECRET_FILE: Final = KEYS_DIR / "server.key"
CLIENTS_DIR: Final = KEYS_DIR / "clients"

_HEAD: Final = "# The CURVE key pair of the brokers. Workers need the public key; the secret key stays in this file.\n"


def init(secret_file: Path, clients_dir: Path) -> KeyPair:
    """Create the pair and the directory of clients. A pair that exists is kept. Raises KeyFileError."""
    make_directory(secret_file.parent)
    make_directory(clients_dir)
    if not secret_file.exists():
        pair = new_pair()
        write_new(secret_file, f"{_HEAD}public={pair.public}\nsecret={pair.secret}\n")
    return read(secret_file)


class BrokerKeys(NamedTuple):
    """The current pair, and the pair that will replace it; None without a rotation."""

    current: KeyPair
    next: KeyPair | None = None

    @property
    def phase(self) -> str:
        """The sentence that names the phase of the rotation."""
        if self.next is None:
            return "the brokers have one key"
        return (
            f"a rotation of the brokers' key has begun: bus.next serves the next key, {self.next.public}; it replaces "
            f"{self.current.public} with: stepwire keys rotate --server --finish"
        )


def read_all(path: Path) -> BrokerKeys:
    """Read the current and the next pair. Raises KeyFileError."""
    after = next_file(path)
    upcoming = read(after) if after.exists() else None
    current = read(path)
    # The end of a rotation between the two reads shows the same pair twice.
    return BrokerKeys(current, None if upcoming == current else upcoming)


def next_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.next")


def begin_rotation(path: Path) -> BrokerKeys:
    """Create the next pair. Raises KeyFileError if there is one."""
    current, pair = read(path), new_pair()
    write_new(next_file(path), f"{_HEAD}public={pair.public}\nsecret={pair.secret}\n")
    return BrokerKeys(current, pair)


def finish_rotation(path: Path) -> BrokerKeys:
    """Make the next pair the current one. Raises KeyFileError if there is no valid next pair."""
    upcoming = read(next_file(path))
    move(next_file(path), path)
    return BrokerKeys(upcoming)


def cancel_rotation(path: Path) -> BrokerKeys:
    """Remove the next pair. Raises KeyFileError."""
    try:
        next_file(path).unlink(missing_ok=True)
    except OSError as error:
        raise KeyFileError(f"{next_file(path)} cannot be removed: {error.strerror}") from None
    return BrokerKeys(read(path))


def read(path: Path) -> KeyPair:
    """Read the pair. The file needs `secret=`; `public=` is checked against it. Raises KeyFileError."""
    members: dict[str, str] = {}
    if not path.exists():
        raise KeyFileError(f"{path} does not exist: `stepwire keys init` creates it, or name the file of your keys")
    for number, line in enumerate(read_secret(path).splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, equals, value = line.strip().partition("=")
        if not equals or name not in ("public", "secret") or name in members:
            raise KeyFileError(f"{path}, line {number}: the file has one line secret=… and one line public=…")
        if not is_key(value):
            raise KeyFileError(f"{path}, line {number}: `{name}` is no key: it needs 40 characters of Z85")
        members[name] = value
    if "secret" not in members:
        raise KeyFileError(f"{path} has no line secret=…: create a key pair with `stepwire keys init`")
    pair = KeyPair(public_of(members["secret"]), members["secret"])
    if members.get("public", pair.public) != pair.public:
        raise KeyFileError(f"{path}: `public` does not belong to `secret`; remove the line public=…")
    return pair
