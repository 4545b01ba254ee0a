"""Sentences for the reasons of `/readyz`: why a broker accepts no work now."""

from typing import Final

MEANINGS: Final = {
    "draining": "the broker is stopping",
    "broker_dark": "the broker could not renew its lease in the database, so it sends nothing until it can",
    "no_lane": "the broker owns no lane: other brokers own all of them, or it has just started",
    "database_unavailable": "the database cannot be reached",
    "database_locked": "another process has locked the database",
    "database_read_only": "the database is read-only",
    "disk_full": "the database's disk is full",
}
LOST_COMMITS: Final = "lost_commits"
LOST_COMMITS_MEANING: Final = "commits of the lane may be lost: see `stepwire db accept-loss`"


def with_meaning(reason: str) -> str:
    """The reason with a sentence about it, if one is known."""
    meaning = LOST_COMMITS_MEANING if reason.startswith(LOST_COMMITS) else MEANINGS.get(reason)
    return reason if meaning is None else f"{reason} ({meaning})"
