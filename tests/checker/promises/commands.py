"""C: every operator's command in the history was sent by a client."""

from collections import Counter

from tests.checker import causes
from tests.checker.database import Case, Database
from tests.checker.witnesses import Witnesses

from .common import Finding, Finds


def every_command_was_sent(database: Database, seen: Witnesses, case: Case) -> Finds:
    """An operator's command excuses a second run, so a client must have sent it."""
    if not seen.has_clients:
        return
    story = case.story
    given = Counter(order.order for order in causes.orders_about(seen, case, None))
    wanted = {action.partition("_")[0] for action, _, _ in story.operated}
    if story.cancel_asked_at is not None:
        wanted.add("cancel")
    for order in wanted - given.keys():
        yield Finding(None, f"its history has an operator's {order}, which no client sent")
