"""What the API needs of a broker. `stepwire_broker.engine.Broker` is one; tests bring another."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from stepwire_broker.bus.counters import WireCounters
from stepwire_broker.core.definitions.settings import Settings
from stepwire_broker.core.definitions.workflow import Workflow
from stepwire_broker.core.explain import Unroutable
from stepwire_broker.core.model.answers import Answer
from stepwire_broker.core.model.events import Command, Now
from stepwire_broker.core.overview import ExecutorView, WorkerView
from stepwire_broker.core.state import BrokerState
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
        """Give the core a command; the answer comes after the commit. Cancelled, the request is forgotten."""
        ...

    def handled(self) -> Awaitable[None]:
        """Done when every command and message given to the engine before is handled, and what the core answered at once
        to attached workers is delivered."""
        ...

    async def read(self, query: Callable[Concatenate[Queries, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `query(queries, …)` in a reader's thread, with the questions of store/queries.py: it sees what is
        committed."""
        ...

    def read_at_once(self, query: Callable[Concatenate[Queries, P], T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Run it on the loop, for a few rows that were committed a moment ago. None rather than wait for a lock."""
        ...

    def prune(self) -> None:
        """Have what is over and too old removed now, rather than within a minute."""
        ...

    def readiness(self) -> list[str]:
        """Why no work can be accepted now; empty when it can."""
        ...

    @property
    def state(self) -> BrokerState:
        """The core's state: to look at, never to change."""
        ...

    @property
    def measures(self) -> Measures: ...

    @property
    def wire_counters(self) -> WireCounters: ...

    def add_commit_listener(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back after every commit until the returned function is called."""
        ...

    def now(self) -> Now:
        """Both clocks, as the core reads them."""
        ...

    @property
    def workflows(self) -> Mapping[int, Workflow]:
        """Every version of every workflow, by its number."""
        ...

    def workers(self) -> list[WorkerView]:
        """The live worker sessions, which are in no database."""
        ...

    def executors(self) -> list[ExecutorView]:
        """Where steps can go, and how it does there."""
        ...

    def add_tap(self, callback: Tap) -> Callable[[], None]:
        """Call back with every message of the bus until the returned function is called."""
        ...

    def attach(self, worker: str, executor: str, deliver: Callable[[bytes, bytes], None]) -> Callable[[], None]:
        """A worker that does not come over the bus, for what is routed to `executor`. What is for its inbox goes to
        `deliver(topic, body)`. The result lets it go: what it held is lost then."""
        ...

    def hear(self, topic: bytes, body: bytes) -> None:
        """What an attached worker says."""
        ...
