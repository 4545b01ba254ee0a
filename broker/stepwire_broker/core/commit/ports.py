"""What the core and the stages need of the world, as protocols. The shipped adapters are one world, the simulation
another."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from stepwire_broker.core.definitions.stored_rows import Loaded, Payloads
from stepwire_broker.core.model.commit_group import CommitGroup
from stepwire_broker.core.model.events import Now


class ReadClocks(Protocol):
    def __call__(self) -> Now: ...


class Lane(Protocol):
    """Takes groups one at a time. Each comes back as an Outcome; the next is put after that."""

    def put(self, group: CommitGroup) -> None: ...


class WirePort(Protocol):
    """The bus towards workers. False: dropped, which may happen to any message at any time anyway."""

    def send(self, topic: bytes, body: bytes) -> bool: ...

    def send_frame(self, frame: bytes) -> bool: ...

    def grant(self, to: str) -> None:
        """The level-0 peer whose subscription is being reported receives what begins with this `to`."""
        ...

    def send_to_peer(self, to: str, body: bytes) -> bool: ...


class Queries(Protocol):
    """What is read from the database, on a read-only connection."""

    def load_page(
        self, connection: Any, limit: int, epoch: int, wants: Sequence[str], now_ms: int, resident_bytes_max: int
    ) -> Loaded: ...

    def load_tasks(self, connection: Any, task_ids: Sequence[int], resident_bytes_max: int) -> Loaded: ...

    def tasks_of_steps(self, connection: Any, step_ids: Sequence[int]) -> Mapping[int, tuple[int, str]]: ...

    def load_payloads(self, connection: Any, task_ids: Sequence[int], step_ids: Sequence[int]) -> Payloads: ...
