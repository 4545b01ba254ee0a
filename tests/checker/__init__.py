"""The judge of every run: was anything lost, doubled without cause, begun too early, made up? README.md has its inputs.

It believes nobody. What a client was told lies in the clients' ledgers, what handlers and workers did in theirs, what
was done to processes in the ledger of faults; the database is only the accused.
"""

from .judge import Verdict, Violation, assert_kept, judge, page
from .rules import the_broker_can_replay_its_history

__all__ = ["Verdict", "Violation", "assert_kept", "judge", "page", "the_broker_can_replay_its_history"]
