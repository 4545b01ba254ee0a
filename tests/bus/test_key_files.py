"""The key files: the brokers' pair, and the directory of principals that is read while the broker runs."""

import os
from pathlib import Path

import msgspec
import pytest
from stepwire_broker.bus.keys import client_file, clients, server_key
from stepwire_broker.bus.keys.clients import Clients, DirectoryReading
from stepwire_broker.bus.keys.key_text import KeyFileError, new_pair, raw
from stepwire_broker.core.model.principal import Grant

# Constants, because the names of tests contain them, and every process of a run must find the same tests.
KEY, OTHER = "8=61L}00S*><mpGbK?ttD1X:zEs73dML%*!7s:sq", "9{WBNQyPEa=IhaFHf(ft]z]]EZ[0XKBKBVZcZR[("
SECRET = "[oU=w22w37HWtec=-T!.k<8RjfP%[flADD[@N?o5"  # belongs to neither
NOW_MS = 1_800_000_000_000


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "clients"
    path.mkdir(mode=0o700)
    return path


def put(directory: Path, name: str, text: str = f"public={KEY}\n") -> Path:
    """Replace a file as the commands do."""
    (directory / f".{name}").write_text(text)
    (directory / f".{name}").chmod(0o600)
    (directory / f".{name}").replace(directory / name)
    return directory / name


def names(reading: DirectoryReading) -> list[str]:
    return [client.name for client in reading.clients]


def rights_of(client: client_file.ClientFile) -> Grant:
    """The grant without the digest of its keys."""
    return msgspec.structs.replace(client.grant, identities="")


def test_a_client_file_states_keys_and_rights() -> None:
    text = f"""
        # comment
        public={KEY}
        public = {OTHER}
        unix=1001
        workers=shop,shop-*
        handlers=shop::**,billing.charge
        namespaces=shop
        labels=region=eu,gpu=*
        level0=yes
        sessions=3
        slots=20
        messages_per_s=100
        bytes_per_s=1000
        expires=2027-01-01T00:00:00Z
    """
    client = client_file.parse("shop", text, "f")
    assert client.public == (KEY, OTHER)
    assert client.unix == (1001,)
    assert rights_of(client) == Grant(
        principal="shop",
        workers=("shop", "shop-*"),
        handlers=("shop::**", "billing.charge"),
        namespaces=("shop",),
        labels=(("region", "eu"), ("gpu", "*")),
        level0=True,
        sessions=3,
        slots=20,
        messages_per_s=100,
        bytes_per_s=1000,
        expires_ms=1_798_761_600_000,
    )
    assert client_file.parse("shop", client_file.text_of(client), "f") == client


def test_a_file_with_only_a_key_grants_its_name_and_no_handler() -> None:
    client = client_file.parse("shop", f"public={KEY}", "f")
    assert rights_of(client) == Grant(principal="shop", workers=("shop",))
    assert client_file.parse("shop", client_file.text_of(client), "f") == client


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "the file needs a line public=KEY, or unix=UID"),
        ("public", "line 1: a line has the form member=value"),
        ("public=short", "line 1: `public` is no key: it needs 40 characters of Z85, and has 5"),
        ("public=" + "~" * 40, "`public` is no key"),
        ("public=" + "#" * 40, "`public` is no key"),
        (f"public={KEY}\npublic={KEY}", "line 2: `public` states the same value twice"),
        (f"public={KEY}\nhandler=x", "line 2: 'handler' is unknown; did you mean handlers"),
        (f"public={KEY}\nhandlers=x\nhandlers=y", "line 3: `handlers` occurs twice"),
        (f"public={KEY}\nhandlers=a, ,b", "'' is no pattern"),
        (f"public={KEY}\nhandlers=a b", "'a b' is no pattern"),
        (f"public={KEY}\nlabels=eu", "a label has the form key=value"),
        (f"public={KEY}\nlevel0=true", "'true' is neither yes nor no"),
        (f"public={KEY}\nsessions=many", "'many' is no whole number"),
        (f"public={KEY}\nsessions=0", "sessions=0 allows no worker"),
        (f"public={KEY}\nexpires=tomorrow", "'tomorrow' is no time with a zone"),
        (f"public={KEY}\nexpires=2027-01-01T00:00:00", "is no time with a zone"),
        ("unix=-1", "'-1' is no whole number"),
        ("unix=shop", "'shop' is no whole number"),
    ],
)
def test_a_wrong_line_is_refused_with_its_number(text: str, sentence: str) -> None:
    with pytest.raises(KeyFileError) as error:
        client_file.parse("shop", text, "clients/shop")
    assert str(error.value).startswith("clients/shop")
    assert sentence in str(error.value)


@pytest.mark.parametrize("name", ["owner", "anonymous", "process", "a:b", "token:x", "two words", "ä", "x" * 65])
def test_no_file_may_take_the_name_of_another_kind_of_principal(directory: Path, name: str) -> None:
    put(directory, name)
    reading = Clients(directory).read()
    assert (names(reading), len(reading.faults)) == ([], 1)


def test_an_added_a_changed_and_a_removed_file_are_noticed(directory: Path) -> None:
    reader = Clients(directory)
    assert reader.read() == DirectoryReading()
    put(directory, "shop")
    assert names(reader.read()) == ["shop"]
    put(directory, "shop", f"public={OTHER}\n")
    assert reader.read().clients[0].public == (OTHER,)
    (directory / "shop").unlink()
    assert reader.read() == DirectoryReading()


def test_an_invalid_file_changes_nothing_and_the_other_files_apply(directory: Path) -> None:
    put(directory, "shop")
    put(directory, "mail", f"public={OTHER}\n")
    reader = Clients(directory)
    before = reader.read()
    put(directory, "shop", "public=oops\n")
    put(directory, "new", f"public={new_pair().public}\n")
    (directory / "mail").unlink()
    reading = reader.read()
    assert names(reading) == ["new", "shop"]
    assert reading.clients[1] == before.clients[1]
    assert reading.faults == (
        f"{directory}/shop, line 1: `public` is no key: it needs 40 characters of Z85, and has 4",
    )
    put(directory, "shop", f"public={OTHER}\n")
    assert reader.read().faults == ()


def test_a_removed_directory_changes_nothing(directory: Path) -> None:
    put(directory, "shop")
    reader = Clients(directory)
    reader.read()
    directory.rename(directory.with_name("moved"))
    reading = reader.read()
    assert (names(reading), "does not exist, so no key is admitted" in reading.faults[0]) == (["shop"], True)


def test_a_key_of_two_principals_stays_with_its_first_owner(directory: Path) -> None:
    put(directory, "shop")
    reader = Clients(directory)
    reader.read()
    put(directory, "attic")  # sorted before `shop`
    reading = reader.read()
    assert names(reading) == ["shop"]
    assert "attic and shop both have the public key" in reading.faults[0]


def test_files_that_others_can_change_are_refused(directory: Path) -> None:
    put(directory, "shop").chmod(0o620)
    assert "can be written by other users: chmod go-w" in Clients(directory).read().faults[0]
    directory.chmod(0o777)
    assert "can be written by other users: chmod 700" in Clients(directory).read().faults[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a file of another user")
def test_a_file_of_another_user_is_refused(directory: Path) -> None:
    os.chown(put(directory, "shop"), 12345, 12345)
    assert "belongs to user 12345" in Clients(directory).read().faults[0]


def test_expired_and_revoked_keys_are_known_and_refused(directory: Path) -> None:
    put(directory, "old", f"public={KEY}\nexpires=2020-01-01T00:00:00Z\n")
    put(directory, "gone", f"public={OTHER}\nunix=4242\nrevoked=2026-01-01T00:00:00Z\n")
    admission = clients.admission(Clients(directory).read().clients, NOW_MS, anonymous=None, blocked=frozenset())
    assert admission.keys == {}
    assert 4242 not in admission.uids
    assert [admission.refused_keys[raw(key) or b""][:2] for key in (KEY, OTHER)] == [
        ("old", "expired_key"),
        ("gone", "revoked_key"),
    ]


def test_the_brokers_own_user_cannot_be_given_away(directory: Path) -> None:
    put(directory, "shop", f"unix={os.geteuid()}\n")
    admission = clients.admission(Clients(directory).read().clients, NOW_MS, anonymous=None, blocked=frozenset())
    assert admission.uids == {os.geteuid(): "owner"}


def test_the_server_pair_is_made_once(tmp_path: Path) -> None:
    file, clients_dir = tmp_path / "keys/server.key", tmp_path / "keys/clients"
    first = server_key.init(file, clients_dir)
    assert server_key.init(file, clients_dir) == first == server_key.read(file)
    assert [path.stat().st_mode & 0o777 for path in (file.parent, file, clients_dir)] == [0o700, 0o600, 0o700]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "has no line secret="),
        ("secret=x\n", "line 1: `secret` is no key"),
        (f"secret={KEY}\nsecret={KEY}\n", "line 2: the file has one line secret="),
        (f"secret={SECRET}\npublic={KEY}\n", "`public` does not belong to `secret`"),
    ],
)
def test_a_wrong_server_file_is_refused_without_its_secret(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "server.key"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(KeyFileError, match=sentence) as error:
        server_key.read(file)
    assert KEY not in str(error.value)


def test_a_secret_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "server.key"
    file.write_text(f"secret={new_pair().secret}\n")
    file.chmod(0o640)
    with pytest.raises(KeyFileError, match=f"chmod 600 {file}"):
        server_key.read(file)
