"""The broker inside an application: no server to start, one SQLite file, handlers in the same process.

    async with Broker.open("orders.db", handlers=worker) as broker:
        await broker.apply({"name": "order", "steps": [{"name": "charge", "handler_class": "shop.charge"}]})
        task = await broker.submit("order", {"total": 12.5}, key="order-17")
        result = await task.result()

All acknowledged work is stored: kill the application, open the file again, and the work continues.
"""

from stepwire_broker.core_loop import BrokerStopped
from stepwire_broker.errors import BrokerError
from stepwire_broker.store.errors import InUse

from .broker import Broker
from .errors import CommandError, TaskCancelled, TaskFailed, TaskHeld, TaskNotCompleted
from .task import Task
from .views import AppliedWorkflow, StepView, TaskView

__all__ = [
    "AppliedWorkflow",
    "Broker",
    "BrokerError",
    "BrokerStopped",
    "CommandError",
    "InUse",
    "StepView",
    "Task",
    "TaskCancelled",
    "TaskFailed",
    "TaskHeld",
    "TaskNotCompleted",
    "TaskView",
]
