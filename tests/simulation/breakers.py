"""Handlers that are down for a while, breakers and retry budgets that act quickly, and the checks on them.

About half of the seeds have them. In the others neither acts, so that they hide nothing and older runs stay the same.
The checks use what the broker logs and what is committed.
"""

from random import Random
from typing import TYPE_CHECKING, Any, Final

import msgspec
from stepwire_broker.core.commit.decision import BreakerChanged
from stepwire_broker.core.definitions.settings import BreakerSettings, DispatchSettings, RetryBudgetSettings, Settings

from .faults import BREAKER_KINDS, DEATH_KINDS
from .worker_node import HANDLERS

if TYPE_CHECKING:
    from .broker_node import BrokerNode
    from .world import World

OFF: Final = DispatchSettings(breaker=BreakerSettings(enabled=False), retry_budget=RetryBudgetSettings(percent=100.0))
MARGIN_MS: Final = 5.0  # between the broker's clock, in whole milliseconds, and the true time
LATE_MS: Final = 600.0


class Breakers:
    def __init__(self, world: "World") -> None:
        self.world = world
        chance = Random(f"{world.seed}/breakers")
        self.is_on = world.focus is None and chance.random() < 0.5
        self.dispatch = self._drawn(chance) if self.is_on else OFF
        self._down_until_ms: dict[str, float] = {}
        self._turns: dict[
            tuple[str, str], list[tuple[float, str]]
        ] = {}  # by broker and handler, in this life of the broker: time and new state
        self._died_ms: list[float] = []

    def _drawn(self, chance: Random) -> DispatchSettings:
        if chance.random() < 0.2:
            return DispatchSettings()
        open_ms = chance.choice((200, 1_000, 3_000))
        return DispatchSettings(
            breaker=BreakerSettings(
                failure_threshold=chance.choice((1, 2, 3, 3)),
                window_ms=chance.choice((2_000, 10_000)),
                window_outcomes=chance.choice((3, 20)),
                window_percent=chance.choice((30.0, 50.0)),
                open_ms=open_ms,
                open_max_ms=open_ms * chance.choice((1, 4, 10)),
                success_threshold=chance.choice((1, 2, 3)),
            ),
            retry_budget=RetryBudgetSettings(
                percent=chance.choice((0.0, 5.0, 20.0, 100.0)),
                at_least=chance.choice((1, 2, 10)),
                window_ms=chance.choice((2_000, 10_000, 60_000)),
            ),
        )

    def settings(self, drawn: Settings) -> Settings:
        return msgspec.structs.replace(drawn, dispatch=self.dispatch)

    # -- faults -----------------------------------------------------------------------------------------------------

    def strike(self, luck: float, size: float) -> None:
        """A service that a handler needs is down for a while."""
        handler = HANDLERS[int(luck * len(HANDLERS))]
        self.world.trace("handler_unavailable", handler)
        self._down_until_ms[handler] = self.world.now + 500.0 + 12_000.0 * size

    def is_down(self, handler_class: str) -> bool:
        return self.world.now < self._down_until_ms.get(handler_class, -1.0) and not self.world.faults.is_over

    # -- checks -----------------------------------------------------------------------------------------------------

    def broker_started(self, broker: "BrokerNode") -> None:
        """A breaker that an operator holds open stays open."""
        others = {of: turns for of, turns in self._turns.items() if of[0] != broker.id}
        barred = broker.state.guards.barred
        self._turns = others | {(broker.id, handler): [(self.world.now, "open")] for handler in barred}

    def died(self) -> None:
        self._died_ms.append(self.world.now)

    def is_closed(self, broker: "BrokerNode", handler_class: str) -> bool:
        turns = self._turns.get((broker.id, handler_class))
        return turns is None or turns[-1][1] == "closed"

    def turned(self, broker: "BrokerNode", turned: BreakerChanged) -> None:
        world = self.world
        world.trace(
            "breaker" if broker is world.broker else f"breaker {broker.id}",
            f"{turned.handler_class} {turned.state} after {turned.cause}, {turned.reason}",
        )
        world.count("breaker", turned.state)
        turns = self._turns.setdefault((broker.id, turned.handler_class), [])
        turns.append((world.now, turned.state))
        if turned.state == "open" and not turned.is_forced:
            since_ms = [0.0] + [at_ms for at_ms, state in turns if state == "closed"]
            was_probed = len(turns) > 2 and turns[-3][1] == "half_open"
            self._check_cause(broker, turned, since_ms[-1], since_ms[-2] if was_probed else None)
            assert turned.left_ms is not None
            after_ms = 1.02 * turned.left_ms + LATE_MS
            world.schedule.after(after_ms, self._check_probed, broker, broker.life, turned.handler_class, len(turns))

    def _check_cause(
        self, broker: "BrokerNode", turned: BreakerChanged, since_ms: float, reopened_ms: float | None
    ) -> None:
        """If deaths of workers are the only faults, each death counts as one failure, however many steps ran there.

        The death may have been detected a lease later.
        """
        world = self.world
        is_quiet = world.faults.on - set(BREAKER_KINDS) <= DEATH_KINDS and not self._down_until_ms
        if is_quiet and not world.peers:  # level-0 handlers are slow or never answer, whatever faults are on
            if turned.cause.endswith("tried again"):
                return
            of = self.dispatch.breaker
            least = min(of.failure_threshold, -int(-of.window_outcomes * of.window_percent // 100))
            detected_within_ms = 1.1 * broker.settings.bus.lease_ms + 2_000.0
            deaths = sum(at_ms >= since_ms - detected_within_ms for at_ms in self._died_ms)
            if reopened_ms is not None and deaths:
                # The breaker was closed again, perhaps without a trial: then one more failure opens it.
                deaths = sum(at_ms >= reopened_ms - detected_within_ms for at_ms in self._died_ms) - 1
            if deaths < least:
                world.checks.books.fail("P7 one death is one failure", f"{turned}, after {deaths} deaths")

    def _check_probed(self, broker: "BrokerNode", life: int, handler_class: str, turns: int) -> None:
        if not broker.is_alive or broker.life != life or len(self._turns[broker.id, handler_class]) != turns:
            return
        if broker.is_paused:
            self.world.schedule.after(1_000.0, self._check_probed, broker, life, handler_class, turns)
            return
        self.world.checks.books.fail("P6 an open breaker gets a probe in time", handler_class)

    def dispatched(self, broker: "BrokerNode", handler_class: str, is_once: bool, fact: list[Any]) -> None:
        """No step is dispatched while its breaker is open, and no at_most_once step is a probe."""
        turns = self._turns.get((broker.id, handler_class))
        clock = broker.clock
        if turns is None or clock.jumped_ms or clock.corrected_ms:
            return
        at_ms = clock.true_of_wall(fact[1], self.world.now)
        for i, (since_ms, state) in enumerate(turns):
            until_ms = turns[i + 1][0] if i + 1 < len(turns) else float("inf")
            if since_ms + MARGIN_MS < at_ms < until_ms - MARGIN_MS:
                if state == "open":
                    self.world.checks.books.fail("P6 no step is dispatched while its breaker is open", f"{fact}")
                if state == "half_open" and is_once:
                    self.world.checks.books.fail("P5 no at_most_once step is a probe", f"{fact}")
