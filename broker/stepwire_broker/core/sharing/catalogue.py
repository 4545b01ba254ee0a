"""Workflows, blocks of ids and controls as other brokers changed them.

A look tells the highest revision. If this broker has applied a lower one, it reads the whole catalogue. Commands and
loaded tasks that name something unknown wait for a read that begins after them.
"""

from collections.abc import Callable
from typing import Any

from stepwire_broker.core.answers.answers import Answer, CommandRefused
from stepwire_broker.core.answers.hints import Hint, HintCode
from stepwire_broker.core.intake.workflows import ACTIVE, add_workflow, full_name
from stepwire_broker.core.model.events import CatalogueRead, Command, LearnCatalogue, Now
from stepwire_broker.core.state import BrokerState

from .controls import apply_controls


def on_revision(state: BrokerState, revision: int) -> None:
    """Read the catalogue if another broker has changed it, or if a read of it failed."""
    book = state.catalogue
    if book.read is None and (revision > book.revision or book.waiting):
        book.ask(state)


def on_catalogue(state: BrokerState, event: CatalogueRead, now: Now, handle: Callable[[Any], None]) -> None:
    """Apply what was read, except for changes of this broker that the read is too old for. Then handle the events that
    wait for it."""
    book = state.catalogue
    book.read = None
    book.forget_before(event.request)
    state.blocks.update(event.blocks)
    for workflow in event.workflows:
        add_workflow(state, workflow, active=False)
    for number in sorted(event.active):
        workflow = state.workflows[number]
        if (ACTIVE, full_name(workflow)) not in book.own:
            add_workflow(state, workflow, active=True)
    apply_controls(state, event.controls, now)
    if not book.own:
        book.revision = event.revision  # else a later read is needed
    waiting, book.waiting = book.waiting, []
    book.is_fresh = True
    for each in waiting:
        handle(each)
    book.is_fresh = False
    book.waiting, book.waiting_next = book.waiting_next, []
    if book.waiting:
        book.ask(state)


class Learned(Answer, frozen=True):
    """The broker knows every workflow that was applied before the command."""


def on_learn(state: BrokerState, event: LearnCatalogue, now: Now) -> None:
    if not state.catalogue.look_up(event, state):
        state.answer(event.request, Learned())


def on_failed(state: BrokerState, error: str) -> None:
    """Refuse the commands that wait. Loaded tasks wait for the next look, which reads again."""
    book = state.catalogue
    book.read = None
    waiting, book.waiting_next = [*book.waiting, *book.waiting_next], []
    book.waiting = [each for each in waiting if not isinstance(each, Command)]
    for each in waiting:
        if isinstance(each, Command):
            text = f"the database could not be read: {error}"
            state.refuse_now(
                each.request, CommandRefused("database_unavailable", text, Hint(HintCode.WAIT_FOR_DATABASE))
            )
