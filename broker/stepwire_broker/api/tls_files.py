"""The files of `http.tls`: read at the start, when they are replaced, and at HUP.

Each reading makes a new context, which counts for the handshakes from then on. If a file is missing, readable by others
or does not fit the others, the former context stays, so that a half-finished replacement interrupts nothing.
"""

import ssl
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from stepwire_broker.core.definitions.settings import TlsSettings
from stepwire_broker.errors import BrokerError

from .token import TokenError, read_private

HOSTS_OF_TYPES: Final = ("DNS", "IP Address")


class TlsError(BrokerError):
    """A file of `http.tls` cannot be used. The message names the setting, the file, the fault and the remedy."""


class CertificateReading(NamedTuple):
    """The content of the files at one moment."""

    context: ssl.SSLContext
    names: tuple[str, ...]  # of this broker, in its certificate
    begins_ms: int
    expires_ms: int


class Certificates:
    """`current` is replaced as a whole. `check` may run in a thread, but only one call at a time."""

    def __init__(self, settings: TlsSettings) -> None:
        """Raises TlsError."""
        self._settings = settings
        self._marks = _marks(settings)
        self.current = read(settings)

    @property
    def context(self) -> ssl.SSLContext:
        return self.current.context

    def check(self) -> bool:
        """Read the files again if one of them has changed, and return whether one has. Raises TlsError once for each
        change that cannot be used."""
        marks = _marks(self._settings)
        if marks == self._marks:
            return False
        self._marks = marks
        self.current = read(self._settings)
        return True

    def read(self) -> CertificateReading:
        """Read the files without using them. Raises TlsError."""
        return read(self._settings)

    def use(self, reading: CertificateReading) -> None:
        self._marks = _marks(self._settings)
        self.current = reading


def open_certificates(settings: TlsSettings) -> Certificates | None:
    """The certificates of `http.tls`; None without this setting. Raises TlsError."""
    if settings.is_on:
        return Certificates(settings)
    if settings.client_ca_file is not None:
        raise TlsError("http.tls.client_ca_file needs http.tls.cert_file and http.tls.key_file")
    return None


def read(settings: TlsSettings) -> CertificateReading:
    """Read and check the files. Raises TlsError."""
    cert_file, key_file = settings.cert_file, settings.key_file
    if cert_file is None or key_file is None:
        missing, given = ("cert_file", "key_file") if cert_file is None else ("key_file", "cert_file")
        raise TlsError(f"http.tls.{given} is set, and http.tls.{missing} is not: TLS needs both")
    certificate = _decoded("cert_file", cert_file)
    try:
        read_private(Path(key_file))
    except TokenError as error:
        raise TlsError(f"http.tls.key_file: {error}") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(cert_file, key_file, password=_refuse_passphrase)
    except OSError as error:  # an SSLError is one
        raise TlsError(_text_of_pair(settings, error)) from None
    if settings.client_ca_file is not None:
        _accept_clients(context, settings.client_ca_file)
    names = tuple(name for kind, name in certificate.get("subjectAltName", ()) if kind in HOSTS_OF_TYPES)
    return CertificateReading(context, names, _ms(certificate["notBefore"]), _ms(certificate["notAfter"]))


def _accept_clients(context: ssl.SSLContext, file: str) -> None:
    """Ask clients for a certificate. One without a certificate needs a token."""
    context.verify_mode = ssl.CERT_OPTIONAL
    # A resumed session would skip the check of the certificate's expiry.
    context.options |= ssl.OP_NO_TICKET
    context.num_tickets = 0
    try:
        context.load_verify_locations(cafile=file)
    except OSError as error:
        raise TlsError(f"http.tls.client_ca_file: {file} holds no authority: {_reason(error)}") from None
    if not context.get_ca_certs():
        text = "holds no authority, which is a certificate that may sign others (CA:TRUE)"
        raise TlsError(f"http.tls.client_ca_file: {file} {text}")


def _decoded(setting: str, file: str) -> dict[str, Any]:
    """The first certificate of a file."""
    try:
        decoded: dict[str, Any] = ssl._ssl._test_decode_cert(file)  # type: ignore[attr-defined]
    except OSError as error:
        if not isinstance(error, ssl.SSLError):
            raise TlsError(f"http.tls.{setting}: {file} cannot be read: {_reason(error)}") from None
        raise TlsError(f"http.tls.{setting}: {file} holds no certificate in PEM: {_reason(error)}") from None
    return decoded


def _text_of_pair(settings: TlsSettings, error: OSError) -> str:
    pair = f"{settings.cert_file} and {settings.key_file}"
    if "KEY_VALUES_MISMATCH" in str(error):
        return f"http.tls: {pair} do not belong together: the key is that of another certificate"
    return f"http.tls: {pair} cannot be used: {_reason(error)}"


def _refuse_passphrase() -> NoReturn:
    raise TlsError(
        "http.tls.key_file is encrypted with a passphrase, and a broker cannot ask for it: store the key "
        "without one (openssl pkey -in KEY -out NEW), in a file with mode 0600"
    )


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (getattr(error, "reason", None) or str(error)).lower().replace("_", " ")
    return error.strerror or str(error)


def _ms(time: str) -> int:
    return int(ssl.cert_time_to_seconds(time)) * 1000


def _marks(settings: TlsSettings) -> list[tuple[int, int, int] | None]:
    """A value that differs after a file was replaced or changed."""
    return [_mark(file) for file in (settings.cert_file, settings.key_file, settings.client_ca_file)]


def _mark(file: str | None) -> tuple[int, int, int] | None:
    try:
        status = Path(file).stat() if file is not None else None
    except OSError:
        return None
    return None if status is None else (status.st_ino, status.st_size, status.st_mtime_ns)
