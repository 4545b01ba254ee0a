"""Without a token: 2,100 connections that send nothing, or the beginning of a head."""

from .clients import keep_open
from .target import Target


def attack(target: Target, seconds: float) -> dict[str, int]:
    return keep_open(target, 2_100, [b"", b"GET /readyz HTTP/1.1\r\nHost: local"], seconds)
