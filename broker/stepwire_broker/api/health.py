"""The routes for probes: `/livez` (the event loop runs) and `/readyz` (the broker accepts work)."""

from typing import Final

from msgspec import Struct

from .http import HttpCall
from .replies import Reply, encode


class Alive(Struct, frozen=True):
    alive: bool = True


class Readiness(Struct, frozen=True):
    ready: bool
    reasons: list[str]
    insecure: list[str]


LIVEZ: Final = "/livez"
ALIVE: Final = Reply(200, encode(Alive()))


async def livez(call: HttpCall) -> Reply:
    """Any answer proves that the event loop runs. The route needs no token, because the answer holds no data."""
    return ALIVE


async def readyz(call: HttpCall) -> Reply:
    """`insecure` does not affect `ready`: it names what is open to other users or hosts."""
    reasons, insecure = call.broker.readiness(), call.broker.insecure()
    if reasons:
        return Reply(503, encode(Readiness(False, reasons, insecure)), headers=((b"retry-after", b"1"),))
    return Reply(200, encode(Readiness(True, [], insecure)))
