"""The handlers that level-0 programs may be sent.

A level-0 program declares no handlers, so the setting `bus.level0.handlers` decides for all of them. A handler that an
SDK worker has offered is work of that worker, also while the worker is not connected. Such a handler goes to level 0
only by a pattern with a literal part, as in `order.*`, which an operator wrote for it; `**` is not enough.

The offers are rows of `controls`, one for each handler class or pattern, and are never removed. An offered pattern
without a literal part, such as `**`, names no handler and is not recorded. Instead, each handler whose step the worker
completes is recorded.
"""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct
from stepwire_protocol import patterns

from stepwire_broker.core.definitions.stored_rows import StoredControl
from stepwire_broker.core.model.commit_group import ControlChanged

KIND: Final = "offered"  # in `controls`
OFFERED_MAX: Final = 10_000  # further handlers are not recorded, and `**` includes them
DECIDED_MAX: Final = 20_000  # handler classes whose decision is in memory


class FirstOffer(Struct, frozen=True):
    """The worker that offered a handler first, and the time in UTC. Stored as JSON."""

    worker: str
    at_ms: int


class Recorded(NamedTuple):
    rows: list[ControlChanged]  # to write
    left_out: int  # handlers beyond the limit


_decode: Final = msgspec.json.Decoder(FirstOffer).decode


class Level0Handlers:
    """`configured`: the patterns of `bus.level0.handlers`."""

    def __init__(self, configured: Sequence[str], controls: Iterable[StoredControl]) -> None:
        self._matches = patterns.any_of(configured)
        self._names = patterns.any_of([text for text in configured if patterns.has_literal_part(text)])
        self.offered: dict[str, FirstOffer] = {}  # by handler class or pattern
        self._globs: list[patterns.Pattern] = []
        self._allowed: dict[str, bool] = {}
        for row in controls:
            if row.kind == KIND:
                self._add(row.name, _decode(row.value))

    def learn(self, controls: Iterable[StoredControl]) -> None:
        """Add the offers that other brokers recorded."""
        for row in controls:
            if row.kind == KIND and row.name not in self.offered:
                self._add(row.name, _decode(row.value))
                self._allowed.clear()

    def allows(self, handler_class: str) -> bool:
        """True if steps of this handler may be sent to level 0."""
        allowed = self._allowed.get(handler_class)
        if allowed is None:
            if len(self._allowed) >= DECIDED_MAX:
                self._allowed.clear()
            allowed = self._names(handler_class) or (
                self._matches(handler_class) and self.offer_of(handler_class) is None
            )
            self._allowed[handler_class] = allowed
        return allowed

    def reserved_by(self, handler_class: str) -> FirstOffer | None:
        """Return the offer because of which level 0 does not get this handler, although a pattern matches it."""
        if self._names(handler_class) or not self._matches(handler_class):
            return None
        return self.offer_of(handler_class)

    def offer_of(self, handler_class: str) -> FirstOffer | None:
        """Return an offer that includes this handler: the offer of its name, or else of the first pattern."""
        exact = self.offered.get(handler_class)
        if exact is not None:
            return exact
        glob = next((glob for glob in self._globs if glob.matches(handler_class)), None)
        return None if glob is None else self.offered[glob.text]

    def record(self, handlers: Iterable[str], worker: str, at_ms: int) -> Recorded:
        """Record that this worker offers these handler classes and patterns, as far as they are new."""
        rows: list[ControlChanged] = []
        left_out = 0
        for name in handlers:
            if name in self.offered or not patterns.has_literal_part(name):
                continue
            if len(self.offered) >= OFFERED_MAX:
                left_out += 1
                continue
            offer = FirstOffer(worker, at_ms)
            self._add(name, offer)
            self._allowed.clear()
            rows.append(ControlChanged(KIND, name, msgspec.json.encode(offer).decode(), 0))
        return Recorded(rows, left_out)

    def _add(self, name: str, offer: FirstOffer) -> None:
        self.offered[name] = offer
        if patterns.is_pattern(name):
            self._globs.append(patterns.compile_pattern(name))
