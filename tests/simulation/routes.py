"""Rules, canaries, shadows, and workers inside the brokers' own processes, in a fifth of the seeds.

Such a worker lives and dies with its broker, and the next start knows by its id that it is dead. Rules come from the
configuration and from an operator. Only the broker evaluates them: the checks are that every other promise holds
whatever the rules are, and that a shadow is a copy and nothing else.
"""

from random import Random
from typing import TYPE_CHECKING, Final

import msgspec
from stepwire.session import Offer
from stepwire_broker.core.definitions.settings import (
    CanarySettings,
    ExecutionSettings,
    RuleSettings,
    Settings,
    ShadowSettings,
)
from stepwire_broker.core.definitions.stored_rows import StoredControl
from stepwire_broker.core.intake.routing_rules import SetRule
from stepwire_broker.core.model.events import Attached, Detached, Reconfigure
from stepwire_broker.core.model.principal import PROCESS
from stepwire_broker.core.model.targets import BUS, LOCAL
from stepwire_broker.core.model.worker_session import own_worker
from stepwire_broker.core.routing.router import Router
from stepwire_broker.core.routing.runtime_rules import stored_rules
from stepwire_broker.core.workers.executor_control import PauseExecutor, ResumeExecutor

from .worker_node import HANDLERS, WorkerNode

if TYPE_CHECKING:
    from .broker_node import BrokerNode
    from .world import World

INNER: Final = "inner"
EXECUTORS: Final = (BUS, LOCAL, INNER)
MATCHES: Final = ("**", "tenant::**", "default::*::*", "*::*::s0", "**::s1", "**::s*")


class Routes:
    def __init__(self, world: "World", *, is_possible: bool) -> None:
        self.world = world
        self.chance = Random(f"{world.seed}/roads")
        self.is_on = is_possible and self.chance.random() < 0.2
        self.count = self.chance.choice((1, 1, 2)) if self.is_on else 0
        rules = [self._rule() for _ in range(self.chance.randint(0, 3))] if self.is_on else []
        self.execution = ExecutionSettings(rules=tuple(rules))
        self.inner: list[InnerNode] = []

    def _rule(self) -> RuleSettings:
        chance = self.chance
        executor = chance.choice((INNER, INNER, BUS, None))
        other = BUS if executor == INNER else INNER
        canary = CanarySettings(chance.choice((0.0, 30.0, 100.0)), executor=other) if chance.random() < 0.4 else None
        shadow = ShadowSettings(executor=chance.choice((INNER, BUS))) if chance.random() < 0.6 else None
        return RuleSettings(chance.choice(MATCHES), executor=executor, canary=canary, shadow=shadow)

    def settings(self, drawn: Settings) -> Settings:
        return msgspec.structs.replace(drawn, execution=self.execution)

    def router(self, settings: Settings, controls: list[StoredControl]) -> Router:
        rules = [placed.rule for placed in stored_rules(controls)]
        return Router(settings.execution, EXECUTORS, bus_is_distributed=True, runtime=rules)

    def plan(self, phase_ms: float) -> None:
        """Plan changes: an operator sets and removes rules, the configuration is reloaded, executors come and go."""
        if self.is_on:
            for _ in range(self.chance.randint(0, 5)):
                self.world.schedule.at(phase_ms * self.chance.random(), self._change)
            for node in self.inner:
                if self.chance.random() < 0.3:
                    self.world.schedule.at(phase_ms * self.chance.random(), node.kill)

    def _change(self) -> None:
        world, chance = self.world, self.chance
        rule = self._rule()
        luck = chance.random()
        if luck < 0.2:
            executor = chance.choice((BUS, INNER))
            home = world.people.home(EXECUTORS.index(executor))
            world.people.command(lambda r: PauseExecutor(r, executor), home)
            resume_ms = 5_000.0 * chance.random()
            world.schedule.after(resume_ms, world.people.command, lambda r: ResumeExecutor(r, executor), home)
        elif luck < 0.55:
            world.people.command(lambda r: SetRule(r, rule.match, rule))
        elif luck < 0.8:
            world.people.command(lambda r: SetRule(r, rule.match, None))
        else:
            execution = ExecutionSettings(rules=tuple(self._rule() for _ in range(chance.randint(0, 2))))
            for broker in world.brokers:
                if broker.is_alive:
                    broker.post("event", Reconfigure(execution))

    def heal(self) -> None:
        """Resume every executor: an earlier command may have come late, or reached no broker."""
        if self.is_on:
            for after_ms in (2_000.0, 20_000.0):
                for executor in (BUS, INNER):
                    self.world.schedule.after(
                        after_ms,
                        self.world.people.command,
                        lambda r, key=executor: ResumeExecutor(r, key),
                        self.world.people.home(EXECUTORS.index(executor)),
                    )

    # -- inside the broker's process ----------------------------------------------------------------------------------

    def workers(self, numbered_from: int) -> list[WorkerNode]:
        brokers = [broker for broker in self.world.brokers for _ in range(self.count)]
        self.inner = [InnerNode(self.world, numbered_from + i, broker) for i, broker in enumerate(brokers)]
        return list(self.inner)

    def broker_started(self, broker: "BrokerNode") -> None:
        for node in self.inner:
            if node.broker is broker:
                self.world.schedule.after(5.0 * self.chance.random(), node.start)

    def broker_died(self, broker: "BrokerNode") -> None:
        for node in self.inner:
            if node.broker is broker:
                node.die_with_broker()


class InnerNode(WorkerNode):
    def __init__(self, world: "World", number: int, broker: "BrokerNode") -> None:
        super().__init__(world, number)
        self.broker = broker
        self.offers = tuple(Offer(name, self.concurrency, shadow_safe=True) for name in HANDLERS)
        self.host = broker.host
        self.proof = self.is_provable = False
        self._rate = dict.fromkeys(self._rate, 0.0)
        self._lives = 0

    @property
    def principal(self) -> str:
        return PROCESS

    def _reached_brokers(self) -> "list[BrokerNode]":
        return [self.broker]

    def start(self) -> None:
        if not self.is_alive and self.broker.is_alive:
            super().start()

    def new_id(self) -> str | None:
        """Return the id of the next worker; None if the broker died as it received it, and this worker with it."""
        self._lives += 1
        broker = self.broker
        worker_id = own_worker(INNER, broker.id, broker.state.identity.epoch, 16 * self._lives + self.number)
        broker.post("event", Attached(worker_id, INNER))
        return worker_id if broker.is_alive else None

    def kill(self) -> None:
        """Detach this worker. Another one starts after a while."""
        if self.is_alive:
            self._end()
            self.broker.post("event", Detached(self.id))
            self.world.schedule.after(500.0, self.start)

    def die_with_broker(self) -> None:
        if self.is_alive:
            self.world.trace("worker_killed", self.id)
            self._end()
