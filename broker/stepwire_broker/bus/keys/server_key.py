"""The key pair of a deployment's brokers: `bus.curve.secret_file`, written by `stepwire keys init`."""

from pathlib import Path
from typing import Final

from .key_text import KeyFileError, KeyPair, is_key, new_pair, public_of
from .trusted_text import make_directory, read_secret, write_new

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
