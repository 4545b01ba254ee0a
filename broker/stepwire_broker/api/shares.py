"""The shares of the open requests, in total and by token: request slots, waits, streams and the bytes of bodies.

A request begins in a slot. A request that only waits leaves its slot and is counted as a wait. One token cannot take
everything, and a part of the slots is kept for operators and for workers.
"""

import asyncio
import enum
from collections.abc import Callable
from typing import Final

from .http_problems import HttpProblem
from .limits import MIB, HttpLimits
from .refusals import Refusals
from .token import Grant
from .token_rate import Allowances, retry_after_ms

RETRY_AFTER_MS: Final = 1_000
OF_BROKER: Final = "the broker"


class Purpose(enum.Enum):
    """The purpose of a request. Some slots are kept for the first two."""

    OPERATE = "operate"
    WORK = "work"
    OTHER = "other"


class _Owned:
    """The shares of one token."""

    __slots__ = ("body_bytes", "requests", "scanning", "streams", "waits")

    def __init__(self) -> None:
        self.scanning: asyncio.Lock | None = None
        self.requests = self.waits = self.streams = self.body_bytes = 0


class Shares:
    def __init__(self, limits: HttpLimits, refusals: Refusals) -> None:
        self.limits = limits
        self.refusals = refusals
        self.requests = self.waits = self.streams = self.body_bytes = 0
        self._kept = {
            Purpose.OPERATE: limits.requests_for_operators,
            Purpose.WORK: limits.requests_for_workers,
            Purpose.OTHER: limits.requests - limits.requests_for_operators - limits.requests_for_workers,
        }
        self._taken = dict.fromkeys(Purpose, 0)
        self._owned: dict[str, _Owned] = {}
        self._open: set[OpenRequest] = set()
        self.allowances = Allowances()

    def enter(self, grant: Grant, purpose: Purpose) -> "OpenRequest":
        """Take a slot. Raises HttpProblem. The caller calls `leave` when the request is answered."""
        for what in ("requests", "bytes"):
            self.check_rate(grant, what)
        owned = self._owned.setdefault(grant.name, _Owned())
        try:
            if owned.requests >= self.limits.requests_each:
                raise self.over("requests_of_token", grant.name, f"{self.limits.requests_each} requests at a time")
            slot = purpose if self._taken[purpose] < self._kept[purpose] else Purpose.OTHER
            if self._taken[slot] >= self._kept[slot]:
                raise self.over("requests", OF_BROKER, f"{self.limits.requests} requests at a time")
        except HttpProblem:
            self._forget(grant.name, owned)
            raise
        self._taken[slot] += 1
        self.requests += 1
        owned.requests += 1
        request = OpenRequest(self, grant, owned, slot)
        self._open.add(request)
        self.allowances.pay(grant.name, grant.rate, "requests", 1)
        return request

    def check_rate(self, grant: Grant, what: str) -> None:
        """Raise HttpProblem if the token has used more of this than its rate allows."""
        wait_s = self.allowances.wait_s(grant.name, grant.rate, what)
        if wait_s > 0:
            most = f"{getattr(grant.rate, what)} {what} per second"
            raise self.over(f"{what}_per_s_of_token", grant.name, most, retry_after_ms(wait_s))

    def end_revoked(self, is_valid: Callable[[Grant], bool]) -> None:
        """End the open requests whose token is not valid any longer."""
        for request in list(self._open):
            if not is_valid(request.grant):
                request.revoke()

    def over(self, limit: str, owner: str, most: str, retry_after_ms: int = RETRY_AFTER_MS) -> HttpProblem:
        """The refusal of a request that would exceed a limit, which is counted."""
        self.refusals.count(limit)
        return self.problem(limit, owner, most, retry_after_ms)

    @staticmethod
    def problem(limit: str, owner: str, most: str, retry_after_ms: int = RETRY_AFTER_MS) -> HttpProblem:
        whose = owner if owner == OF_BROKER else f"the token {owner!r}"
        return HttpProblem(
            429,
            "overloaded",
            f"{whose} has reached a limit: {most}",
            "send the request again later" if owner == OF_BROKER else "use fewer parallel requests, or another token",
            retry_after_ms=retry_after_ms,
            limit=limit,
            owner=owner,
        )

    def _forget(self, name: str, owned: _Owned) -> None:
        if not (owned.requests or owned.waits):
            self._owned.pop(name, None)


class OpenRequest:
    """One request, from its admission to its answer."""

    __slots__ = (
        "_body_bytes",
        "_is_stream",
        "_is_waiting",
        "_owned",
        "_revoked",
        "_shares",
        "_slot",
        "grant",
        "is_revoked",
    )

    def __init__(self, shares: Shares, grant: Grant, owned: _Owned, slot: Purpose) -> None:
        self.grant = grant
        self.is_revoked = False
        self._shares = shares
        self._owned = owned
        self._slot: Purpose | None = slot  # None: the request waits, or its answer is being sent
        self._is_waiting = False
        self._is_stream = False
        self._body_bytes = 0
        self._revoked: asyncio.Future[None] | None = None

    def pay(self, what: str, amount: int) -> None:
        """Count what the request has used towards the rate of its token."""
        self._shares.allowances.pay(self.grant.name, self.grant.rate, what, amount)

    def check_rate(self, what: str) -> None:
        """Raise HttpProblem if the token has used more of this than its rate allows."""
        self._shares.check_rate(self.grant, what)

    def wait(self) -> None:
        """From now on the request only waits: it leaves its slot. Raises HttpProblem."""
        shares, owned, limits = self._shares, self._owned, self._shares.limits
        if self._slot is None:
            return
        if owned.waits >= limits.waits_each:
            raise shares.over("waits_of_token", self.grant.name, f"{limits.waits_each} waiting requests at a time")
        if shares.waits >= limits.waits:
            raise shares.over("waits", OF_BROKER, f"{limits.waits} waiting requests at a time")
        self._leave_slot()
        self.release_body()
        shares.waits += 1
        owned.waits += 1
        self._is_waiting = True

    def answer(self) -> None:
        """From now on the request only waits until its client has accepted the answer."""
        if self._slot is not None:
            self._leave_slot()
        self.release_body()

    def stream(self) -> None:
        """From now on the request is a stream. Raises HttpProblem."""
        shares, owned, limits = self._shares, self._owned, self._shares.limits
        if owned.streams >= limits.streams_each:
            raise shares.over("streams_of_token", self.grant.name, f"{limits.streams_each} streams at a time")
        self.wait()
        self._is_stream = True
        shares.streams += 1
        owned.streams += 1

    def scanning(self) -> asyncio.Lock:
        """The lock for reads that may read many rows: each token runs one of them at a time."""
        if self._owned.scanning is None:
            self._owned.scanning = asyncio.Lock()
        return self._owned.scanning

    def reserve_body(self, size: int) -> None:
        """Reserve memory for a body of this size. For a body without a declared size, call this again as it grows.
        Raises HttpProblem.

        Of the memory for large bodies, one token gets at most half. A single body is never refused, so that each
        operation accepts bodies up to its own limit."""
        shares, owned, limits = self._shares, self._owned, self._shares.limits
        if size <= max(limits.small_body_bytes, self._body_bytes):
            return
        most = limits.large_bodies_bytes
        of_token = owned.body_bytes - self._body_bytes  # of the other requests
        of_all = shares.body_bytes - self._body_bytes
        if of_token and of_token + size > most // 2:
            raise shares.over("bodies_of_token", self.grant.name, _bytes(most // 2))
        if of_all and of_all + size > most:
            raise shares.over("bodies", OF_BROKER, _bytes(most))
        shares.body_bytes = of_all + size
        owned.body_bytes = of_token + size
        self._body_bytes = size

    def release_body(self) -> None:
        self._shares.body_bytes -= self._body_bytes
        self._owned.body_bytes -= self._body_bytes
        self._body_bytes = 0

    def leave(self) -> None:
        """The request was answered, or its client is gone."""
        shares, owned = self._shares, self._owned
        if self._slot is not None:
            self._leave_slot()
        if self._is_waiting:
            shares.waits -= 1
            owned.waits -= 1
        if self._is_stream:
            shares.streams -= 1
            owned.streams -= 1
        self.release_body()
        shares._open.discard(self)
        shares._forget(self.grant.name, owned)
        if self._revoked is not None:
            self._revoked.cancel()

    def _leave_slot(self) -> None:
        assert self._slot is not None
        self._shares._taken[self._slot] -= 1
        self._shares.requests -= 1
        self._owned.requests -= 1
        self._slot = None

    # -- revocation ---------------------------------------------------------------------------------------------------

    def revoke(self) -> None:
        self.is_revoked = True
        if self._revoked is not None and not self._revoked.done():
            self._revoked.set_result(None)

    @property
    def revoked(self) -> "asyncio.Future[None]":
        """Done when the token of the request is not valid any longer."""
        if self._revoked is None:
            self._revoked = asyncio.get_running_loop().create_future()
            if self.is_revoked:
                self._revoked.set_result(None)
        return self._revoked


def _bytes(count: int) -> str:
    return f"{count // MIB} MiB of large request bodies at a time"
