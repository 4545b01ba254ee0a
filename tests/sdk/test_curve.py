"""A worker with CURVE keys: over real sockets with a real ZAP handler, and the errors of a wrong configuration."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from stepwire import ConfigurationError, Worker
from stepwire.actions import Link
from stepwire.curve import CurveKeys
from stepwire.worker.events import WorkerEvents
from stepwire.worker.sockets import WorkerSockets
from stepwire_protocol.messages import Endpoints
from zmq.auth.thread import ThreadAuthenticator

from .dialogue import step
from .scripted_broker import ScriptedBroker

SERVER, OTHER_SERVER, CLIENT, STRANGER = (zmq.curve_keypair() for _ in range(4))
NAMES = ("STEPWIRE_CURVE_SERVER_KEY", "STEPWIRE_CURVE_PUBLIC_KEY", "STEPWIRE_CURVE_SECRET_KEY")


class OnlyTheClient:
    """The ZAP handler's decision: one key is admitted."""

    def __init__(self) -> None:
        self.seen: set[bytes] = set()

    def callback(self, domain: str, key: bytes) -> bool:
        self.seen.add(key)
        return key == CLIENT[0]


@pytest.fixture
def admission() -> OnlyTheClient:
    return OnlyTheClient()


@pytest.fixture
def context(admission: OnlyTheClient) -> Iterator["zmq.Context[zmq.Socket[bytes]]"]:
    with zmq.Context() as context:
        authenticator = ThreadAuthenticator(context)
        authenticator.start()
        authenticator.configure_curve_callback(domain="stepwire", credentials_provider=admission)
        yield context
        authenticator.stop()


@pytest.fixture
def broker(context: "zmq.Context[zmq.Socket[bytes]]") -> Iterator[ScriptedBroker]:
    broker = ScriptedBroker("tcp://127.0.0.1:*", "tcp://127.0.0.1:*", context, curve=SERVER)
    yield broker
    broker.close()


def worker_of(
    broker: ScriptedBroker, server: tuple[bytes, bytes] = SERVER, client: tuple[bytes, bytes] = CLIENT
) -> Worker:
    worker = Worker(
        steps=broker.steps_endpoint,
        results=broker.results_endpoint,
        curve_server_key=server[0].decode(),
        curve_public_key=client[0].decode(),
        curve_secret_key=client[1].decode(),
    )
    worker.handler("h")(lambda context: {"ran": context.step_id})
    return worker


def test_a_worker_with_keys_runs_steps_of_a_broker_with_curve(broker: ScriptedBroker, admission: OnlyTheClient) -> None:
    worker = worker_of(broker)
    worker.start()
    try:
        broker.until_welcomed()
        broker.run(step(1))
        assert bytes(broker.result(1).output) == b'{"ran":1}'
        assert admission.seen == {CLIENT[0]}
    finally:
        worker.drain(0)
        broker.until(lambda: worker.wait(0), "the worker to end")


@pytest.mark.parametrize("wrong", ["client", "server", "none"])
def test_a_worker_with_a_wrong_key_or_none_gets_no_session(broker: ScriptedBroker, wrong: str) -> None:
    if wrong == "none":
        worker = Worker(steps=broker.steps_endpoint, results=broker.results_endpoint)
        worker.handler("h")(lambda context: None)
    else:
        worker = worker_of(
            broker, OTHER_SERVER if wrong == "server" else SERVER, STRANGER if wrong == "client" else CLIENT
        )
    worker.start()
    for _ in range(75):
        broker.serve(20)
    assert broker.received == []
    worker.drain(0)
    assert worker.wait(20)


def test_a_listed_broker_is_connected_with_its_own_server_key(
    broker: ScriptedBroker, context: "zmq.Context[zmq.Socket[bytes]]"
) -> None:
    second = ScriptedBroker("tcp://127.0.0.1:*", "tcp://127.0.0.1:*", context, id="b2", curve=OTHER_SERVER)
    broker.brokers = [
        Endpoints(each.id, each.steps_endpoint, each.results_endpoint, keys[0].decode())
        for each, keys in ((broker, SERVER), (second, OTHER_SERVER))
    ]
    worker = worker_of(broker)
    worker.start()
    try:
        second.until(lambda: broker.serve() or second.session, "a hello to the second broker")
        second.until_welcomed()
        second.run(step(7))
        assert bytes(second.result(7).output) == b'{"ran":7}'
    finally:
        worker.drain(0)
        second.until(lambda: broker.serve() or worker.wait(0), "the worker to end")
        second.close()


def test_rebuilt_endpoints_keep_their_server_key(
    broker: ScriptedBroker, context: "zmq.Context[zmq.Socket[bytes]]"
) -> None:
    keys = CurveKeys(OTHER_SERVER[0].decode(), CLIENT[0].decode(), CLIENT[1].decode())
    events = WorkerEvents("w:0123456789abcdef", lambda broker: None, is_inside_broker=False)
    link = Link(broker.steps_endpoint, broker.results_endpoint)
    sockets = WorkerSockets(context, "w:0123456789abcdef", (), events, keys)
    sockets.connect(link, SERVER[0].decode())
    for _ in range(2):
        assert broker.pub.poll(5_000), "no subscription: the handshake has failed"
        while broker.pub.poll(100):
            broker.pub.recv()
        sockets.rebuild(link)
    sockets.close()


# -- configuration ----------------------------------------------------------------------------------------------------


def environment(**changes: str | None) -> dict[str, str]:
    values = dict(zip(NAMES, (SERVER[0].decode(), CLIENT[0].decode(), CLIENT[1].decode()), strict=True))
    given = {**values, **{f"STEPWIRE_CURVE_{name}": value for name, value in changes.items()}}
    return {name: value for name, value in given.items() if value is not None}


def from_env(monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]) -> Worker:
    for name in (*NAMES, "STEPWIRE_CURVE_FILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    return Worker.from_env()


def key_file(directory: Path, mode: int = 0o600, **changes: str | None) -> str:
    path = directory / "keys"
    lines = [f"{name}='{value}'" for name, value in environment(**changes).items()]
    path.write_text("\n".join(("# of this worker", *lines, "")))
    path.chmod(mode)
    return str(path)


def test_without_keys_there_is_no_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    assert from_env(monkeypatch, {})._curve is None


def test_the_three_variables_are_the_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    assert from_env(monkeypatch, environment())._curve == (SERVER[0].decode(), CLIENT[0].decode(), CLIENT[1].decode())


def test_a_file_has_the_keys_and_a_variable_wins_over_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    changed = {"STEPWIRE_CURVE_FILE": key_file(tmp_path), NAMES[0]: OTHER_SERVER[0].decode()}
    assert from_env(monkeypatch, changed)._curve == (
        OTHER_SERVER[0].decode(),
        CLIENT[0].decode(),
        CLIENT[1].decode(),
    )


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602])
def test_a_file_that_others_can_use_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: int) -> None:
    path = key_file(tmp_path, mode)
    with pytest.raises(ConfigurationError, match=f"its group or others may use .* chmod 600 {path}"):
        from_env(monkeypatch, {"STEPWIRE_CURVE_FILE": path})


def test_a_missing_file_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"no-such.* cannot be read: No such file or directory"):
        from_env(monkeypatch, {"STEPWIRE_CURVE_FILE": str(tmp_path / "no-such")})


@pytest.mark.parametrize("name", ["SERVER_KEY", "PUBLIC_KEY", "SECRET_KEY"])
def test_a_missing_key_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^STEPWIRE_CURVE_{name} is missing: CURVE needs"):
        from_env(monkeypatch, environment(**{name: None}))
    with pytest.raises(ConfigurationError, match=f"^STEPWIRE_CURVE_{name} is missing: CURVE needs"):
        from_env(monkeypatch, {"STEPWIRE_CURVE_FILE": key_file(tmp_path, **{name: None})})


@pytest.mark.parametrize("key", ["short", "'" * 40, "x" * 41])
def test_a_key_of_a_wrong_form_is_named_but_not_shown(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    with pytest.raises(ConfigurationError, match="STEPWIRE_CURVE_SECRET_KEY is no key") as refused:
        from_env(monkeypatch, environment(SECRET_KEY=key))
    assert key not in str(refused.value)


def test_a_public_key_of_another_pair_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match=r"STEPWIRE_CURVE_PUBLIC_KEY does not belong to"):
        from_env(monkeypatch, environment(PUBLIC_KEY=STRANGER[0].decode()))
