"""Hardened: keys. The played brokers admit one key."""

import os
import tempfile
from pathlib import Path
from typing import Final

import zmq

from stepwire_conform.case import Level, RuleBroken, case
from stepwire_conform.keys import ServerKeys
from stepwire_conform.setting import START_S
from stepwire_conform.stage import Stage

NO_CURVE: Final = "the binding is built without CURVE, or the variables STEPWIRE_CURVE_* are not read"


def _keys(stage: Stage) -> ServerKeys:
    assert stage.keys is not None
    return stage.keys


def _admit(stage: Stage) -> None:
    assert stage.gate is not None
    stage.gate.allowed.add(_keys(stage).client_public.decode())


def _start(stage: Stage, **settings: str) -> None:
    stage.open_brokers()
    stage.start(**settings)


@case(
    "curve.session",
    Level.HARDENED,
    "With STEPWIRE_CURVE_SERVER_KEY, _PUBLIC_KEY and _SECRET_KEY, the worker connects with these keys",
    "21",
    curve=True,
    auto=False,
    cause=NO_CURVE,
)
def session(stage: Stage) -> None:
    _admit(stage)
    _start(stage, **_keys(stage).environ())
    stage.until_session(within_s=START_S)
    if stage.setting.has("conform.echo"):
        stage.run("conform.echo", {})


@case(
    "curve.file",
    Level.HARDENED,
    "STEPWIRE_CURVE_FILE names a file with the three keys, as lines NAME='value'",
    "21",
    strength="should",
    curve=True,
    auto=False,
)
def file(stage: Stage) -> None:
    _admit(stage)
    with tempfile.TemporaryDirectory() as directory:
        _start(stage, STEPWIRE_CURVE_FILE=_written(stage, directory, 0o600))
        stage.until_session(within_s=START_S)


@case(
    "curve.open_file",
    Level.HARDENED,
    "A key file that other users can read is refused, in a sentence",
    "21",
    strength="should",
    curve=True,
    auto=False,
    cause="the mode of the key file is not checked",
)
def open_file(stage: Stage) -> None:
    _admit(stage)
    with tempfile.TemporaryDirectory() as directory:
        stage.may_end = True
        _start(stage, STEPWIRE_CURVE_FILE=_written(stage, directory, 0o644))
        _expect_refusal(stage)


@case(
    "curve.missing",
    Level.HARDENED,
    "One of the three keys is missing: the worker ends at once, in a sentence",
    "21",
    strength="should",
    curve=True,
    auto=False,
    cause="a missing key is ignored, and the worker waits for ever without a word",
)
def missing(stage: Stage) -> None:
    _admit(stage)
    environ = _keys(stage).environ()
    del environ["STEPWIRE_CURVE_SECRET_KEY"]
    stage.may_end = True
    _start(stage, **environ)
    _expect_refusal(stage)


@case(
    "curve.wrong_server",
    Level.HARDENED,
    "With another server key, the worker neither connects nor ends",
    "21",
    curve=True,
    auto=False,
    lasts_s=4,
    cause="the worker ends at the first refused handshake, or connects without keys",
)
def wrong_server(stage: Stage) -> None:
    _admit(stage)
    environ = _keys(stage).environ() | {"STEPWIRE_CURVE_SERVER_KEY": ServerKeys().public.decode()}
    _start(stage, **environ)
    stage.wait(4.0)
    if stage.inbox:
        raise RuleBroken(f"a message came over a connection with a wrong key: {stage.inbox[0]!r}")


@case(
    "curve.no_keys",
    Level.HARDENED,
    "Without keys, the worker stays alive at a broker that requires them",
    "21",
    curve=True,
    auto=False,
    lasts_s=3,
)
def no_keys(stage: Stage) -> None:
    _start(stage)
    stage.wait(3.0)
    if stage.inbox:
        raise RuleBroken(f"a message came without a key: {stage.inbox[0]!r}")


@case(
    "curve.allowed_later",
    Level.HARDENED,
    "A refused key that is allowed later connects within 15 s, because the worker rebuilds its sockets",
    "20 and 21",
    curve=True,
    auto=False,
    lasts_s=24,
    cause="after a refused handshake libzmq never retries by itself: disconnect and connect after 15 s of silence",
)
def allowed_later(stage: Stage) -> None:
    _start(stage, **_keys(stage).environ())
    assert stage.gate is not None
    gate = stage.gate
    stage.until(lambda: len(gate.asked) >= 2, "refused handshakes", within_s=START_S)
    _admit(stage)
    stage.until_session(within_s=40)


@case(
    "curve.restart",
    Level.HARDENED,
    "With keys, the worker has a session again after a restart of the broker",
    "20",
    curve=True,
    auto=False,
    lasts_s=3,
)
def restart(stage: Stage) -> None:
    _admit(stage)
    _start(stage, **_keys(stage).environ())
    stage.until_session(within_s=START_S)
    stage.broker.close()
    stage.wait(0.5)
    stage.broker.epoch += 1
    stage.forget_sessions()
    stage.broker.open()
    stage.until_session(number=1)


@case(
    "curve.refused",
    Level.HARDENED,
    "A worker that loses its access names its public key and the code `unauthorized`, in one line",
    "21",
    strength="should",
    curve=True,
    auto=False,
    cause="the line about the reset leaves the operator without the key to look for",
)
def refused(stage: Stage) -> None:
    _admit(stage)
    _start(stage, **_keys(stage).environ())
    stage.until_session(within_s=START_S)
    beat = stage.expect("heartbeat")
    key = _keys(stage).client_public.decode()
    stage.send(
        stage.broker.message("reset", next=beat["next"][stage.broker.id], code="unauthorized"), to=beat["worker"]
    )
    stage.until(
        lambda: any(key in line and "unauthorized" in line for line in stage.output().splitlines()),
        "a line with the public key of the worker and `unauthorized`",
        within_s=START_S,
    )


@case(
    "curve.new_server_key",
    Level.HARDENED,
    "A listed broker whose first key changes is connected again with that key, at the same endpoints",
    "14",
    curve=True,
    auto=False,
    lasts_s=3,
    cause="the list of an ack is compared by broker alone, so a worker that is connected ignores a new key",
)
def new_server_key(stage: Stage) -> None:
    _admit(stage)
    keys, broker = _keys(stage), stage.broker
    _start(stage, **keys.environ())
    stage.until_session(within_s=START_S)
    after, secret = zmq.curve_keypair()

    def listed(key: bytes, steps: str = broker.steps_endpoint) -> dict[str, str]:
        return {"broker": broker.id, "steps": steps, "results": broker.results_endpoint, "server_key": key.decode()}

    broker.ack_members = {"brokers": [listed(keys.public), listed(after, "tcp://127.0.0.1:9")]}
    stage.wait(1.0)  # some heartbeats and their acks
    broker.ack_members = {"brokers": [listed(after)]}
    stage.wait(1.0)  # meanwhile the new key is not served yet, and the worker tries it again and again
    broker.close()
    keys.public, keys.secret = after, secret
    broker.open()
    stage.inbox.clear()
    stage.expect("heartbeat", within_s=START_S)


def _written(stage: Stage, directory: str, mode: int) -> str:
    path = Path(directory) / "worker.keys"
    path.touch(mode=0o600)
    path.write_text("".join(f"{name}='{value}'\n" for name, value in _keys(stage).environ().items()))
    os.chmod(path, mode)
    return str(path)


def _expect_refusal(stage: Stage) -> None:
    stage.until(
        lambda: stage.running.exit_code() is not None or bool(stage.inbox), "end of the program", within_s=START_S
    )
    if stage.inbox:
        raise RuleBroken("the worker connected all the same")
    if stage.running.exit_code() == 0:
        raise RuleBroken("the program ended with exit code 0")
    if "STEPWIRE_CURVE_" not in stage.output() and "worker.keys" not in stage.output():
        raise RuleBroken("the program ended without a sentence about its keys")
