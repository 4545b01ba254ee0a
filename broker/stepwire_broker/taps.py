"""Taps: callbacks that see every message of the bus, as `stepwire tap` needs."""

from collections.abc import Callable
from typing import TypeAlias

from .bus.wire import Wire

# direction ("in" or "out"), topic, body, and of a refused incoming message the code and the reason
Tap: TypeAlias = Callable[[str, bytes, bytes, str | None, str | None], None]


class Taps:
    """The taps of one broker. The wire shows sent messages; `show` shows received messages with their refusal codes."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._taps: list[Tap] = []
        self._detach: Callable[[], None] | None = None

    @property
    def are_open(self) -> bool:
        return bool(self._taps)

    def add(self, tap: Tap) -> Callable[[], None]:
        """Call `tap` with every message until the returned function is called."""
        self._taps.append(tap)
        if self._detach is None:
            self._detach = self._wire.add_sent_tap(self._show_sent)

        def remove() -> None:
            if tap in self._taps:
                self._taps.remove(tap)
            if not self._taps and self._detach is not None:
                self._detach()
                self._detach = None

        return remove

    def show(self, direction: str, topic: bytes, body: bytes, code: str | None, reason: str | None = None) -> None:
        for tap in tuple(self._taps):
            tap(direction, topic, body, code, reason)

    def _show_sent(self, topic: bytes, body: bytes) -> None:
        self.show("out", topic, body, None)
