"""The silence of a dark broker: its lease may be over, so another broker may own its lanes and speak for them.

Workers repeat what was not acknowledged, and this broker repeats its batches, if its next beat shows that it still owns
their lanes.
"""

from typing import Final

from stepwire_broker.core.answers.answers import CommandRefused
from stepwire_broker.core.answers.hints import Hint, HintCode
from stepwire_broker.core.commit.decision import Decision, ToRequest
from stepwire_broker.core.model.events import Now
from stepwire_broker.core.state import BrokerState
from stepwire_broker.core.workers import level0

RETRY_MS: Final = 1_000
DARK: Final = CommandRefused(
    "broker_dark",
    "the broker could not renew its lease in the database, so another broker may own its lanes: the outcome of the "
    "request is unknown",
    Hint(HintCode.SEND_AGAIN_WITH_KEY),
    RETRY_MS,
)


def is_dark(state: BrokerState, now: Now) -> bool:
    return state.members is not None and state.members.is_dark(now.mono)


def silence(state: BrokerState, decision: Decision, now: Now) -> None:
    """Remove everything that would be sent. Requests are refused, and steps for level 0 become ready again."""
    decision.batches, decision.sends = [], []
    handouts, decision.handouts = decision.handouts, []
    for handout in handouts:
        level0.not_sent(state, handout, now)
    decision.answers = [ToRequest(each.request, DARK) for each in decision.answers]
