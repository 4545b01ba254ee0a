"""Alarms of the bus: the same text repeated in a row is reported once."""

from collections.abc import Callable


class Alarms:
    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._last = ""

    def report(self, text: str) -> None:
        """Report a lasting condition. Repetitions are suppressed until another alarm."""
        if text != self._last:
            self.report_each(text)

    def report_each(self, text: str) -> None:
        """Report an event each time it happens."""
        self._last = text
        self._report(text)
