"""The configuration of a session: identity, capacity, and the handlers that the worker offers."""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct
from stepwire_protocol import limits, patterns

from stepwire.actions import Link

CLASSES_MAX: Final = 10_000  # handler classes whose offer is remembered


class Offer(Struct, frozen=True):
    """A handler of this worker, by name or pattern."""

    pattern: str
    concurrency: int | None = None  # maximum number of runs at a time; None: the number of slots
    timeout_ms: int | None = None  # shortens the timeout of the step
    shadow_safe: bool = False


class Config(Struct, frozen=True, kw_only=True):
    """The worker's identity and capacity: the content of its `hello`."""

    worker: str
    offers: tuple[Offer, ...]
    slots: int
    prefetch: int | None = None  # the least room for steps that wait; None: only what the observed pace says
    labels: dict[str, str] = {}
    links: tuple[Link, ...] = ()
    curve: bool = False  # the sockets have CURVE keys
    heartbeat_ms: int = limits.HEARTBEAT_MS
    accept_delay_ms: int = 0  # an accept waits this long for results that make it superfluous
    max_message_bytes: int = limits.MESSAGE_BYTES_MAX
    lang: str = "python"
    sdk: str = ""
    handler_version: str = ""  # the release of the handlers
    host: str = ""
    pid: int = 0
    pid_started: int = 0
    proof: bool = False

    @property
    def queue_max(self) -> int:
        """The number of steps that may wait for a slot before any has ended: the member `prefetch` of hello."""
        return max(self.slots, limits.PREFETCH_MIN) if self.prefetch is None else self.prefetch


class Offers:
    """The worker's offers by number, and the offer for each handler_class."""

    def __init__(self, offers: tuple[Offer, ...]) -> None:
        self.by_number = offers
        self._number_of: dict[str, int | None] = {}

    def find(self, handler_class: str) -> int | None:
        """The number of the offer for this handler_class; None if no offer matches."""
        known = self._number_of
        if handler_class not in known:
            if len(known) >= CLASSES_MAX:
                known.clear()
            known[handler_class] = find_offer(self.by_number, handler_class)
        return known[handler_class]


def find_offer(offers: Iterable[Offer], handler_class: str) -> int | None:
    """The number of the offer with this exact name, otherwise of the first pattern that matches."""
    first_match = None
    for i, offer in enumerate(offers):
        if offer.pattern == handler_class:
            return i
        is_pattern = first_match is None and patterns.is_pattern(offer.pattern)
        if is_pattern and patterns.matches(offer.pattern, handler_class):
            first_match = i
    return first_match
