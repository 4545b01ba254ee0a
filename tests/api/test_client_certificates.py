"""Client certificates as principals, on real sockets: who is admitted, as whom, and when access ends."""

import http.client
import json
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from stepwire.client import Client
from stepwire.errors import ConfigurationError
from stepwire_broker.api import token
from stepwire_broker.api.token import TokenError, Tokens
from stepwire_broker.core.answers.via import Via
from stepwire_broker.core.definitions.settings import TlsSettings

from tests.certificates import CLIENT, LOCAL, SERVER, Authority

from .running_api import TOKEN, WORKFLOW, Answer, Api, running, settings_in
from .test_limits import until
from .test_tls import LIMITS, LOOPBACK, with_tls

CI, SHOP, URI = x509.DNSName("ci.example"), x509.DNSName("shop.example"), "spiffe://example/shop"
LINES = (
    TOKEN,
    "cert:ci.example name=ci scopes=read,submit",
    f"cert:{URI} scopes=work handlers=shop.**",
    "cert:ops@example.org name=ops scopes=admin",
    "cert:old.example name=old scopes=read expires=2020-01-01T00:00:00Z",
)


class Served:
    def __init__(self, directory: Path) -> None:
        directory.chmod(0o700)
        self.directory = directory
        self.authority = Authority(directory)
        self.clients = Authority(directory, "clients")
        cert, key = self.authority.issue("server", *LOCAL, LOOPBACK)
        self.settings = with_tls(settings_in(directory), TlsSettings(str(cert), str(key), str(self.clients.file)))
        self.api: Api

    def write(self, *lines: str) -> None:
        token._write(self.api.tokens.file, "\n".join(lines) + "\n")

    def issue(self, *names: x509.GeneralName, **options: Any) -> tuple[Path, Path]:
        return self.clients.issue("client", *names, **options)

    def context(self, files: tuple[Path, Path] | None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.authority.file))
        if files is not None:
            context.load_cert_chain(*files)
        return context

    def call(self, files: tuple[Path, Path] | None, path: str = "/readyz", body: Any = None, **headers: str) -> Answer:
        connection = http.client.HTTPSConnection("localhost", self.api.port, timeout=20, context=self.context(files))
        data = None if body is None else json.dumps(body)
        said = {"Content-Type": "application/json"} if data else {}
        connection.request("GET" if data is None else "POST", path, data, {**said, **headers})
        answer = connection.getresponse()
        found = Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        connection.close()
        return found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("served")
    served = Served(directory)
    with running(directory, served.settings, LIMITS._replace(head_s=20.0)) as served.api:
        served.write(*LINES)
        served.api.on_loop(served.api.tokens.reload)
        yield served


@pytest.mark.parametrize("names", [(CI,), (x509.DNSName("CI.Example"),), (x509.DNSName("ci-1.example"), CI)])
def test_a_certificate_with_the_name_of_a_line_has_its_scopes(
    served: Served, names: tuple[x509.GeneralName, ...]
) -> None:
    files = served.issue(*names)
    assert served.call(files).status == 200
    refused = served.call(files, "/v1/workflows", WORKFLOW)
    assert (refused.status, refused.code) == (403, "scope_missing")
    assert "'ci'" in refused.json["detail"]


def test_the_name_of_the_line_is_written_into_the_history(served: Served) -> None:
    files = served.issue(x509.RFC822Name("ops@example.org"))
    assert served.call(files, "/v1/workflows", WORKFLOW).status == 201
    task = served.call(files, "/v1/tasks", {"workflow": "order"}).json["task_id"]
    assert served.call(files, f"/v1/tasks/{task}/cancel", {"reason": "a test"}).status < 300
    assert "ops" in json.dumps(served.call(files, f"/v1/tasks/{task}").json)


def test_a_worker_belongs_to_its_certificate(served: Served) -> None:
    files = served.issue(x509.UniformResourceIdentifier(URI))
    grant = served.api.tokens.of_certificate((URI,))[0]
    assert grant.of_workers.principal == f"certificate:cert:{URI}"
    assert served.call(files).status == 403  # the line has the scope `work` only


REFUSED: dict[str, tuple[tuple[x509.GeneralName, ...], str]] = {
    "a name without a line": ((SHOP,), "certificate_unknown"),
    "no name": ((), "certificate_without_name"),
    "an address only": ((LOOPBACK,), "certificate_without_name"),
    "two names of two lines": ((CI, x509.RFC822Name("ops@example.org")), "certificate_ambiguous"),
    "a line that has expired": ((x509.DNSName("old.example"),), "certificate_expired"),
    "a wildcard": ((x509.DNSName("*.example"),), "certificate_unknown"),
}


@pytest.mark.parametrize("about", REFUSED)
def test_a_certificate_without_a_matching_line_is_refused_with_a_code(served: Served, about: str) -> None:
    names, code = REFUSED[about]
    answer = served.call(served.issue(*names))
    assert (answer.status, answer.code) == (401, code)
    assert answer.json["hint"]


def test_the_common_name_is_no_identity(served: Served) -> None:
    files = served.clients.issue("ci.example")
    assert served.call(files).code == "certificate_without_name"


def test_certificates_that_were_not_made_for_clients_of_this_authority_are_refused(served: Served) -> None:
    others = {
        "of another authority": served.authority.issue("foreign", CI, usage=CLIENT),
        "expired": served.clients.issue("expired", CI, usage=CLIENT, lasts=timedelta(days=-1)),
    }
    others["for servers"] = served.clients.issue("server-only", CI, usage=SERVER)
    for files in others.values():
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
            served.call(files)
    until(lambda: _bad_handshakes(served) >= 3)


def _bad_handshakes(served: Served) -> int:
    connections = served.api.server._application.connections
    return int(served.api.on_loop(lambda: connections.refusals.counts["bad_handshake"]))


def test_a_token_in_the_request_goes_first(served: Served) -> None:
    files = served.issue(CI)
    workflow = {**WORKFLOW, "name": "by-token"}
    assert served.call(files, "/v1/workflows", workflow, Authorization=f"Bearer {TOKEN}").status == 201
    assert served.call(files, Authorization=f"Bearer {'x' * 43}").code == "unauthorized"
    assert served.call(served.issue(SHOP), Authorization=f"Bearer {TOKEN}").status == 200


def test_without_a_certificate_a_token_is_needed(served: Served) -> None:
    assert served.call(None).code == "unauthorized"
    assert served.call(None, Authorization=f"Bearer {TOKEN}").status == 200


@pytest.mark.parametrize("text", ["cert:ci.example", "CERT:ci.example", f"sha256:{'0' * 64}"])
def test_the_name_of_a_certificate_is_no_token(served: Served, text: str) -> None:
    assert served.call(None, Authorization=f"Bearer {text}").code == "unauthorized"


def test_a_removed_line_ends_open_waits_of_its_certificate(tmp_path: Path) -> None:
    served = Served(tmp_path)
    with running(tmp_path, served.settings) as served.api:
        served.write(*LINES)
        served.api.on_loop(served.api.tokens.reload)
        files = served.issue(x509.RFC822Name("ops@example.org"))
        assert served.call(files, "/v1/workflows", WORKFLOW).status == 201
        task = served.call(files, "/v1/tasks", {"workflow": "order"}).json["task_id"]
        answers: list[Answer] = []
        waiting = threading.Thread(target=lambda: answers.append(served.call(files, f"/v1/tasks/{task}?wait_ms=60000")))
        waiting.start()
        shares = served.api.server._application.shares
        until(lambda: bool(served.api.on_loop(lambda: shares.waits == 1)))
        served.write(*LINES[:3])
        waiting.join(20)
        assert (answers[0].status, answers[0].code) == (401, "unauthorized")
        assert served.call(files).code == "certificate_unknown"


def test_an_open_request_ends_with_its_certificate(served: Served) -> None:
    grant = served.api.tokens.of_certificate(("ci.example",))[0]
    assert served.api.tokens.is_valid(grant._replace(proof_ends_ms=2**60))
    assert not served.api.tokens.is_valid(grant._replace(proof_ends_ms=1))


def test_a_connection_that_is_reset_in_its_handshake_leaves_nothing(served: Served) -> None:
    connections = served.api.server._application.connections
    before = served.api.on_loop(lambda: connections.count)
    for _ in range(5):
        connection = served.api.raw()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.sendall(b"\x16\x03\x01")
        connection.close()
    until(lambda: bool(served.api.on_loop(lambda: connections.count <= before)))


# -- lines of the tokens file -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("cert: scopes=read", "must be followed by"),
        ("cert:*.example scopes=read", "must be followed by"),
        ("cert:10.0.0.1 scopes=read", "an address names a machine"),
        ("cert:ci.example", "needs scopes="),
        ("cert:ci.example scopes=everything", "scopes are"),
        ("cert:ci.example scopes=read colour=red", "'colour' is unknown"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, text: str) -> None:
    file = tmp_path / "tokens"
    token._write(file, f"{TOKEN}\n{line}\n")
    with pytest.raises(TokenError, match=text) as refused:
        Tokens(file)
    assert "line 2" in str(refused.value)


def test_a_command_sends_no_certificate_name_as_its_token(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    token._write(file, f"cert:a-very-long-name-of-a-client-certificate.example scopes=read\n{TOKEN}\n")
    assert token.first_token(file) == TOKEN


def test_a_line_says_how_its_principal_is_proven(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    token._write(file, f"{TOKEN}\ncert:ci.example scopes=read\n")
    assert [line.grant.via for line in token.read_lines(file)] == [Via.TOKEN, Via.CERTIFICATE]


# -- the client -------------------------------------------------------------------------------------------------------


def test_the_client_signs_in_with_its_certificate(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cert, key = served.issue(CI)
    url = f"https://localhost:{served.api.port}"
    with Client(url, ca_file=served.authority.file, cert_file=cert, key_file=key, outage_s=0) as client:
        assert client.readiness()["ready"]
    monkeypatch.setenv("STEPWIRE_CA_FILE", str(served.authority.file))
    monkeypatch.setenv("STEPWIRE_CLIENT_CERT_FILE", str(cert))
    with pytest.raises(ConfigurationError, match="needs both"):
        Client(url)
    monkeypatch.setenv("STEPWIRE_CLIENT_KEY_FILE", str(key))
    with Client(url, outage_s=0) as client:
        assert client.readiness()["ready"]
    monkeypatch.setenv("STEPWIRE_CLIENT_KEY_FILE", str(tmp_path / "missing"))
    with pytest.raises(ConfigurationError, match="missing"):
        Client(url)
