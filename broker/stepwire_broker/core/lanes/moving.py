"""An operator moves a lane: its owner releases it for a named broker, which takes it at its next beat."""

from collections.abc import Callable
from typing import Final

from stepwire_broker.core.answers.answers import CommandRefused
from stepwire_broker.core.membership.members import Members
from stepwire_broker.core.model.events import Command, Now, ReleaseLane
from stepwire_broker.core.sharing import orders
from stepwire_broker.core.sharing.moving import LaneMoves, MoveLane
from stepwire_broker.core.state import BrokerState

from . import releasing


def on_move(state: BrokerState, event: MoveLane, now: Now) -> None:
    """Release the lane for the named broker, or pass the command on to the lane's owner."""
    members = state.members
    if members is None:
        text = "this database has one broker, which owns every lane"
        state.refuse_now(event.request, CommandRefused("wrong_state", text))
        return
    if event.lane not in state.lanes:
        _pass_on(state, members, event)
        return
    refused = _refusal_of_target(state, members, event)
    if refused is not None:
        state.refuse_now(event.request, refused)
        return
    lane, own_id = state.lanes[event.lane], state.identity.broker
    is_changed = event.to != own_id and (lane.release is None or lane.release.to != event.to)
    outcome = "done" if is_changed else "unchanged"
    state.audit(event, "move_lane", f"lane {event.lane}", now, detail={"to": event.to}, outcome=outcome)
    state.answer(event.request, LaneMoves(event.lane, own_id, event.to))
    if is_changed:
        releasing.on_release(state, ReleaseLane(event.lane, event.to), now)
        if lane.release is not None:
            lane.release.to = event.to  # it may have been released for any broker before


def _pass_on(state: BrokerState, members: Members, event: MoveLane) -> None:
    owners = {row.lane: row.owner for row in members.lanes}
    if event.lane not in owners:
        text = f"there is no lane {event.lane}; the lanes are {min(owners)} to {max(owners)}"
        state.refuse_now(event.request, CommandRefused("not_found", text))
    elif owners[event.lane] in (None, state.identity.broker):
        text = f"lane {event.lane} has no owner at this moment: a broker takes it within seconds"
        state.refuse_now(event.request, CommandRefused("wrong_state", text))
    else:
        orders.pass_on(state, event, event.lane)


def _refusal_of_target(state: BrokerState, members: Members, event: MoveLane) -> CommandRefused | None:
    live = {row.id: row for row in members.live}
    if event.to == state.identity.broker:
        return None
    if event.to not in live:
        known = ", ".join(sorted((state.identity.broker, *live)))
        return CommandRefused("not_found", f"no broker {event.to} is alive; alive are {known}")
    if live[event.to].is_draining:
        return CommandRefused("wrong_state", f"the broker {event.to} is stopping and takes no lanes")
    return None


COMMANDS: Final[dict[type[Command], Callable[..., None]]] = {MoveLane: on_move}
