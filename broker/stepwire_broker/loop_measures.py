"""Measurements of the loop: the duration of commits, the size of groups, the delay of the loop.

Values are measured once for a group or a pulse, never for a step.
"""

from typing import Final

from msgspec import Struct

from stepwire_broker.core.membership.notifications import NotificationCounts
from stepwire_broker.core.model.commit_group import CommitGroup
from stepwire_broker.core.model.figures import Histogram

COMMIT_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
GROUP_ROWS: Final = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0, 3_000.0, 10_000.0, 30_000.0)
LOOP_LAG_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class Measures(Struct, frozen=True):
    commit_s: Histogram
    group_rows: Histogram
    loop_lag_s: Histogram
    stalls: dict[str, int]  # by code
    notifications: NotificationCounts


def nothing_yet() -> Measures:
    return Measures(Histogram(COMMIT_S), Histogram(GROUP_ROWS), Histogram(LOOP_LAG_S), {}, NotificationCounts())


def rows_of(group: CommitGroup) -> int:
    """Return the approximate number of rows that one transaction writes."""
    rows = (
        len(group.steps_dispatched)
        + len(group.steps_completed)
        + len(group.steps_changed)
        + len(group.steps_output)
        + len(group.tasks_changed)
        + len(group.history)
        + len(group.workflows)
    )
    return rows + sum(len(new.tasks) + len(new.steps) + len(new.history) for new in group.submissions)
