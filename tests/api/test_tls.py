"""TLS on real sockets: what is served, how files are replaced, and the limits of connections before the handshake."""

import http.client
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path

import msgspec
import pytest
from cryptography import x509
from stepwire.client import Client, Unreachable
from stepwire.errors import ConfigurationError
from stepwire_broker.api import listening, tls_files, tls_watch
from stepwire_broker.api.limits import DEFAULT
from stepwire_broker.api.tls_files import TlsError
from stepwire_broker.core.definitions.settings import HttpSettings, Settings, TlsSettings

from tests.certificates import LOCAL, Authority, replace

from .running_api import Api, running, settings_in
from .test_limits import ends, until

LOOPBACK = x509.IPAddress(ip_address("127.0.0.1"))
LIMITS = DEFAULT._replace(connections=12, strangers=6, head_s=0.3)


class Served:
    """A broker with TLS, and its authority."""

    def __init__(self, directory: Path) -> None:
        directory.chmod(0o700)
        self.authority = Authority(directory)
        self.cert, self.key = self.authority.issue("server", *LOCAL, LOOPBACK)
        self.settings = with_tls(settings_in(directory), TlsSettings(str(self.cert), str(self.key)))
        self.api: Api

    @property
    def certificates(self) -> tls_files.Certificates:
        return tls_files.Certificates(self.settings.http.tls)

    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.authority.file))

    def call(self, path: str, host: str = "localhost") -> http.client.HTTPResponse:
        connection = http.client.HTTPSConnection("127.0.0.1", self.api.port, timeout=20, context=self.context())
        connection.request("GET", path, headers={"Authorization": f"Bearer {self.api.token}", "Host": host})
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer

    def serial(self) -> str:
        """The serial number of the certificate that a new connection gets."""
        plain = socket.create_connection(("127.0.0.1", self.api.port), timeout=20)
        with self.context().wrap_socket(plain, server_hostname="localhost") as connection:
            certificate = connection.getpeercert()
            assert certificate is not None
            return str(certificate["serialNumber"])


def with_tls(settings: Settings, tls: TlsSettings) -> Settings:
    return msgspec.structs.replace(settings, http=msgspec.structs.replace(settings.http, tls=tls))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path)
    with running(tmp_path, served.settings, LIMITS) as served.api:
        yield served


def test_requests_are_answered_over_https_only(served: Served) -> None:
    assert served.call("/readyz").status == 200
    with pytest.raises((http.client.HTTPException, OSError)):
        served.api.call("GET", "/livez")


def test_a_name_of_the_certificate_is_a_name_of_the_broker(served: Served) -> None:
    assert served.call("/readyz", host="broker.example").status == 200
    assert served.call("/readyz", host="elsewhere.example").status == 403


@pytest.mark.parametrize(("version", "is_served"), [(ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True)])
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_no_version_before_1_2_is_served(served: Served, version: ssl.TLSVersion, is_served: bool) -> None:
    context = served.context()
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version
    with socket.create_connection(("127.0.0.1", served.api.port), timeout=20) as plain:
        if is_served:
            context.wrap_socket(plain, server_hostname="localhost").close()
        else:
            with pytest.raises((ssl.SSLError, ConnectionResetError)):
                context.wrap_socket(plain, server_hostname="localhost")


# -- files ------------------------------------------------------------------------------------------------------------


def check(api: Api) -> bool:
    """Let the broker look at the files, as it does every minute."""
    assert api.server._handshakes is not None
    return bool(api.on_loop(api.server._handshakes.certificates.check))


def test_new_connections_get_a_replaced_certificate_and_open_ones_stay(served: Served) -> None:
    before = served.serial()
    connection = http.client.HTTPSConnection("127.0.0.1", served.api.port, timeout=20, context=served.context())
    connection.request("GET", "/readyz", headers={"Authorization": f"Bearer {served.api.token}"})
    assert connection.getresponse().read()
    opened = connection.sock
    served.authority.issue("server", *LOCAL, LOOPBACK)
    assert check(served.api)
    assert served.serial() != before
    connection.request("GET", "/readyz", headers={"Authorization": f"Bearer {served.api.token}"})
    assert connection.getresponse().read()
    assert connection.sock is opened is not None


def _foreign_key(served: Served) -> None:
    other = Path(shutil.copy(served.cert, served.cert.with_name("kept")))
    served.authority.issue("server", *LOCAL)
    replace(served.cert, other.read_bytes())


BROKEN: dict[str, tuple[Callable[[Served], object], str]] = {
    "a key of another certificate": (_foreign_key, "do not belong together"),
    "no certificate": (lambda served: replace(served.cert, b"nothing\n"), "holds no certificate in PEM"),
    "half a certificate": (lambda served: replace(served.cert, served.cert.read_bytes()[:200]), "in PEM"),
    "no file": (lambda served: served.key.unlink(), "cannot be read: No such file or directory"),
    "a key that others can read": (lambda served: served.key.chmod(0o640), "can be read by others: chmod 600"),
}


@pytest.mark.parametrize("about", BROKEN)
def test_broken_files_change_nothing_and_are_named(served: Served, about: str) -> None:
    breaks, text = BROKEN[about]
    before = served.serial()
    breaks(served)
    if about == "a key that others can read":
        served.key.write_bytes(served.key.read_bytes())  # a change of the mode alone is no change of the file
    with pytest.raises(TlsError, match=text):
        check(served.api)
    assert served.serial() == before
    assert served.call("/readyz").status == 200
    with pytest.raises(listening.ListenError, match=text):  # a start is refused with the same words
        listening.certificates_of(served.settings.http)


def test_a_key_with_a_passphrase_is_refused_without_a_question(tmp_path: Path) -> None:
    served = Served(tmp_path)
    from cryptography.hazmat.primitives import serialization as form

    key = form.load_pem_private_key(served.key.read_bytes(), None)
    encryption = form.BestAvailableEncryption(b"secret")
    replace(served.key, key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, encryption))
    with pytest.raises(TlsError, match="encrypted with a passphrase"):
        _ = served.certificates


@pytest.mark.parametrize(
    ("tls", "text"),
    [
        (TlsSettings(cert_file="c"), r"http\.tls\.key_file is not"),
        (TlsSettings(key_file="k"), r"http\.tls\.cert_file is not"),
        (TlsSettings(client_ca_file="a"), "client_ca_file needs"),
    ],
)
def test_half_of_the_settings_is_refused(tls: TlsSettings, text: str) -> None:
    with pytest.raises(listening.ListenError, match=text):
        listening.certificates_of(HttpSettings(tls=tls))


def test_other_machines_may_reach_an_address_with_tls() -> None:
    with pytest.raises(listening.ListenError, match=r"http\.tls\.cert_file"):
        listening.check_listen(HttpSettings(listen="0.0.0.0:7410"))
    assert listening.check_listen(HttpSettings(listen="0.0.0.0:7410", tls=TlsSettings("c", "k"))) is not None


# -- limits before the handshake --------------------------------------------------------------------------------------


def test_a_connection_that_does_not_shake_hands_is_closed(served: Served) -> None:
    with served.api.raw() as silent, served.api.raw() as slow:
        slow.sendall(b"\x16\x03\x01\x02\x00")
        assert ends(silent)
        assert ends(slow)
    until(lambda: counted(served, "slow_handshake") == 2)


def test_too_many_handshakes_close_the_oldest_and_new_clients_are_served(tmp_path: Path) -> None:
    served = Served(tmp_path)
    with running(tmp_path, served.settings, LIMITS._replace(head_s=60.0)) as served.api:
        silent = [served.api.raw() for _ in range(LIMITS.strangers + 4)]
        assert served.call("/readyz").status == 200
        assert all(ends(each) for each in silent[:4])
        assert counted(served, "strangers") >= 4
        for each in silent:
            each.close()
        until(lambda: counted(served, "open") == 0)


def test_surplus_handshakes_are_refused_and_tokens_and_their_addresses_do_not_count(tmp_path: Path) -> None:
    served = Served(tmp_path)
    with running(tmp_path, served.settings, DEFAULT._replace(strangers_per_s=1)) as served.api:

        def is_refused(source: str) -> bool:
            address = ("127.0.0.1", served.api.port)
            with socket.create_connection(address, timeout=20, source_address=(source, 0)) as plain:
                try:
                    served.context().wrap_socket(plain, server_hostname="localhost").close()
                except (ssl.SSLEOFError, ConnectionResetError):
                    return True
            return False

        for _ in range(20):  # more than the limit of two at once
            assert served.call("/readyz").status == 200
        assert any(is_refused("127.0.0.2") for _ in range(200))
        for _ in range(20):
            assert served.call("/readyz").status == 200
        assert any(is_refused("127.0.0.1") for _ in range(200))  # without a token, this address is limited as well
        until(lambda: counted(served, "strangers_per_s") >= 2)


def test_bytes_that_are_no_handshake_end_the_connection(served: Served) -> None:
    with served.api.raw() as stranger:
        stranger.sendall(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert ends(stranger)
    until(lambda: counted(served, "bad_handshake") == 1)
    assert served.call("/livez").status == 200


def test_a_request_in_the_last_message_of_the_handshake_is_answered(served: Served) -> None:
    """The client sends its request together with the end of its handshake, in one segment."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = served.context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with served.api.raw() as connection:
        with pytest.raises(ssl.SSLWantReadError):
            client.do_handshake()
        connection.sendall(outgoing.read())
        while True:
            incoming.write(connection.recv(65536))
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                continue
        client.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        connection.sendall(outgoing.read())
        answer = b""
        while b"alive" not in answer:
            incoming.write(connection.recv(65536))
            try:
                answer += client.read(65536)
            except ssl.SSLWantReadError:
                continue
        assert answer.startswith(b"HTTP/1.1 200")


def test_a_stop_ends_the_handshakes(tmp_path: Path) -> None:
    served = Served(tmp_path)
    with running(tmp_path, served.settings, LIMITS._replace(head_s=600.0)) as served.api:
        silent = served.api.raw()
    assert ends(silent)
    silent.close()


def counted(served: Served, name: str) -> int:
    """A count of the broker's connections: closed by this limit, or open now."""
    connections = served.api.server._application.connections
    if name == "open":
        return int(served.api.on_loop(lambda: connections.count))
    return int(served.api.on_loop(lambda: connections.refusals.counts[name]))


# -- the client -------------------------------------------------------------------------------------------------------


def test_the_client_trusts_the_named_authority_only(served: Served, tmp_path: Path) -> None:
    url = f"https://localhost:{served.api.port}"
    with Client(url, token=served.api.token, ca_file=served.authority.file, outage_s=0) as client:
        assert client.readiness()["ready"]
    other = Authority(tmp_path, "other")
    for ca_file in (None, other.file):
        client = Client(url, token=served.api.token, ca_file=ca_file, outage_s=0)
        with client, pytest.raises(Unreachable, match="certificate verify failed"):
            client.workers()


def test_the_client_refuses_a_certificate_of_another_name(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served.authority.issue("server", x509.DNSName("elsewhere.example"))
    assert check(served.api)
    monkeypatch.setenv("STEPWIRE_CA_FILE", str(served.authority.file))
    client = Client(f"https://localhost:{served.api.port}", token=served.api.token, outage_s=0)
    with client, pytest.raises(Unreachable, match="Hostname mismatch"):
        client.workers()


def test_a_file_without_authorities_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for name in ("empty", "missing"):
        with pytest.raises(ConfigurationError, match=name):
            Client("https://localhost:1", ca_file=tmp_path / name)


def test_an_expired_certificate_is_seen(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("server", *LOCAL, lasts=timedelta(days=-1))
    reading = tls_files.read(TlsSettings(str(cert), str(key)))
    assert reading.begins_ms < reading.expires_ms < time.time_ns() // 1_000_000
    assert tls_watch.ends_soon(reading, reading.expires_ms - 13 * tls_watch.DAY_MS)
    assert not tls_watch.ends_soon(reading, reading.expires_ms - 15 * tls_watch.DAY_MS)
