"""How a call waits for a broker that does not answer: what it repeats, how long it waits, and what it reports.

| the try | the call is repeated if |
|---|---|
| no connection was made | always: the request was not sent |
| the broker refused because of its state: it starts, stops, is overloaded, or cannot store | always: nothing was done |
| the namespace has reached its quota | if the broker names a time after which it may be accepted |
| the request was sent and no answer came, or the broker stopped before the commit, or it became dark | it is safe |
| any other answer | never |

A call is safe if its repetition has no further effect: reads, submissions with a key, and most commands.

With several addresses, each is tried once without a pause. The pauses are between such rounds.
"""

import random
import time
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from stepwire.errors import ClientError

OUTAGE_S: Final = 30.0
PAUSE_MIN_S: Final = 0.02
PAUSE_MAX_S: Final = 1.0
NOTICE_AFTER_S: Final = 0.3  # a shorter outage, such as a short overload, is not reported

PASSING_CODES: Final = frozenset(
    {
        "starting",
        "draining",
        "overloaded",
        "too_many_open_steps",
        "too_many_followers",
        "too_many_taps",
        "database_locked",
        "disk_full",
        "database_read_only",
        "database_unavailable",
    }
)
QUOTA: Final = "quota"
UNKNOWN_CODES: Final = frozenset({"commit_unknown", "broker_dark"})
GATEWAY_STATUSES: Final = frozenset({429, 502, 503, 504})  # without a code of the broker: from a proxy before it

OnOutage: TypeAlias = Callable[[str, bool], None]  # a sentence, and whether the outage is over


class FailedTry(NamedTuple):
    """A try without a result, where a later try may have one. `error` is raised when the time to wait is over."""

    error: ClientError
    may_be_done: bool
    pause_s: float = 0.0  # the broker asked for this pause


def failed_try_of(refusal: ClientError) -> FailedTry | None:
    """The failed try that an answer reports, or None if a repetition would get the same answer."""
    pause_s = (refusal.retry_after_ms or 0) / 1000
    is_passing = refusal.code in PASSING_CODES or (refusal.code == QUOTA and refusal.retry_after_ms is not None)
    if is_passing and refusal.status in (429, 503):
        return FailedTry(refusal, may_be_done=False, pause_s=pause_s)
    if refusal.code in UNKNOWN_CODES or (not refusal.code and refusal.status in GATEWAY_STATUSES):
        return FailedTry(refusal, may_be_done=True, pause_s=pause_s)
    return None


class Outages:
    """The limits of one client, and its reports: one when an outage begins, one when it is over."""

    def __init__(self, outage_s: float, first_contact_s: float, on_outage: OnOutage | None) -> None:
        self._outage_s = outage_s
        self._first_contact_s = first_contact_s
        self._on_outage = on_outage or _log
        self._has_contact = False
        self._is_reported = False

    @property
    def limit_s(self) -> float:
        """The time to wait for an answer."""
        return self._outage_s if self._has_contact else self._first_contact_s

    def connected(self) -> None:
        """A connection was made: there is a broker."""
        self._has_contact = True

    def over(self) -> None:
        """The broker carried out a call, or refused it for good."""
        if self._is_reported:
            self._is_reported = False
            self._on_outage("the broker answers again", True)

    def begun(self, error: ClientError, limit_s: float) -> None:
        if not self._is_reported:
            self._is_reported = True
            self._on_outage(f"{error.message.rstrip('.')}; trying again for up to {limit_s:g} s", False)


class Patience:
    """The waiting of one call. `until_s`: the call itself is given no longer than this. `tries`: the number of tries,
    each at another address, before a pause."""

    def __init__(self, outages: Outages, until_s: float | None = None, tries: int = 1) -> None:
        self._outages = outages
        self._until_s = until_s
        self._tries = tries
        self._failed = 0
        self._began_s: float | None = None
        self._pause_s = PAUSE_MIN_S

    def pause(self, failed: FailedTry) -> None:
        """Sleep before the next try, unless an address was not tried yet. If the time is over, raises the error of the
        failed one."""
        now_s = time.monotonic()
        if self._began_s is None:
            self._began_s = now_s
        self._failed += 1
        if self._failed % self._tries:
            return
        limit_s = self._outages.limit_s
        ends_s = self._began_s + limit_s if self._until_s is None else min(self._began_s + limit_s, self._until_s)
        if now_s >= ends_s or now_s + failed.pause_s > ends_s:
            raise failed.error
        self._pause_s = min(PAUSE_MAX_S, 2 * self._pause_s)
        pause_s = max(failed.pause_s, random.uniform(self._pause_s / 2, self._pause_s))  # noqa: S311 - a pause
        pause_s = min(pause_s, ends_s - now_s)  # the last try is at the end of the time
        if now_s + pause_s - self._began_s >= NOTICE_AFTER_S:
            self._outages.begun(failed.error, limit_s)
        time.sleep(pause_s)

    def over(self) -> None:
        """The broker answers: the next failure is another outage."""
        self._began_s = None
        self._failed = 0
        self._pause_s = PAUSE_MIN_S
        self._outages.over()


def _log(text: str, is_over: bool) -> None:
    import logging  # slow to import, and seldom needed

    logging.getLogger("stepwire.client").log(logging.INFO if is_over else logging.WARNING, text)
