"""The judge of a run of real processes: was anything lost, repeated without a cause, started too early, or invented?

README.md describes its inputs. The database is judged by ledgers that clients, handlers, workers and the source of the
faults wrote outside the broker.
"""

from .judge import Verdict, Violation, assert_kept, judge, page
from .promises.history import the_history_replays

__all__ = ["Verdict", "Violation", "assert_kept", "judge", "page", "the_history_replays"]
