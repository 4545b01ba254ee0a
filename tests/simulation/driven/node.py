"""A worker whose session and run slots are a driver's process."""

from typing import TYPE_CHECKING, Any, NoReturn

from conformance.driver_process import Failed
from stepwire.session import Config

from tests.simulation.worker_node import Running, WorkerNode

from .drivers import Drivers
from .session import DrivenSession, DriversRunSlots

if TYPE_CHECKING:
    from tests.simulation.world import World


class DrivenNode(WorkerNode):
    def __init__(self, world: "World", number: int, drivers: Drivers) -> None:
        super().__init__(world, number)
        self._drivers = drivers

    def new_session(self, config: Config) -> tuple[Any, Any]:
        try:
            driver = self._drivers.of_worker(self.number)
        except Failed as failed:
            self._fail(str(failed))
        return DrivenSession(driver, config, self._fail), DriversRunSlots()

    def _start_soon(self, running: Running) -> None:
        """The run has begun in the driver, so its handler is entered at once."""
        self._on_start(running)

    def _expel(self) -> None:
        self.session.expel(self.now())

    def _fail(self, how: str) -> NoReturn:
        self._drivers.discard(self.number)
        self.world.checks.books.fail("W a session answers every op", f"the session of {self._drivers.name}: {how}")
