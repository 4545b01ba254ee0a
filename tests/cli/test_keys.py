"""`stepwire keys`: the brokers' pair, and principals that are created, allowed, rotated and revoked."""

import os
import re
from pathlib import Path

import pytest
import zmq
from stepwire import curve
from stepwire_broker.bus.admission import proof_of_key
from stepwire_broker.bus.keys.key_text import raw

from .a_place import Place

OK, USAGE, NOT_FOUND, WRONG_STATE = 0, 2, 3, 4


@pytest.fixture
def place(empty: Place) -> Place:
    """A place with the brokers' key pair."""
    done = empty.stepwire("keys", "init")
    assert done.code == OK, done
    return empty


def grants(place: Place, name: str = "shop") -> set[str]:
    return set((place.directory / ".stepwire/keys/clients" / name).read_text().splitlines())


def test_init_creates_a_pair_once_and_prints_the_settings(empty: Place) -> None:
    made = empty.stepwire("-o", "json", "keys", "init").json
    assert set(made) == {"server_public", "secret_file", "clients_dir"}
    assert empty.stepwire("-o", "json", "keys", "init").json == made
    settings = empty.stepwire("keys", "init").out
    (empty.directory / "stepwire.yaml").write_text(settings)
    rows = {row["key"]: row["value"] for row in empty.stepwire("config", "show", "-o", "json").json}
    assert rows["bus.curve.secret_file"] == made["secret_file"]
    assert rows["bus.curve.clients_dir"] == made["clients_dir"]
    for name, mode in ((".stepwire", 0o700), (".stepwire/keys", 0o700), (".stepwire/keys/server.key", 0o600)):
        assert (empty.directory / name).stat().st_mode & 0o777 == mode, name


def test_the_commands_use_the_files_that_the_configuration_names(empty: Place) -> None:
    (empty.directory / "stepwire.yaml").write_text("bus: {curve: {secret_file: my/server, clients_dir: my/clients}}\n")
    done = empty.stepwire("keys", "init")
    assert "write these settings" not in done.err
    assert empty.stepwire("keys", "new", "shop", "--out", "shop.key").code == OK
    assert (empty.directory / "my/clients/shop").exists()
    assert not (empty.directory / ".stepwire/keys").exists()


def test_a_new_principal_gets_a_file_that_every_sdk_reads(place: Place) -> None:
    words = ["--handlers", "shop::**", "--handlers", "mail.send", "--namespaces", "shop", "--labels", "region=eu,gpu=*"]
    words += ["--workers", "shop,shop-*", "--level0", "--sessions", "3", "--slots", "7", "--expires", "90d"]
    made = place.stepwire("-o", "json", "keys", "new", "shop", *words, "--out", "shop.key").json
    file = place.directory / "shop.key"
    assert file.stat().st_mode & 0o777 == 0o600
    names = [line.partition("=")[0] for line in file.read_text().splitlines()]
    assert names == ["STEPWIRE_CURVE_SERVER_KEY", "STEPWIRE_CURVE_PUBLIC_KEY", "STEPWIRE_CURVE_SECRET_KEY"]
    assert re.fullmatch(r"(\w+='[^']{40}'\n){3}", file.read_text())
    keys = curve.keys(*curve.read({"STEPWIRE_CURVE_FILE": str(file)}))
    assert keys is not None
    assert keys.public == made["public"]
    assert keys.server == place.stepwire("-o", "json", "keys", "init").json["server_public"]
    expires = {line for line in grants(place) if line.startswith("expires=")}
    assert grants(place) - expires == {
        f"public={made['public']}",
        "workers=shop,shop-*",
        "handlers=shop::**,mail.send",
        "namespaces=shop",
        "labels=region=eu,gpu=*",
        "level0=yes",
        "sessions=3",
        "slots=7",
    }
    assert len(expires) == 1
    stored = [path.read_text() for path in (place.directory / ".stepwire/keys/clients").iterdir()]
    assert keys.secret not in "".join(stored), "the broker's files must not hold the secret key of a worker"


def test_nothing_is_overwritten(place: Place) -> None:
    assert place.stepwire("keys", "new", "shop", "--out", "shop.key").code == OK
    before = (place.directory / "shop.key").read_text()
    again = place.stepwire("keys", "new", "shop", "--out", "other.key")
    assert (again.code, "shop exists already" in again.err) == (WRONG_STATE, True)
    assert not (place.directory / "other.key").exists()
    again = place.stepwire("keys", "new", "mail", "--out", "shop.key")
    assert (again.code, "shop.key exists already" in again.err) == (USAGE, True)
    assert (place.directory / "shop.key").read_text() == before
    assert not (place.directory / ".stepwire/keys/clients/mail").exists()


def test_a_pair_of_a_worker_is_allowed_by_its_public_key(place: Place) -> None:
    server = place.stepwire("-o", "json", "keys", "init").json["server_public"]
    made = place.stepwire("keys", "pair", "--out", "far.key", "--server-key", server)
    public = made.out.strip()
    keys = curve.keys(*curve.read({"STEPWIRE_CURVE_FILE": str(place.directory / "far.key")}))
    assert keys is not None
    assert (keys.server, keys.public, zmq.curve_public(keys.secret.encode())) == (server, public, public.encode())
    assert place.stepwire("keys", "allow", "far", public, "--handlers", "far.*").code == OK
    assert grants(place, "far") == {f"public={public}", "handlers=far.*"}
    taken = place.stepwire("keys", "allow", "near", public)
    assert (taken.code, "far has" in taken.err) == (USAGE, True)


def test_a_user_of_this_host_is_allowed_without_a_key(place: Place) -> None:
    assert place.stepwire("keys", "allow", "--unix", "1001", "batch", "--handlers", "batch.run").code == OK
    assert grants(place, "batch") == {"unix=1001", "handlers=batch.run"}


def test_a_revoked_principal_keeps_its_rights_for_a_later_allow(place: Place) -> None:
    place.stepwire("keys", "new", "shop", "--handlers", "shop::**", "--out", "shop.key")
    before = grants(place)
    assert place.stepwire("keys", "revoke", "shop").code == OK
    (shown,) = place.stepwire("keys", "list", "-o", "json").json
    assert (shown["state"], shown["revoked_at"] is not None) == ("revoked", True)
    assert "# shop: revoked" in place.stepwire("keys", "show", "shop").out
    assert place.stepwire("keys", "allow", "shop").code == OK
    assert grants(place) == before


def test_revoke_now_states_that_the_workers_have_ended(place: Place) -> None:
    place.stepwire("keys", "new", "shop", "--out", "shop.key")
    assert place.stepwire("keys", "revoke", "shop", "--now").code == OK
    assert "dead=yes" in grants(place)


def test_a_rotation_keeps_the_old_key_until_it_is_finished(place: Place) -> None:
    place.stepwire("keys", "new", "shop", "--out", "1.key")
    made = place.stepwire("-o", "json", "keys", "rotate", "shop", "--out", "2.key").json
    first, second = (curve.read({"STEPWIRE_CURVE_FILE": str(place.directory / name)})[1] for name in ("1.key", "2.key"))
    assert made["public"] == [second, first]
    assert {f"public={first}", f"public={second}"} <= grants(place)
    assert place.stepwire("-o", "json", "keys", "rotate", "shop", "--finish").json["public"] == [second]
    assert f"public={first}" not in grants(place)
    assert place.stepwire("keys", "rotate", "shop").code == USAGE


def configure_next(place: Place) -> None:
    settings = place.stepwire("keys", "init").out
    settings += "  next: {steps: 'tcp://127.0.0.1:7421', results: 'tcp://127.0.0.1:7422'}\n"
    (place.directory / "stepwire.yaml").write_text(settings)


def test_a_rotation_of_the_server_key_has_three_phases_and_each_command_names_its_phase(place: Place) -> None:
    configure_next(place)
    first = place.stepwire("-o", "json", "keys", "init").json["server_public"]
    begun = place.stepwire("-o", "json", "keys", "rotate", "--server").json
    second = begun["next_public"]
    assert (begun["server_public"], second != first) == (first, True)
    sentence = f"bus.next serves the next key, {second}; it replaces {first}"
    assert sentence in place.stepwire("keys", "list").err
    assert sentence in place.stepwire("config", "validate").err
    assert sentence in place.stepwire("doctor").out
    assert (place.directory / ".stepwire/keys/server.key.next").stat().st_mode & 0o777 == 0o600
    again = place.stepwire("keys", "rotate", "--server")
    assert (again.code, sentence in again.err) == (WRONG_STATE, True)
    ended = place.stepwire("-o", "json", "keys", "rotate", "--server", "--finish").json
    assert ended == {"server_public": second, "next_public": None}
    assert place.stepwire("-o", "json", "keys", "init").json["server_public"] == second
    for words in (("keys", "list"), ("config", "validate"), ("doctor",)):
        done = place.stepwire(*words)
        assert "next key" not in done.out + done.err
    assert place.stepwire("keys", "rotate", "--server", "--finish").code == WRONG_STATE


def test_a_cancelled_rotation_keeps_the_server_key(place: Place) -> None:
    configure_next(place)
    first = place.stepwire("-o", "json", "keys", "init").json["server_public"]
    assert place.stepwire("keys", "rotate", "--server").code == OK
    done = place.stepwire("-o", "json", "keys", "rotate", "--server", "--cancel").json
    assert done == {"server_public": first, "next_public": None}
    assert place.stepwire("keys", "rotate", "--server", "--cancel").code == WRONG_STATE


def test_a_rotation_of_the_server_key_needs_endpoints_for_the_next_key(place: Place) -> None:
    refused = place.stepwire("keys", "rotate", "--server")
    assert (refused.code, "bus.next is not set" in refused.err) == (WRONG_STATE, True)
    assert not (place.directory / ".stepwire/keys/server.key.next").exists()


def test_an_invalid_next_key_is_named_and_cannot_replace_the_current_one(place: Place) -> None:
    configure_next(place)
    before = (place.directory / ".stepwire/keys/server.key").read_text()
    place.stepwire("keys", "rotate", "--server")
    (place.directory / ".stepwire/keys/server.key.next").write_text("secret=short\n")
    for words in (("keys", "rotate", "--server", "--finish"), ("keys", "list"), ("config", "validate"), ("doctor",)):
        done = place.stepwire(*words)
        assert "server.key.next, line 1: `secret` is no key" in done.out + done.err, words
    assert (place.directory / ".stepwire/keys/server.key").read_text() == before


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("shop", "--server"),
        ("--server", "--out", "x"),
        ("--server", "--finish", "--cancel"),
        ("shop", "--cancel"),
    ],
)
def test_a_rotation_is_of_one_principal_or_of_the_server(place: Place, words: tuple[str, ...]) -> None:
    place.stepwire("keys", "new", "shop", "--out", "shop.key")
    assert place.stepwire("keys", "rotate", *words).code == USAGE


def test_a_principal_shows_its_last_use_and_that_of_each_key(place: Place) -> None:
    place.stepwire("keys", "new", "shop", "--out", "1.key")
    place.stepwire("keys", "rotate", "shop", "--out", "2.key")
    place.stepwire("keys", "allow", "--unix", "1001", "batch")
    first, second = (curve.read({"STEPWIRE_CURVE_FILE": str(place.directory / name)})[1] for name in ("1.key", "2.key"))
    hour = "2027-01-02T03:00:00.000Z"
    uses = place.directory / ".stepwire/keys/clients.uses"
    uses.write_text(f"{proof_of_key(raw(first) or b'')} {hour}\nunix=1001 {hour}\n")
    batch, shop = place.stepwire("-o", "json", "keys", "list").json
    assert (batch["last_used_at"], shop["last_used_at"]) == (hour, hour)
    assert shop["last_uses"] == {f"public={first}": hour, f"public={second}": None}
    assert f"# public={first} was last used at {hour}\n" in place.stepwire("keys", "show", "shop").out
    assert f"# public={second} was last used at an unknown time\n" in place.stepwire("keys", "show", "shop").out
    uses.write_text(f"unix=1001 2026-01-02T03:00:00Z\n{proof_of_key(raw(first) or b'')} {hour}\n")
    examined = place.stepwire("doctor", STEPWIRE_BUS__CURVE__CLIENTS_DIR=".stepwire/keys/clients").out
    assert "the keys of batch were not used since 2026-01-02T03:00:00" in examined
    assert "the keys of shop were not used" not in examined
    assert "LAST USED" in place.stepwire("keys", "list").out


def test_a_missing_file_and_a_wrong_argument_are_named(empty: Place) -> None:
    missing = empty.stepwire("keys", "new", "shop", "--out", "shop.key")
    assert (missing.code, "stepwire keys init" in missing.err) == (WRONG_STATE, True)
    assert "has no principals" in empty.stepwire("keys", "list").err
    empty.stepwire("keys", "init")
    for words, code, text in [
        (("revoke", "shop"), NOT_FOUND, "has no principal shop"),
        (("show", "shop"), NOT_FOUND, "has no principal shop"),
        (("allow", "shop"), NOT_FOUND, "no principal is called shop"),
        (("allow", "shop", "short"), USAGE, "'short' is no public key"),
        (("allow", "owner", "--unix", "1"), USAGE, "'owner' is the name of a built-in principal"),
        (("new", "a/b", "--out", "x"), USAGE, "'a/b' cannot name a principal"),
        (("new", "shop", "--out", "x", "--labels", "eu"), USAGE, "--labels: a label has the form key=value"),
        (("new", "shop", "--out", "x", "--handlers", "a b"), USAGE, "--handlers: 'a b' is no pattern"),
        (("new", "shop", "--out", "missing/x"), USAGE, "missing/x cannot be written"),
    ]:
        done = empty.stepwire("keys", *words)
        assert (done.code, text in done.err) == (code, True), (words, done)
        assert not any((empty.directory / ".stepwire/keys/clients").iterdir()), words


def test_an_invalid_file_is_listed_as_invalid(place: Place) -> None:
    file = place.directory / ".stepwire/keys/clients/shop"
    file.write_text("public=oops\n")
    file.chmod(0o600)
    assert "invalid: .stepwire/keys/clients/shop, line 1" in place.stepwire("keys", "list").err


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a file of another user")
def test_a_directory_of_another_user_is_refused(place: Place) -> None:
    clients: Path = place.directory / ".stepwire/keys/clients"
    os.chown(clients, 12345, 12345)
    done = place.stepwire("keys", "new", "shop", "--out", "shop.key")
    assert (done.code, "belongs to user 12345" in done.err) == (USAGE, True)
