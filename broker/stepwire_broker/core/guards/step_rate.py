"""The rate of a quota: how many steps per second a namespace may submit.

A submission is refused while the rate is overdrawn, and pays afterwards. So a submission with more steps than the rate
allows per second is accepted, and the next one waits until its steps are paid. Whole numbers, so that equal events at
equal times give equal decisions.
"""

from typing import Final

from msgspec import Struct

THOUSANDTHS: Final = 1000  # of a step; a rate of N steps per second adds N of them per millisecond


class StepRate(Struct):
    left: int  # thousandths of steps that may be submitted; below 0 while the rate is overdrawn
    at_mono: int  # the time at which `left` was that

    def refill(self, steps_per_s: int, now_mono: int) -> None:
        """Add what the time since the last call allows: at most the steps of one second are kept."""
        added = max(0, now_mono - self.at_mono) * steps_per_s
        self.left = min(steps_per_s * THOUSANDTHS, self.left + added)
        self.at_mono = now_mono

    def wait_ms(self, steps_per_s: int) -> int:
        """The time until a step may be submitted; 0 if one may be now. Call `refill` first."""
        missing = THOUSANDTHS - self.left
        return 0 if missing <= 0 else -(-missing // steps_per_s)

    def is_full(self, steps_per_s: int) -> bool:
        """True if nothing of the last second has been used. Call `refill` first."""
        return self.left >= steps_per_s * THOUSANDTHS

    def pay(self, steps: int) -> None:
        self.left -= steps * THOUSANDTHS


def full(steps_per_s: int, now_mono: int) -> StepRate:
    return StepRate(steps_per_s * THOUSANDTHS, now_mono)
