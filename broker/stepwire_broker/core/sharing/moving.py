"""The command `move_lane`: an operator gives a lane to another broker. The lane's owner decides it."""

from stepwire_broker.core.answers.answers import Answer
from stepwire_broker.core.model.events import CommandOfOperator


class MoveLane(CommandOfOperator, frozen=True):
    lane: int
    to: str  # the id of a broker


class LaneMoves(Answer, frozen=True):
    """The owner gives the lane up for `to` as soon as the lane may go."""

    lane: int
    owner: str
    to: str
