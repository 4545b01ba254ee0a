"""The rate of a token: its requests, submitted steps and bytes per second.

In a token file a rate is `requests:100,steps:1000,bytes:10485760`. The command line and the file accept units of bytes.
"""

import math
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from stepwire_broker.errors import BrokerError

BURST_S: Final = 1.0  # unused allowance of this time may be used at once
_UNITS: Final = {"KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_AMOUNT_MAX: Final = 10**12


class RateError(BrokerError):
    """The text is no rate. The message names the fault."""


class Rate(NamedTuple):
    """Per second. None: no limit. `bytes`: of bodies of requests and answers, without streams."""

    requests: int | None = None
    steps: int | None = None
    bytes: int | None = None

    def __str__(self) -> str:
        return ",".join(f"{name}:{n}" for name, n in self._asdict().items() if n is not None)


UNLIMITED: Final = Rate()


def read_rate(text: str) -> Rate:
    """`requests:100,steps:1000,bytes:10MiB` or the same with `=` → Rate. Raises RateError."""
    amounts: dict[str, int] = {}
    for part in text.split(","):
        name, _, amount = part.strip().replace("=", ":", 1).partition(":")
        if name not in Rate._fields or name in amounts:
            raise RateError(f"{part[:64]!r} is not one of requests=N, steps=N and bytes=N, each at most once")
        amounts[name] = _amount(name, amount)
    return Rate(**amounts)


def _amount(name: str, text: str) -> int:
    number, factor = text, 1
    if name == "bytes" and text[-3:] in _UNITS:
        number, factor = text[:-3], _UNITS[text[-3:]]
    if not (number.isascii() and number.isdigit() and len(number) < 16 and 0 < int(number) * factor <= _AMOUNT_MAX):
        raise RateError(f"{name}={text[:64]} must be a number above 0" + (" like 10MiB" if name == "bytes" else ""))
    return int(number) * factor


class Allowances:
    """The allowances of the tokens that have a rate.

    A request is refused while something that it uses is overdrawn, and pays afterwards. So a batch with more steps than
    the rate allows per second is accepted, and the next one waits until the steps are paid."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._by_token: dict[str, _Allowance] = {}

    def wait_s(self, token: str, rate: Rate, what: str) -> float:
        """The time until the token may use `what` again; 0 if it may now."""
        per_s: int | None = getattr(rate, what)
        if per_s is None:
            return 0.0
        left = self._of(token, rate).left(what, per_s, self._now_s())
        return 0.0 if left >= min(1, per_s) else (1 - left) / per_s

    def pay(self, token: str, rate: Rate, what: str, amount: int) -> None:
        per_s: int | None = getattr(rate, what)
        if per_s is not None:
            self._of(token, rate).pay(what, per_s, self._now_s(), amount)

    def _of(self, token: str, rate: Rate) -> "_Allowance":
        found = self._by_token.get(token)
        if found is None or found.rate != rate:
            found = self._by_token[token] = _Allowance(rate)
        return found


class _Allowance:
    def __init__(self, rate: Rate) -> None:
        self.rate = rate
        self._left: dict[str, tuple[float, float]] = {}  # the amount, and the time at which it was that

    def left(self, what: str, per_s: int, now_s: float) -> float:
        most = per_s * BURST_S
        amount, at_s = self._left.get(what, (most, now_s))
        amount = min(most, amount + (now_s - at_s) * per_s)
        self._left[what] = amount, now_s
        return amount

    def pay(self, what: str, per_s: int, now_s: float, amount: int) -> None:
        self._left[what] = self.left(what, per_s, now_s) - amount, now_s


def retry_after_ms(wait_s: float) -> int:
    return max(1, math.ceil(wait_s * 1000))
