"""The protocols by which the core and the stages use the outside: the shipped adapters, or the simulation."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from stepwire_broker.core.definitions.stored_rows import Catalogue, LeftBehind, Loaded, Payloads, StoredOrder
from stepwire_broker.core.model.events import Now


class ReadClocks(Protocol):
    def __call__(self) -> Now: ...


class WirePort(Protocol):
    """The bus towards workers. False: the message was dropped, which can happen to any message anyway."""

    def send(self, topic: bytes, body: bytes) -> bool: ...

    def send_frame(self, frame: bytes) -> bool: ...

    def grant(self, to: str) -> None:
        """Let the level-0 peer whose subscription is being reported receive messages that begin with this `to`."""
        ...

    def send_to_peer(self, to: str, body: bytes) -> bool: ...


class LoadQueries(Protocol):
    """The core's reads from the database: tasks to bring into memory, and their payloads."""

    def load_page(
        self,
        limit: int,
        lanes: Mapping[int, LeftBehind | None],
        wants: Sequence[str],
        now_ms: int,
        resident_bytes_max: int,
    ) -> Loaded:
        """Return open tasks of these lanes that are in no broker's memory, by priority and age.

        Tasks that are not marked as stored were left behind by the former owner: they come first, from where `lanes`
        says. The page is filled up with stored tasks that are due, or whose `wants` is one of these. Payloads larger
        than `resident_bytes_max` are left out."""

    def load_tasks(self, task_ids: Sequence[int], resident_bytes_max: int) -> Loaded:
        """Tasks by id, in any state. Tasks that do not exist are left out."""

    def tasks_of_steps(self, step_ids: Sequence[int]) -> Mapping[int, tuple[int, str]]:
        """By step id: the id and the state of its task. Steps that do not exist are left out."""

    def load_payloads(self, task_ids: Sequence[int], step_ids: Sequence[int]) -> Payloads:
        """Whole contexts and outputs, of any size."""

    def catalogue(self, known: Collection[int]) -> Catalogue:
        """Return what every broker keeps in memory, with the workflows whose ids are not in `known`."""

    def open_orders(self, lanes: Sequence[int], limit: int) -> list[StoredOrder]:
        """Return orders of these lanes that have no answer, the oldest first."""

    def controls_revision(self) -> int:
        """Return the highest revision of `controls`. It rises with every change of controls and workflows."""
