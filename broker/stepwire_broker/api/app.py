"""The routes: which path is answered by which function. Read it as the table of contents of the API."""

import asyncio
import functools

from starlette.routing import Route, Router

from . import (
    breakers,
    database,
    events,
    executors,
    health,
    http,
    metrics,
    openapi,
    routing,
    steps,
    tasks,
    workers,
    workflows,
)
from .engine_port import EnginePort
from .events import Followers
from .http import Requests, Resource
from .operations import OPERATIONS
from .polling.gateway import Gateway
from .tap import Taps
from .token import Scope


class Application:
    """The API of one broker, without what guards it (gate.py) and what carries it (server.py)."""

    def __init__(self, broker: EnginePort) -> None:
        self.taps = Taps(broker)
        self.followers = Followers(broker)
        self.polling = Gateway(broker)
        self.requests = Requests()
        self._closing = asyncio.Event()
        resource = functools.partial(Resource, broker, self._closing, _scope_of)
        self.resources: list[Resource] = [  # the busiest first: they are tried in this order
            resource("/v1/tasks/batch", POST=tasks.submit_batch),
            resource("/v1/tasks", POST=tasks.submit, GET=tasks.page),
            resource("/v1/worker/lease", POST=self.polling.lease),
            resource("/v1/worker/heartbeat", POST=self.polling.heartbeat),
            resource("/v1/worker/start", POST=self.polling.start),
            resource("/v1/worker/results", POST=self.polling.results),
            resource("/v1/worker/bye", POST=self.polling.bye),
            resource("/v1/tasks/{task_id}", GET=tasks.show),
            resource("/v1/tasks/{task_id}/cancel", POST=tasks.cancel),
            resource("/v1/tasks/{task_id}/pause", POST=tasks.pause),
            resource("/v1/tasks/{task_id}/resume", POST=tasks.resume),
            resource("/v1/tasks/{task_id}/retry", POST=tasks.retry),
            resource("/v1/tasks/{task_id}/why", GET=tasks.why),
            resource("/v1/tasks/{task_id}/steps/{name}", GET=tasks.step),
            resource("/v1/tasks/{task_id}/steps/{name}/why", GET=tasks.why_step),
            resource("/v1/tasks/{task_id}/events", GET=events.of_task),
            resource("/v1/events", GET=self.followers.stream),
            resource("/v1/steps", GET=steps.page),
            resource("/v1/steps/{step_id}", GET=steps.show),
            resource("/v1/steps/{step_id}/resolve", POST=steps.resolve),
            resource("/v1/workflows", POST=workflows.apply, GET=workflows.page),
            resource("/v1/workflows/{name}", GET=workflows.show),
            resource("/v1/workflows/{name}/activate", POST=workflows.activate),
            resource("/v1/workers", GET=workers.all_of_them),
            resource("/v1/workers/{worker}/drain", POST=workers.drain),
            resource("/v1/executors", GET=executors.all_of_them),
            resource("/v1/executors/{executor}", GET=executors.show),
            resource("/v1/executors/{executor}/pause", POST=executors.pause),
            resource("/v1/executors/{executor}/resume", POST=executors.resume),
            resource("/v1/route", GET=routing.route),
            resource("/v1/rules", GET=routing.rules, POST=routing.set_rule),
            resource("/v1/rules/remove", POST=routing.remove_rule),
            resource("/v1/shadows", GET=routing.shadows),
            resource("/v1/breakers", GET=breakers.all_of_them),
            resource("/v1/breakers/{handler_class}", POST=breakers.put),
            resource("/v1/database/prune", POST=database.prune),
            resource("/v1/tap", GET=self.taps.stream),
            resource("/openapi.json", GET=openapi.show),
            resource("/metrics", GET=self._metrics),
            resource("/readyz", GET=health.readyz),
            resource("/livez", GET=health.livez),
        ]
        self.paths = [each.path for each in self.resources]
        self.routes = Router(
            [Route(each.path, each) for each in self.resources], redirect_slashes=False, default=http.not_found
        )

    async def _metrics(self, call: http.HttpCall) -> http.Reply:
        return await metrics.show(call, self.requests)

    def close(self) -> None:
        """End what would not end by itself: waiting clients are told how it stands, streams are over."""
        self._closing.set()
        self.polling.close()
        self.taps.close()
        self.followers.close()


def _scope_of(method: str, path: str) -> Scope | None:
    return OPERATIONS[method, path].scope
