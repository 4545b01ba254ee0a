"""Misconfigurations: the programs state in one sentence whose fault it is and what to do, and `doctor` does too."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cli import forked
from tests.cli.a_place import Place, place, stop

from .harness import eventually

OTHER_UID = 65534
KEYS = ".stepwire/keys"
WORKER = """
from stepwire import Worker

worker = Worker.from_env()
worker.handler("shop.pay")(lambda context: None)
worker.run()
"""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of another user")


class Wrong(NamedTuple):
    """A wrong configuration. `prepare` makes it, and returns settings; `sentence` is a part of the message of `serve`,
    and `doctor` of a red finding or a warning."""

    prepare: Callable[[Path], dict[str, str] | None]
    sentence: str
    doctor: str = ""  # "": the same


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def link(path: Path, target: Path) -> None:
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.symlink_to(write(target, "precious"))


def settings(text: str) -> dict[str, str]:
    """`bus.steps=x http.listen=y` as variables."""
    pairs = (word.partition("=") for word in text.split())
    return {f"STEPWIRE_{key.upper().replace('.', '__')}": value for key, _, value in pairs}


def directory(path: Path, mode: int) -> None:
    path.mkdir()
    path.chmod(mode)


REFUSED = {
    "key of the broker, missing": Wrong(
        lambda at: (at / KEYS / "server.key").unlink(),
        "keys/server.key does not exist: `stepwire keys init` creates it, or name the file of your keys",
    ),
    "key of the broker, mode 0644": Wrong(
        lambda at: (at / KEYS / "server.key").chmod(0o644),
        "keys/server.key can be read or written by other users: chmod 600 ",
    ),
    "key of the broker, of another user": Wrong(
        lambda at: os.chown(at / KEYS / "server.key", OTHER_UID, -1),
        "keys/server.key belongs to user 65534: it must belong to user 0, who runs this, or to root",
    ),
    "key of the broker, another text": Wrong(
        lambda at: write(at / KEYS / "server.key", "hello\n") and None,
        "keys/server.key, line 1: the file has one line secret=… and one line public=…",
    ),
    "bus elsewhere without keys": Wrong(
        lambda at: settings("bus.curve.secret_file= bus.steps=tcp://0.0.0.0:7411 bus.results=tcp://0.0.0.0:7412"),
        "bus.steps is 'tcp://0.0.0.0:7411': other hosts can reach it, and no connection would be encrypted or "
        "authenticated; create keys with `stepwire keys init`",
    ),
    "lists of different length": Wrong(
        lambda at: settings("bus.steps=ipc://a,ipc://b"), "so both lists need the same length"
    ),
    "HTTP elsewhere": Wrong(
        lambda at: settings("http.listen=0.0.0.0:0"),
        "http.listen is '0.0.0.0:0', which other machines can reach, and tokens would travel unencrypted: set http.tls",
    ),
    "tokens file, missing": Wrong(
        lambda at: settings("http.tokens_file=tokens"),
        "tokens cannot be read: No such file or directory; create a token: stepwire token new NAME",
        "http.tokens_file is 'tokens', which does not exist",
    ),
    "tokens file, mode 0644": Wrong(
        lambda at: write(at / "tokens", "t" * 43, 0o644) and settings("http.tokens_file=tokens"),
        "tokens can be read by others: chmod 600 tokens",
    ),
    "tokens file, unknown scope": Wrong(
        lambda at: write(at / "tokens", f"{'t' * 43} scopes=reed") and settings("http.tokens_file=tokens"),
        "tokens, line 1: 'reed' is not a valid Scope; scopes are ",
    ),
    "configuration of another user": Wrong(
        lambda at: os.chown(write(at / "stepwire.yaml", "log_level: info\n"), OTHER_UID, -1),
        "stepwire.yaml belongs to the user nobody: a configuration names the programs to run and the server that gets "
        "your token, so it must belong to you or to root",
    ),
    "configuration that others can write": Wrong(
        lambda at: write(at / "stepwire.yaml", "log_level: info\n", 0o666) and None,
        "stepwire.yaml can be written by other users: chmod go-w stepwire.yaml",
    ),
    "state directory, mode 0755": Wrong(
        lambda at: (at / ".stepwire").chmod(0o755),
        ".stepwire can be read by others: chmod 700 .stepwire",
        ".stepwire is accessible to other users: its mode is 755",
    ),
    "data directory, mode 0777": Wrong(
        lambda at: directory(at / "data", 0o777) or settings("database.url=sqlite:///data/state.db"),
        "(its mode is 777), and could replace the database: chmod go-w ",
    ),
    "lock, a symbolic link": Wrong(
        lambda at: link(at / ".stepwire/state.db.lock", at / "precious"),
        ".stepwire/state.db.lock is a symbolic link, which could lead to a file of something else: remove the link",
    ),
    "socket directory, mode 0777": Wrong(
        lambda at: directory(at / "s", 0o777) or settings("bus.steps=ipc://s/steps.sock bus.results=ipc://s/r.sock"),
        "/s and could replace the socket in it; chmod 700 ",
    ),
    "socket directory, not writable": Wrong(
        lambda at: settings("bus.steps=ipc:///proc/1/steps.sock bus.results=ipc:///proc/1/r.sock"),
        "this user may not write to /proc/1, where the socket would be; name a directory of this user",
    ),
    "programs in a strict broker": Wrong(
        lambda at: settings('security.strict=true http.listen= executors.exec.commands={"a":["true"]}'),
        "executors.exec.commands has programs (a), which would run as the broker's user: security.strict refuses that",
    ),
    "tcp in a strict broker": Wrong(
        lambda at: settings("security.strict=true"),
        "http.listen is '127.0.0.1:0': security.strict refuses tcp without TLS, also on the loopback; set",
    ),
}
NEEDS_ROOT = ("key of the broker, of another user", "configuration of another user")


@pytest.fixture
def keyed(tmp_path: Path) -> Place:
    """A place with keys, where each configuration is right before it is made wrong."""
    tmp_path.chmod(0o700)
    here = place(tmp_path)
    made = here.stepwire("-o", "json", "keys", "init").json
    here.environ.update(
        STEPWIRE_BUS__CURVE__SECRET_FILE=made["secret_file"], STEPWIRE_BUS__CURVE__CLIENTS_DIR=made["clients_dir"]
    )
    return here


@pytest.mark.parametrize(
    "wrong",
    [pytest.param(wrong, id=name, marks=as_root if name in NEEDS_ROOT else ()) for name, wrong in REFUSED.items()],
)
def test_a_broker_refuses_to_start_with_the_fault_and_the_remedy(keyed: Place, wrong: Wrong) -> None:
    keyed.environ.update(wrong.prepare(keyed.directory) or {})
    started = keyed.stepwire("serve")
    assert started.code in (1, 2), started
    assert started.out == ""
    assert wrong.sentence in started.err.splitlines()[0], started.err
    found = list(map(json.loads, keyed.stepwire("doctor", "-o", "jsonl").out.splitlines()))
    red = [one["text"] for one in found if one["state"] == "red"]
    assert any((wrong.doctor or wrong.sentence) in text for text in red), red


REPORTED = {
    "directory of clients, missing": Wrong(
        lambda at: (at / KEYS / "clients").rmdir(),
        "keys/clients does not exist, so no key is admitted: `stepwire keys init` creates it, or name the directory in",
    ),
    "line of a client, malformed": Wrong(
        lambda at: write(at / KEYS / "clients/shop", "handlers shop\n") and None,
        "clients/shop, line 1: a line has the form member=value, like handlers=shop::**",
    ),
    "key of two clients": Wrong(
        lambda at: [write(at / KEYS / f"clients/{name}", f"public={'0' * 40}\n") for name in "ab"] and None,
        "each principal needs its own",
    ),
    "client file that others can write": Wrong(
        lambda at: write(at / KEYS / "clients/shop", f"public={'0' * 40}\n", 0o666) and None,
        "clients/shop can be written by other users: chmod go-w ",
    ),
}


@pytest.mark.parametrize("wrong", REPORTED.values(), ids=REPORTED)
def test_a_broker_that_runs_reports_a_fault_of_the_clients_and_keeps_serving(keyed: Place, wrong: Wrong) -> None:
    wrong.prepare(keyed.directory)
    serving = keyed.serve("-o", "json")
    try:
        assert json.loads(serving.ready)["insecure"] == ["client_files"]
        found = list(map(json.loads, keyed.stepwire("doctor", "-o", "jsonl").out.splitlines()))
        assert any(wrong.sentence in one["text"] for one in found if one["state"] == "red"), found
    finally:
        serving.process.terminate()
        _, err = serving.process.communicate(timeout=60)
    lines = list(map(json.loads, err.splitlines()))
    assert any(wrong.sentence in line["text"] for line in lines if line["event"] == "client_file_invalid"), err


WARNED = {
    "every handler": (["--handlers", "**", "--expires", "90d"], "shop may offer every handler, and so receive every"),
    "without expiry": (["--handlers", "shop.*"], "the access of shop never expires"),
    "expired": (["--handlers", "shop.*", "--expires", "1ms"], "the access of these principals has expired: shop"),
}


@pytest.mark.parametrize(("words", "sentence"), WARNED.values(), ids=WARNED)
def test_doctor_names_a_grant_that_is_too_wide_or_has_no_end(keyed: Place, words: list[str], sentence: str) -> None:
    assert keyed.stepwire("keys", "new", "shop", *words, "--out", "shop.key").code == 0
    found = list(map(json.loads, keyed.stepwire("doctor", "-o", "jsonl").out.splitlines()))
    (one,) = [one for one in found if sentence in one["text"]]
    assert (one["state"], one["todo"][:19]) in (("warning", "stepwire keys allow"), ("note", "stepwire keys allow"))


# -- workers ----------------------------------------------------------------------------------------------------------


class Site(NamedTuple):
    """Two brokers on tcp: one with keys, and one without. Key files are in the directory of the first."""

    here: Place
    keyed: dict[str, Any]
    open: dict[str, Any]
    log: Path

    def worker(self, facts: dict[str, Any], **environ: str) -> "subprocess.Popen[str]":
        kept = {name: value for name, value in self.here.environ.items() if name in ("PATH", "HOME", "PYTHONPATH")}
        endpoints = {"STEPWIRE_STEPS": facts["steps"], "STEPWIRE_RESULTS": facts["results"], "STEPWIRE_NAME": "shop"}
        return forked.start(
            [sys.executable, "worker.py"],
            self.here.directory,
            {**kept, **endpoints, **environ},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    first, second = (place(tmp_path_factory.mktemp(name)) for name in ("keyed", "open"))
    for here in (first, second):
        here.directory.chmod(0o700)
        here.environ.update(STEPWIRE_BUS__STEPS="tcp://127.0.0.1:*", STEPWIRE_BUS__RESULTS="tcp://127.0.0.1:*")
    made = first.stepwire("-o", "json", "keys", "init").json
    (first.directory / "worker.py").write_text(WORKER)
    for name, words in (("shop", ()), ("late", ("--expires", "1ms"))):
        assert first.stepwire("keys", "new", name, "--handlers", "shop.*", *words, "--out", f"{name}.key").code == 0
    pair = first.stepwire("-o", "json", "keys", "pair", "--out", "stranger.key", "--server-key", made["server_public"])
    text = (first.directory / "shop.key").read_text()
    write(first.directory / "server.key", text.replace(made["server_public"], pair.json["public"]))
    write(first.directory / "open.key", text, 0o644)
    write(first.directory / "half.key", "".join(text.splitlines(keepends=True)[:1]))
    first.environ.update(
        STEPWIRE_BUS__CURVE__SECRET_FILE=made["secret_file"], STEPWIRE_BUS__CURVE__CLIENTS_DIR=made["clients_dir"]
    )
    log = first.directory / "broker.log"
    brokers = []
    try:
        for here in (first, second):
            with (here.directory / "broker.log").open("w") as errors:
                command = [sys.executable, "-m", "stepwire", "serve", "-o", "json"]
                brokers.append(
                    forked.start(command, here.directory, here.environ, stdout=subprocess.PIPE, stderr=errors)
                )
        facts = [json.loads(broker.stdout.readline()) for broker in brokers if broker.stdout is not None]
        yield Site(first, facts[0], facts[1], log)
    finally:
        for broker in brokers:
            stop(broker)


NEEDS_KEYS = "does not answer as a broker. Check that STEPWIRE_STEPS and STEPWIRE_RESULTS name the broker's"
OF_KEY = (
    "Check also the three CURVE keys: this worker's public key is {}; on the broker's host see `stepwire keys list`"
)
UNANSWERED = {
    "a worker without a key at a port with keys": (
        True,
        None,
        "A broker with CURVE needs keys, STEPWIRE_CURVE_FILE",
        None,
    ),
    "a worker with a key at a port without keys": (False, "shop.key", OF_KEY, None),
    "a worker with another server key": (True, "server.key", OF_KEY, None),
    "a worker with an unknown key": (True, "stranger.key", OF_KEY, "unknown_key"),
    "a worker with an expired key": (True, "late.key", OF_KEY, "expired_key"),
}


@pytest.mark.parametrize(("is_keyed", "key", "sentence", "code"), UNANSWERED.values(), ids=UNANSWERED)
def test_a_worker_that_is_not_admitted_says_what_to_check_and_the_broker_logs_the_reason(
    site: Site, is_keyed: bool, key: str | None, sentence: str, code: str | None
) -> None:
    environ = {} if key is None else {"STEPWIRE_CURVE_FILE": key}
    worker = site.worker(site.keyed if is_keyed else site.open, **environ)
    try:
        assert worker.stderr is not None
        line = next(line for line in worker.stderr if "no broker for" in line)
        assert NEEDS_KEYS in line
        public = "" if key is None else (site.here.directory / key).read_text().splitlines()[1].split("'")[1]
        assert sentence.format(public) in line
        if code is not None:
            eventually(lambda: f'"code":"{code}"' in site.log.read_text(), f"{code} in the broker's log", 60)
            assert public in site.log.read_text(), "the broker's log and the line of the worker name the same key"
    finally:
        worker.kill()
        worker.communicate()


@pytest.mark.parametrize(
    ("key", "sentence"),
    [
        ("open.key", "its group or others may use this file, and it holds a secret key: chmod 600 open.key"),
        ("nowhere.key", "STEPWIRE_CURVE_FILE is 'nowhere.key': it cannot be read: No such file or directory"),
        ("half.key", "is missing: CURVE needs STEPWIRE_CURVE_SERVER_KEY, STEPWIRE_CURVE_PUBLIC_KEY and"),
    ],
)
def test_a_worker_with_an_unusable_key_file_ends_with_the_sentence(site: Site, key: str, sentence: str) -> None:
    worker = site.worker(site.keyed, STEPWIRE_CURVE_FILE=key)
    _, err = worker.communicate(timeout=60)
    assert worker.returncode != 0
    assert sentence in err


def test_an_address_in_use_names_the_setting_and_a_remedy(keyed: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        started = keyed.stepwire("serve", "--listen", f"127.0.0.1:{other.getsockname()[1]}")
    assert started.code == 2
    assert "is another broker running there? Choose another address with http.listen" in started.err
