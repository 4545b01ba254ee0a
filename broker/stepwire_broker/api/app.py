"""The routes: the function for each method and path. This table is the table of contents of the API."""

import asyncio

from starlette.routing import Route, Router

from stepwire_broker.operator_commands import COMMANDS, ERASE_TASK

from . import (
    audit,
    backlog,
    breakers,
    brokers,
    commands,
    database,
    erasing,
    events,
    executors,
    health,
    http,
    metrics,
    openapi,
    orchestration,
    routing,
    steps,
    tasks,
    workers,
    workflows,
)
from .audit_notes import AuditNotes
from .connections import HttpConnections
from .engine_port import EnginePort
from .events import Followers
from .http import Handler, Resource
from .limits import DEFAULT, HttpLimits
from .operations import OPERATIONS
from .polling.gateway import Gateway
from .refusals import Refusals
from .replies import Reply
from .request_counts import RequestCounts
from .shares import Shares
from .tap import TapStreams


class Application:
    """The API of one broker, without access control (access.py) and transport (server.py)."""

    def __init__(self, broker: EnginePort, limits: HttpLimits = DEFAULT) -> None:
        self.notes = AuditNotes(broker)
        self.taps = TapStreams(broker, self.notes)
        self.followers = Followers(broker)
        self.polling = Gateway(broker)
        self.requests = RequestCounts()
        self.refusals = Refusals()
        self.shares = Shares(limits, self.refusals)
        self.connections = HttpConnections(limits, self.refusals)
        self._closing = asyncio.Event()
        by_path: dict[str, dict[str, Handler]] = {}
        for (method, path), handler in self._handlers().items():
            by_path.setdefault(path, {})[method] = handler
        self.resources = [
            Resource(broker, self._closing, OPERATIONS, self.shares, self.notes, path, **handlers)
            for path, handlers in by_path.items()
        ]
        self.paths = list(by_path)
        self.routes = Router(
            [Route(each.path, each) for each in self.resources], redirect_slashes=False, default=http.not_found
        )

    def _handlers(self) -> dict[tuple[str, str], Handler]:
        """The functions by method and path, the busiest first, because the router tries the paths in this order."""
        return {
            ("POST", "/v1/tasks/batch"): tasks.submit_batch,
            ("POST", "/v1/tasks"): tasks.submit,
            ("GET", "/v1/tasks"): tasks.page,
            ("POST", "/v1/worker/lease"): self.polling.named(self.polling.lease),
            ("POST", "/v1/worker/heartbeat"): self.polling.named(self.polling.heartbeat),
            ("POST", "/v1/worker/start"): self.polling.named(self.polling.start),
            ("POST", "/v1/worker/results"): self.polling.named(self.polling.results),
            ("POST", "/v1/worker/bye"): self.polling.named(self.polling.bye),
            ("GET", "/v1/tasks/{task_id}"): tasks.show,
            ("GET", "/v1/tasks/{task_id}/why"): tasks.why,
            ("GET", "/v1/tasks/{task_id}/steps/{name}"): tasks.step,
            ("GET", "/v1/tasks/{task_id}/steps/{name}/why"): tasks.why_step,
            ("GET", "/v1/tasks/{task_id}/events"): events.of_task,
            ("GET", "/v1/events"): self.followers.stream,
            ("GET", "/v1/steps"): steps.page,
            ("GET", "/v1/steps/{step_id}"): steps.show,
            ("POST", "/v1/workflows"): workflows.apply,
            ("GET", "/v1/workflows"): workflows.page,
            ("GET", "/v1/workflows/{name}"): workflows.show,
            ("POST", "/v1/workflows/{name}/activate"): workflows.activate,
            ("GET", "/v1/workers"): workers.page,
            ("GET", "/v1/executors"): executors.page,
            ("GET", "/v1/executors/{executor}"): executors.show,
            ("GET", "/v1/route"): routing.route,
            ("GET", "/v1/rules"): routing.rules,
            ("GET", "/v1/shadows"): routing.shadows,
            ("GET", "/v1/breakers"): breakers.page,
            ("GET", "/v1/backlog"): backlog.show,
            ("GET", "/v1/brokers"): brokers.page,
            ("GET", "/v1/lanes"): brokers.lanes,
            ("POST", "/v1/database/prune"): database.prune,
            ("POST", "/v1/database/backups"): audit.record_backup,
            ("GET", "/v1/audit"): audit.page,
            ("GET", "/v1/audit/head"): audit.head,
            ("GET", "/v1/tap"): self.taps.stream,
            ("POST", "/v1/database/finish-erasures"): erasing.finish,
            **{("POST", command.path): commands.handler(command) for command in COMMANDS},
            ("POST", ERASE_TASK.path): erasing.erase,
            ("GET", "/openapi.json"): openapi.show,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/health/orchestration"): orchestration.show,
            ("GET", "/readyz"): health.readyz,
            ("GET", "/livez"): health.livez,
        }

    async def _metrics(self, call: http.HttpCall) -> Reply:
        return await metrics.show(call, self.requests, metrics.Usage(self.shares, self.connections))

    def close(self) -> None:
        """End the requests that would not end by themselves: answer long polls, and end streams."""
        self._closing.set()
        self.polling.close()
        self.taps.close()
        self.followers.close()
