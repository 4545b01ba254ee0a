"""The principal of a connection with a TLS client certificate: its subject alternative name.

OpenSSL has checked the certificate at the handshake: signed by an authority of `http.tls.client_ca_file`, valid at that
time, and made for clients. The lines `cert:` of the token files say which names have which permissions.
"""

import ssl
from typing import Any, Final, NamedTuple

from .http_problems import HttpProblem
from .token import CERTIFICATE, Grant, Tokens

TYPES: Final = ("DNS", "URI", "email")
NAMES_SHOWN_MAX: Final = 3
_ELSE: Final = "or send a token: `Authorization: Bearer <token>`"


class ClientCertificate(NamedTuple):
    names: tuple[str, ...]
    ends_ms: int


def certificate_of(transport: Any) -> ClientCertificate | None:
    """The certificate that the client of this connection has proven to hold."""
    decoded = transport.get_extra_info("peercert")
    if not decoded:
        return None
    names = [name for kind, name in decoded.get("subjectAltName", ()) if kind in TYPES]
    return ClientCertificate(tuple(dict.fromkeys(names)), int(ssl.cert_time_to_seconds(decoded["notAfter"])) * 1000)


def grant_of(tokens: Tokens, certificate: ClientCertificate) -> Grant:
    """The permissions of the certificate. Raises HttpProblem."""
    if not certificate.names:
        raise _refused(
            "certificate_without_name",
            "the client certificate has no subject alternative name that is a DNS name, a URI or a mail address",
            f"use a certificate with such a name, {_ELSE}",
        )
    found = tokens.of_certificate(certificate.names)
    shown = ", ".join(repr(name[:100]) for name in certificate.names[:NAMES_SHOWN_MAX])
    if not found:
        raise _refused(
            "certificate_unknown",
            f"no line of the tokens file names the client certificate {shown}",
            f"add a line `{CERTIFICATE}<name> scopes=…`, {_ELSE}",
        )
    if len(found) > 1:
        names = ", ".join(grant.name for grant in found)
        raise _refused(
            "certificate_ambiguous",
            f"several lines of the tokens file name the client certificate {shown}: {names}",
            f"keep one line for each certificate, {_ELSE}",
        )
    grant = found[0]._replace(proof_ends_ms=certificate.ends_ms)
    if grant.has_expired:
        what = "the client certificate" if found[0].has_expired is False else f"the access of {grant.name}"
        raise _refused("certificate_expired", f"{what} has expired", f"renew it, {_ELSE}")
    return grant


def _refused(code: str, detail: str, hint: str) -> HttpProblem:
    return HttpProblem(401, code, detail, hint, headers=((b"www-authenticate", b'Bearer realm="stepwire"'),))
