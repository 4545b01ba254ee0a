"""Controls that operators set at other brokers, applied to this broker: the rows are the truth for all brokers.

A row that this broker has changed itself is left out until the change is committed and read back.
"""

from collections import OrderedDict
from collections.abc import Iterable

from stepwire_broker.core.commit.operator_controls import KINDS, DrainedWorker, ForcedBreaker, PausedExecutor, stored
from stepwire_broker.core.definitions.stored_rows import StoredControl
from stepwire_broker.core.guards import allowance
from stepwire_broker.core.intake.routing_rules import use_rules
from stepwire_broker.core.model.events import Now
from stepwire_broker.core.routing.runtime_rules import KIND as RULE
from stepwire_broker.core.routing.runtime_rules import stored_rules
from stepwire_broker.core.state import BrokerState


def apply_controls(state: BrokerState, controls: Iterable[StoredControl], now: Now) -> None:
    own = state.catalogue.own
    rows = [row for row in controls if (row.kind, row.name) not in own]
    _apply_rules(state, rows)
    allowance.apply_forced(state, dict(stored(rows, ForcedBreaker)), _own_names(state, KINDS[ForcedBreaker]), now)
    _apply_pauses(state, rows)
    _apply_drained(state, rows)
    state.level0_handlers.learn(rows)


def _own_names(state: BrokerState, kind: str) -> set[str]:
    return {name for own_kind, name in state.catalogue.own if own_kind == kind}


def _apply_rules(state: BrokerState, rows: Iterable[StoredControl]) -> None:
    own = _own_names(state, RULE)
    kept = [placed for placed in state.runtime_rules if placed.rule.match in own]
    use_rules(state, tuple(sorted((*stored_rules(rows), *kept), key=lambda each: (-each.position, each.rule.match))))


def _apply_pauses(state: BrokerState, rows: Iterable[StoredControl]) -> None:
    own = _own_names(state, KINDS[PausedExecutor])
    paused = dict(stored(rows, PausedExecutor))
    for key in paused:
        state.executor(key)
    for key, executor in state.executors.items():
        if key not in own:
            executor.paused_wall = paused[key].since_ms if key in paused else None


def _apply_drained(state: BrokerState, rows: Iterable[StoredControl]) -> None:
    own = _own_names(state, KINDS[DrainedWorker])
    drained = stored(rows, DrainedWorker)
    kept = [(worker, quits) for worker, quits in state.quieted.items() if worker in own]
    state.quieted = OrderedDict([*((worker, each.quit) for worker, each in drained), *kept])
    for worker in state.quieted:
        session = state.sessions.get(worker)
        if session is not None:
            session.draining = True
