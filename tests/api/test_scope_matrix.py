"""Every operation, with every scope, for the token's own namespace and for a foreign one, by every way in.

The matrix is generated from the table of operations. A new operation needs a scope, a namespace rule, and here a
request; without one of them a test fails. A further way in is one more row of `WAYS`.
"""

import http.client
import json
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import pytest
from cryptography import x509
from stepwire_broker.api import token as token_files
from stepwire_broker.api.namespace_rules import NamespaceRule, declared_rule, rule_of
from stepwire_broker.api.operations import OPERATIONS
from stepwire_broker.api.token import Grant, add_token
from stepwire_broker.core.answers.scopes import Scope, includes
from stepwire_broker.core.definitions.settings import JwtClaims, JwtSettings

from .running_api import Answer, Api, running, settings_in
from .test_client_certificates import Served
from .test_jwt import AUDIENCE, ISSUER, document, signed

OWN, FOREIGN, MISSING = "shop", "billing", "nowhere"


class Place(NamedTuple):
    """A namespace with one task."""

    namespace: str
    workflow: str
    task_id: int
    step_id: int


class Identity(NamedTuple):
    """The same permissions in three forms: a token of the broker, a signed token, and a client certificate."""

    token: str
    jwt: str
    certificate: tuple[Path, Path] | None  # with its key; None: the broker has no TLS


class World:
    """A broker with a task in each of two namespaces."""

    def __init__(self, api: Api, directory: Path, served: Served | None = None) -> None:
        """`served`: the authorities of a broker with TLS."""
        self.api = api
        self.socket_path = directory / "http.sock"
        self.kept: dict[Identity, http.client.HTTPSConnection] = {}  # connections with a certificate
        self._served = served
        self.foreign = self._place(FOREIGN)  # its events come first
        self.own = self._place(OWN)
        self.missing = Place(MISSING, f"{FOREIGN}-order", 999_998, 999_999)
        limited = (OWN, f"{OWN}::**")
        self.identities = {scope: self._identity(f"{scope}-of-{OWN}", {scope}, limited) for scope in Scope}
        self.tapper = self._identity("tapper", {Scope.OPERATE, Scope.INSPECT}, limited)
        self.whole = self._identity("whole", {Scope.ADMIN}, ("**",))
        api.on_loop(api.tokens.reload)

    def _identity(self, name: str, scopes: set[Scope], namespaces: tuple[str, ...]) -> Identity:
        """Permissions that a token, a signed token and the line of a certificate hold, under the same name."""
        file = self.api.tokens.file
        value = add_token(file, Grant(name, frozenset(scopes), namespaces=namespaces))
        words = " ".join(sorted(scopes))
        jwt = signed(sub=name, scope=words, namespaces=list(namespaces)).decode()
        if self._served is None:
            return Identity(value, jwt, None)
        line = (
            f"cert:{name}.example name=cert-{name} scopes={','.join(sorted(scopes))} namespaces={','.join(namespaces)}"
        )
        token_files._write(file, f"{file.read_text()}{line}\n")
        return Identity(value, jwt, self._served.clients.issue(name, x509.DNSName(f"{name}.example")))

    def encrypted(self, identity: Identity) -> http.client.HTTPSConnection:
        """The connection with the certificate of this identity. It is kept: handshakes take most of the time."""
        if identity not in self.kept:
            assert self._served is not None
            context = self._served.context(identity.certificate)
            self.kept[identity] = http.client.HTTPSConnection("localhost", self.api.port, timeout=20, context=context)
        return self.kept[identity]

    def call(self, path: str, body: Any = None) -> Answer:
        """Send a request with the broker's own token."""
        if self._served is not None:
            return self._served.call(None, path, body, Authorization=f"Bearer {self.api.token}")
        return self.api.call("GET" if body is None else "POST", path, body)

    def _place(self, namespace: str) -> Place:
        steps = [{"name": "pay", "handler_class": f"{namespace}.pay"}]
        workflow = {"namespace": namespace, "name": f"{namespace}-order", "version": "1", "steps": steps}
        assert self.call("/v1/workflows", workflow).status == 201
        body = {"namespace": namespace, "workflow": f"{namespace}-order", "labels": {"of": namespace}}
        task = self.call("/v1/tasks?wait_ms=0", body).json["task"]
        return Place(namespace, f"{namespace}-order", task["task_id"], task["steps"][0]["step_id"])

    def state_of_foreign(self) -> Any:
        """Everything that is stored about the foreign namespace."""
        return [
            self.call(path).json
            for path in (
                f"/v1/tasks/{self.foreign.task_id}/events",
                f"/v1/tasks?namespace={FOREIGN}",
                f"/v1/workflows?namespace={FOREIGN}",
            )
        ]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Without TLS, with the keys of an issuer of signed tokens."""
    directory = tmp_path_factory.mktemp("m", numbered=True)
    directory.chmod(0o700)
    (directory / "jwks.json").write_bytes(document())
    jwt = JwtSettings(
        issuer=ISSUER,
        audience=AUDIENCE,
        jwks_file=str(directory / "jwks.json"),
        claims=JwtClaims(namespaces="namespaces"),
    )
    settings = settings_in(directory)
    http_settings = msgspec.structs.replace(settings.http, socket=str(directory / "http.sock"), jwt=jwt)
    with running(directory, msgspec.structs.replace(settings, http=http_settings)) as api:
        yield World(api, directory)


@pytest.fixture(scope="module")
def world_with_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    directory = tmp_path_factory.mktemp("t", numbered=True)
    served = Served(directory)
    with running(directory, served.settings) as served.api:
        world = World(served.api, directory, served)
        yield world
        for connection in world.kept.values():
            connection.close()


# -- ways in ----------------------------------------------------------------------------------------------------------


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=20)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(20)
        self.sock.connect(str(self._path))


class Way(NamedTuple):
    """A way in: a connection, and the headers that prove an identity."""

    name: str
    connect: Callable[[World, Identity], http.client.HTTPConnection]
    headers: Callable[[Identity], dict[str, str]]
    world: str = "world"  # the fixture
    is_kept: bool = False  # the connection, for the next request


def _tcp(world: World, identity: Identity) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", world.api.port, timeout=20)


def _bearer(identity: Identity) -> dict[str, str]:
    return {"Authorization": f"Bearer {identity.token}"}


WAYS: Final = (
    Way("token over tcp", _tcp, _bearer),
    Way("token on the Unix socket", lambda world, _: _UnixConnection(world.socket_path), _bearer),
    Way("signed token", _tcp, lambda identity: {"Authorization": f"Bearer {identity.jwt}"}),
    Way("certificate", World.encrypted, lambda _: {}, world="world_with_tls", is_kept=True),
)


OWN_USER: Final = Way(  # the kernel names it, and it has every scope and namespace
    "own user on the Unix socket", lambda world, _: _UnixConnection(world.socket_path), lambda _: {}
)


@pytest.fixture
def place_of(request: pytest.FixtureRequest) -> Callable[[Way], World]:
    """Return the world of a way."""

    def find(way: Way) -> World:
        found: World = request.getfixturevalue(way.world)
        return found

    return find


# -- requests ---------------------------------------------------------------------------------------------------------

# The body or the query of each operation that needs one, for a place.
BODIES: Final[dict[tuple[str, str], Callable[[Place], Any]]] = {
    ("POST", "/v1/tasks"): lambda at: {"namespace": at.namespace, "workflow": at.workflow},
    ("POST", "/v1/tasks/batch"): lambda at: {"tasks": [{"namespace": at.namespace, "workflow": at.workflow}]},
    ("POST", "/v1/workflows"): lambda at: {
        "namespace": at.namespace,
        "name": "made",
        "steps": [{"name": "pay", "handler_class": "pay"}],
    },
    ("POST", "/v1/rules"): lambda at: {"match": f"{at.namespace}::**", "executor": "bus"},
    ("POST", "/v1/rules/remove"): lambda at: {"match": f"{at.namespace}::**"},
    ("POST", "/v1/lanes/{lane}/move"): lambda at: {"to": "b9"},
    ("POST", "/v1/breakers/{handler_class}"): lambda at: {"state": "auto"},
    ("POST", "/v1/tasks/{task_id}/erase"): lambda at: {"reason": "matrix"},
    ("POST", "/v1/steps/{step_id}/resolve"): lambda at: {"outcome": "retry", "reason": "matrix"},
}
QUERIES: Final[dict[tuple[str, str], Callable[[Place], str]]] = {
    ("GET", "/v1/workflows/{name}"): lambda at: f"namespace={at.namespace}",
    ("POST", "/v1/workflows/{name}/activate"): lambda at: f"namespace={at.namespace}&version=1",
    ("GET", "/v1/route"): lambda at: f"path={at.namespace}::{at.workflow}::pay",
    ("GET", "/v1/events"): lambda at: "after=0",
}


def path_of(method: str, path: str, at: Place) -> str:
    name = at.workflow if path.startswith("/v1/workflows") else "pay"
    filled = (
        path.replace("{task_id}", str(at.task_id))
        .replace("{step_id}", str(at.step_id))
        .replace("{name}", name)
        .replace("{worker}", "w:0")
        .replace("{executor}", "bus")
        .replace("{lane}", "9")
        .replace("{handler_class}", f"{at.namespace}.pay")
    )
    query = QUERIES.get((method, path))
    return filled if query is None else f"{filled}?{query(at)}"


def send(world: World, way: Way, identity: Identity, method: str, path: str, at: Place) -> Answer:
    body = BODIES.get((method, path))
    data = None if body is None else json.dumps(body(at))
    if data is None and method == "POST":
        data = "{}"
    headers = {**way.headers(identity), **({} if data is None else {"Content-Type": "application/json"})}
    connection = way.connect(world, identity)
    is_kept = False
    try:
        connection.request(method, path_of(method, path, at), data, headers)
        answer = connection.getresponse()
        is_open = answer.status == 200
        if is_open and path == "/v1/tap":
            received = b""  # the stream has no end
        else:
            received = _until_own_events(world, answer) if is_open and path == "/v1/events" else answer.read()
            is_kept = way.is_kept and not (is_open and path == "/v1/events")
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, received)
    finally:
        if not is_kept:
            connection.close()  # the next request connects again


def _until_own_events(world: World, answer: http.client.HTTPResponse) -> bytes:
    received = b""
    while f'"task_id":{world.own.task_id},'.encode() not in received:
        part = answer.read1(65_536)
        assert part, received
        received += part
    return received


# -- the matrix -------------------------------------------------------------------------------------------------------

ASKED: Final = [key for key, operation in OPERATIONS.items() if operation.scope is not None]


def test_every_operation_declares_a_scope_and_a_namespace_rule() -> None:
    assert [key for key, operation in OPERATIONS.items() if not operation.scopes] == [("GET", "/livez")]
    assert [key for key in OPERATIONS if declared_rule(*key) is None] == []


def test_an_operation_without_a_rule_is_closed_to_tokens_with_namespaces() -> None:
    assert rule_of("GET", "/v1/new") is NamespaceRule.WHOLE


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
@pytest.mark.parametrize(("method", "path"), ASKED)
def test_an_identity_reaches_only_its_scopes_and_its_namespaces(
    place_of: Callable[[Way], World], method: str, path: str, way: Way
) -> None:
    world = place_of(way)
    needed = OPERATIONS[method, path].scopes
    before = world.state_of_foreign()
    for scope, identity in world.identities.items():
        missing = [each for each in needed if not includes({scope}, each)]
        for at in (world.own, world.foreign):
            answer = send(world, way, identity, method, path, at)
            where = (scope, at.namespace, answer)
            if missing:
                assert (answer.status, answer.code) == (403, "scope_missing"), where
                assert f"`{missing[0]}`" in answer.json["detail"], where
            else:
                _check(world, way, identity, (method, path), at, answer)
            if at is world.own:
                assert FOREIGN.encode() not in answer.body, where
    assert world.state_of_foreign() == before


def _check(world: World, way: Way, identity: Identity, key: tuple[str, str], at: Place, answer: Answer) -> None:
    rule, where = declared_rule(*key), (at.namespace, answer)
    match rule:
        case NamespaceRule.WHOLE:
            assert (answer.status, answer.code) == (404, "not_found"), where
        case NamespaceRule.OF_TASK | NamespaceRule.OF_STEP | NamespaceRule.NAMED if at is world.foreign:
            assert (answer.status, answer.code) == (404, "not_found"), where
            same = send(world, way, identity, *key, world.missing)
            assert _neutral(answer) == _neutral(same)
        case NamespaceRule.FILTERED:
            assert answer.status == 200, where
            assert FOREIGN.encode() not in answer.body, where
            assert OWN.encode() in answer.body, where
        case _:
            assert answer.status not in (401, 403, 404, 500, 503), where


def _neutral(answer: Answer) -> tuple[int, str]:
    """An answer without the numbers and names that the request has."""
    text = answer.body.decode()
    return answer.status, re.sub(r"\d+", "#", re.sub(f"{FOREIGN}|{MISSING}", "-", text))


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_the_tap_is_closed_to_an_identity_with_namespaces(place_of: Callable[[Way], World], way: Way) -> None:
    world = place_of(way)
    answer = send(world, way, world.tapper, "GET", "/v1/tap", world.own)
    assert (answer.status, answer.code) == (404, "not_found")


@pytest.mark.parametrize("way", [*WAYS, OWN_USER], ids=lambda way: way.name)
def test_an_identity_for_all_namespaces_reaches_both(place_of: Callable[[Way], World], way: Way) -> None:
    world = place_of(way)
    for at in (world.own, world.foreign):
        assert send(world, way, world.whole, "GET", "/v1/tasks/{task_id}", at).status == 200


def test_a_filter_for_a_foreign_namespace_finds_nothing(world: World) -> None:
    headers: dict[str, str | None] = {"Authorization": f"Bearer {world.identities[Scope.READ].token}"}
    for path, member in (
        (f"/v1/tasks?namespace={FOREIGN}", "tasks"),
        (f"/v1/tasks?label=of={FOREIGN}", "tasks"),
        (f"/v1/workflows?namespace={FOREIGN}", "workflows"),
        (f"/v1/steps?handler_class={FOREIGN}.pay", "steps"),
    ):
        assert world.api.call("GET", path, headers=headers).json[member] == [], path


def test_the_number_of_a_foreign_step_is_not_described(world: World) -> None:
    headers: dict[str, str | None] = {"Authorization": f"Bearer {world.identities[Scope.READ].token}"}
    answer = world.api.call("GET", f"/v1/tasks/{world.foreign.step_id}", headers=headers)
    assert answer.json["detail"] == f"there is no task {world.foreign.step_id}"
    own = world.api.call("GET", f"/v1/tasks/{world.own.step_id}", headers=headers)
    assert f"is the step `pay` of task {world.own.task_id}" in own.json["detail"]
