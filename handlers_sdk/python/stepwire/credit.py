"""How a worker's free places are split over brokers that do not know of each other.

Each broker has a floor share; what does not divide rotates, so that with more brokers than places each has its turn.
Brokers that send nothing lend their share to those that do. They keep their own promise meanwhile, so the sum of
promises can reach twice the capacity, and never more: what comes on top waits, and costs memory only.
"""

from typing import NamedTuple


class Claim(NamedTuple):
    """What one live broker has here now."""

    load: int
    is_idle: bool


def free(capacity: int, claims: list[Claim], index: int, rotation: int) -> int:
    """The free places that the broker at `index` may be told."""
    mine = claims[index]
    if len(claims) == 1:
        return max(0, capacity - mine.load)
    places = _share(capacity, len(claims), index, rotation)
    if not mine.is_idle:
        lent = sum(_share(capacity, len(claims), i, rotation) for i, claim in enumerate(claims) if claim.is_idle)
        borrowers = sum(not claim.is_idle for claim in claims)
        rank = sum(not claim.is_idle for claim in claims[:index])
        places += _share(lent, borrowers, rank, rotation)
    return max(0, places - mine.load)


def _share(capacity: int, among: int, index: int, rotation: int) -> int:
    whole, rest = divmod(capacity, among)
    return whole + ((index + rotation) % among < rest)
