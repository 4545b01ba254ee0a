"""The engine as the API uses it. `stepwire_broker.engine.Engine` implements it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from stepwire_broker.audit_trail import AuditTrail
from stepwire_broker.bus.counters import WireCounters
from stepwire_broker.coordinator.coordinator import Coordinator
from stepwire_broker.core.answers.answers import Answer
from stepwire_broker.core.backlog.unroutable import Unroutable
from stepwire_broker.core.definitions.settings import Settings
from stepwire_broker.core.definitions.workflow import Workflow
from stepwire_broker.core.model.events import Command, Now
from stepwire_broker.core.model.live import StepProgress
from stepwire_broker.core.model.principal import PROCESS, Grant
from stepwire_broker.core.overview import ExecutorView, WorkerView
from stepwire_broker.core.state import BrokerState
from stepwire_broker.erasures import Erasures
from stepwire_broker.loop_measures import Measures
from stepwire_broker.store.queries import Queries
from stepwire_broker.taps import Tap

P = ParamSpec("P")
T = TypeVar("T")


class EnginePort(Protocol):
    @property
    def settings(self) -> Settings: ...

    @property
    def unroutable(self) -> Sequence[Unroutable]: ...

    @property
    def deployment(self) -> str: ...

    @property
    def broker_id(self) -> str: ...

    @property
    def epoch(self) -> int: ...

    async def ask(self, make: Callable[[int], Command]) -> Answer:
        """Send a command to the core, and return the core's answer after the commit. A cancelled call gets no
        answer."""
        ...

    def handled(self) -> Awaitable[None]:
        """Wait until the engine has handled every earlier command and message, and has delivered the core's immediate
        answers to attached workers."""
        ...

    async def read(self, query: Callable[Concatenate[Queries, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `query(queries, …)` in a reader's thread. The query reads committed rows only."""
        ...

    async def scan(self, query: Callable[Concatenate[Queries, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a query that may read many rows, in a thread that no other read waits for."""
        ...

    def read_at_once(self, query: Callable[Concatenate[Queries, P], T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Run a query on the event loop, for a few rows that were just committed. None if the query would have to
        wait."""
        ...

    @property
    def erasures(self) -> Erasures:
        """The erasures of this broker, outside of the core."""
        ...

    def prune(self) -> None:
        """Remove tasks whose retention time is over, at once instead of within a minute."""
        ...

    def readiness(self) -> list[str]:
        """The reasons why the broker accepts no work now; empty if it accepts work."""
        ...

    def insecure(self) -> list[str]:
        """The codes of `posture.INSECURE` that apply: what is open to other users or hosts."""
        ...

    @property
    def state(self) -> BrokerState:
        """The core's state, read-only. Only core_views.py uses it."""
        ...

    @property
    def coordinator(self) -> Coordinator:
        """The pools of the stages and their health."""
        ...

    @property
    def audit(self) -> AuditTrail: ...

    @property
    def measures(self) -> Measures: ...

    @property
    def wire_counters(self) -> WireCounters: ...

    def add_commit_listener(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after every commit, until the returned function is called."""
        ...

    def add_progress_listener(self, callback: Callable[[StepProgress], None]) -> Callable[[], None]:
        """Call `callback` with every progress report, until the returned function is called."""
        ...

    def now(self) -> Now:
        """The current time on both clocks of the core."""
        ...

    @property
    def workflows(self) -> Mapping[int, Workflow]:
        """Every version of every workflow, by its number."""
        ...

    def workers(self) -> list[WorkerView]:
        """The live workers, which are in memory only."""
        ...

    def executors(self) -> list[ExecutorView]:
        """The executors with their state and counts."""
        ...

    def add_tap(self, callback: Tap) -> Callable[[], None]:
        """Call `callback` with every message of the bus, until the returned function is called."""
        ...

    def announce_http(self, url: str) -> None:
        """Name this URL of the API to the other brokers."""
        ...

    def attach(
        self, worker: str, executor: str, deliver: Callable[[bytes, bytes], None], grant: Grant | None = None
    ) -> Callable[[], None]:
        """Attach a worker that is not connected to the bus, for steps that are routed to `executor`.

        `deliver(topic, body)` is called with each message to the worker. The returned function detaches the worker;
        its deliveries are then lost.
        """
        ...

    def regrant(self, worker: str, executor: str, grant: Grant) -> None:
        """Give the workers of an attached worker's token the token's changed grant."""
        ...

    def hear(self, topic: bytes, body: bytes, principal: str = PROCESS) -> None:
        """Receive a message of an attached worker. `principal`: of the grant that the worker was attached with."""
        ...
