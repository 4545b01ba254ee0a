"""The ways in which a request proves its principal."""

import enum


class Via(enum.StrEnum):
    TOKEN = "token"  # a line of a token file
    SOCKET = "socket"  # the Unix socket, where the kernel names the user
    CERTIFICATE = "certificate"  # a TLS client certificate that a line of a token file names
    JWT = "jwt"  # a signed token of an identity provider
