"""How many lanes each broker aims at. Every broker computes the same from the same rows, so no broker assigns lanes."""

from collections.abc import Collection, Mapping


def aims(held: Mapping[str, int], takers: Collection[str], lanes: int) -> dict[str, int]:
    """Return the number of lanes that each broker aims at.

    `held` has the brokers that count, and the number of lanes that each has now. The aims differ by at most one, and
    the brokers with most lanes have the higher ones: in a balanced state no lane moves. Brokers that are not `takers`
    keep at most their share, and the takers aim at the rest.
    """
    fair = _split(held, lanes)
    kept = {broker: min(held[broker], fair[broker]) for broker in held if broker not in takers}
    rest = _split({broker: held[broker] for broker in takers}, lanes - sum(kept.values()))
    return kept | rest


def _split(held: Mapping[str, int], lanes: int) -> dict[str, int]:
    if not held:
        return {}
    least, more = divmod(lanes, len(held))
    by_lanes = sorted(held, key=lambda broker: (-held[broker], broker))
    return {broker: least + (place < more) for place, broker in enumerate(by_lanes)}


def most_of(takers: int, lanes: int) -> int:
    """Return the highest share of `takers` brokers."""
    return -(-lanes // max(1, takers))
