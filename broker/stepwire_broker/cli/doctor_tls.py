"""The findings of `stepwire doctor` about TLS and signed tokens: the files of `http.tls`, and `http.jwt`."""

import time
from collections.abc import Iterator

from stepwire_broker.core.definitions.settings import HttpSettings
from stepwire_broker.timestamps import rfc3339

from .finding import Finding

ABOUT = "http.tls"
_RENEW = "replace both files: a running broker reads them within a minute, or at HUP"


def tls(http: HttpSettings) -> Iterator[Finding]:
    from stepwire_broker.api.tls_files import TlsError, open_certificates
    from stepwire_broker.api.tls_watch import ends_soon

    try:
        certificates = open_certificates(http.tls)
    except TlsError as error:
        yield Finding(
            "red", ABOUT, str(error), "a running broker keeps the former certificate until the files are valid"
        )
        return
    if certificates is None:
        return
    reading, now_ms = certificates.current, time.time_ns() // 1_000_000
    expires = rfc3339(reading.expires_ms)
    if reading.expires_ms <= now_ms:
        yield Finding("red", ABOUT, f"the certificate {http.tls.cert_file} expired at {expires}", _RENEW)
    elif reading.begins_ms > now_ms:
        text = f"the certificate {http.tls.cert_file} is not valid before {rfc3339(reading.begins_ms)}"
        yield Finding("red", ABOUT, text, "check the clock of this host, and of the host that made the certificate")
    elif ends_soon(reading, now_ms):
        yield Finding("warning", ABOUT, f"the certificate {http.tls.cert_file} expires at {expires}", _RENEW)
    else:
        clients = "" if http.tls.client_ca_file is None else f"; clients of {http.tls.client_ca_file} may sign in"
        yield Finding(
            "ok", ABOUT, f"requests need TLS and a proof of identity; the certificate expires at {expires}{clients}"
        )


def jwt(http: HttpSettings) -> Iterator[Finding]:
    """The settings of signed tokens. The issuer's keys are read by the start of a broker only."""
    from stepwire_broker.api import jwt_keys

    if not http.jwt.is_on:
        return
    try:
        jwt_keys.check(http.jwt)
    except jwt_keys.JwtError as error:
        yield Finding("red", "http.jwt", str(error))
    else:
        yield Finding("ok", "http.jwt", f"signed tokens of {http.jwt.issuer} are accepted")
