"""The files that an https:// address needs: the authorities that the client trusts, and its own certificate."""

import os
from typing import TYPE_CHECKING, Final, NamedTuple

from stepwire.errors import ConfigurationError

if TYPE_CHECKING:
    import ssl

CA_FILE: Final = "STEPWIRE_CA_FILE"
CLIENT_CERT_FILE: Final = "STEPWIRE_CLIENT_CERT_FILE"
CLIENT_KEY_FILE: Final = "STEPWIRE_CLIENT_KEY_FILE"


class TlsFiles(NamedTuple):
    """`ca_file` replaces the authorities of the system: only they may have issued the broker's certificate.
    `cert_file` and `key_file` are the client's own."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None

    def context(self) -> "ssl.SSLContext":
        """A context that checks the broker's certificate and its name. Raises ConfigurationError."""
        import ssl  # slow to import, and seldom needed

        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except OSError as error:
            reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
            raise ConfigurationError(
                f"the file of authorities {self.ca_file!r} ({CA_FILE}) cannot be used: {str(reason).lower()}"
            ) from None
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.cert_file is not None or self.key_file is not None:
            self._load_own(context)
        return context

    def _load_own(self, context: "ssl.SSLContext") -> None:
        import ssl

        if self.cert_file is None or self.key_file is None:
            raise ConfigurationError(f"a client certificate needs both {CLIENT_CERT_FILE} and {CLIENT_KEY_FILE}")
        try:
            context.load_cert_chain(self.cert_file, self.key_file, password="")
        except OSError as error:
            reason = getattr(error, "reason", None) if isinstance(error, ssl.SSLError) else error.strerror
            raise ConfigurationError(
                f"the client certificate {self.cert_file!r} with the key {self.key_file!r} cannot be used: "
                f"{str(reason or error).lower()}"
            ) from None


NO_FILES: Final = TlsFiles()


def tls_files(
    ca_file: str | os.PathLike[str] | None,
    cert_file: str | os.PathLike[str] | None,
    key_file: str | os.PathLike[str] | None,
) -> TlsFiles:
    """The named files, or those of the environment."""
    return TlsFiles(_named(ca_file, CA_FILE), _named(cert_file, CLIENT_CERT_FILE), _named(key_file, CLIENT_KEY_FILE))


def _named(file: str | os.PathLike[str] | None, variable: str) -> str | None:
    return os.fspath(file) if file is not None else os.environ.get(variable) or None
