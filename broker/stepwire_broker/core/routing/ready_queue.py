"""The ready queue: higher priority first, then age; namespaces take turns, so that one's flood starves nobody.

Steps are kept by namespace and route (where they go, and their handler_class), because whole routes are often without
any worker and must cost nothing then. Entries are not removed when a step leaves `ready` by another way; they are
passed over when they come up.
"""

from collections import deque
from collections.abc import Callable, Container, Iterator
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from stepwire_broker.core.model.live import Step
from stepwire_broker.core.model.states import READY, TaskState
from stepwire_broker.core.model.targets import Route

__all__ = ["ReadyQueue", "Route", "handler_of", "is_held_to_budget", "is_once"]

# priority (negated), ready since, step id; the count makes the order total when a task left memory and came back
_Entry: TypeAlias = tuple[int, int, int, int, Step]


def handler_of(route: Route) -> str:
    return route.handler_class


def is_once(route: Route) -> bool:
    return route.is_at_most_once


def is_held_to_budget(route: Route) -> bool:
    return route.is_held_to_budget


class ReadyQueue:
    def __init__(self, quantum: int, route_of: Callable[[Step], Route]) -> None:
        self._route_of = route_of
        self.quantum = quantum  # steps a namespace may take before the next one has its turn
        self._by_namespace: dict[str, dict[Route, list[_Entry]]] = {}
        self._turns: deque[str] = deque()
        self._left = quantum  # what the namespace at the front may still take
        self._puts = 0
        self.count = 0

    def put(self, step: Step) -> None:
        """A step became ready. It must not stand here already."""
        if step.queued:
            return
        step.queued = True
        self.count += 1
        namespace = step.task.namespace
        routes = self._by_namespace.get(namespace)
        if routes is None:
            routes = self._by_namespace[namespace] = {}
            self._turns.append(namespace)
        step.route = route = self._route_of(step)
        heap = routes.get(route)
        if heap is None:
            heap = routes[route] = []
        rank = -(step.task.priority + step.definition.priority)
        self._puts += 1
        heappush(heap, (rank, step.ready_ms or 0, step.id, self._puts, step))

    def routes(self) -> Iterator[Route]:
        for routes in self._by_namespace.values():
            yield from routes

    def count_of(self, servable: Container[Route]) -> int:
        """About how many stand there of these routes."""
        return sum(
            len(heap) for routes in self._by_namespace.values() for route, heap in routes.items() if route in servable
        )

    def next(self, servable: Container[Route]) -> tuple[Route, Step] | None:
        """The step whose turn it is, among the routes that somebody can serve now. It is taken out."""
        for _ in range(len(self._turns) + 1):
            if not self._turns:
                return None
            namespace = self._turns[0]
            best = self._best(self._by_namespace[namespace], servable) if self._left > 0 else None
            if best is not None:
                self._left -= 1
                return best
            self._left = self.quantum
            if self._by_namespace[namespace]:
                self._turns.rotate(-1)
            else:
                self._turns.popleft()
                del self._by_namespace[namespace]
        return None

    def _best(self, routes: dict[Route, list[_Entry]], servable: Container[Route]) -> tuple[Route, Step] | None:
        best: tuple[Route, list[_Entry]] | None = None
        empty: list[Route] = []
        for route, heap in routes.items():
            while heap and not _stands(heap[0][-1]):
                heap[0][-1].queued = False
                self.count -= 1
                heappop(heap)
            if not heap:
                empty.append(route)
            elif route in servable and (best is None or heap[0] < best[1][0]):
                best = route, heap
        for route in empty:
            del routes[route]
        if best is None:
            return None
        route, heap = best
        step = heappop(heap)[-1]
        step.queued = False
        self.count -= 1
        return route, step

    def ahead_of(self, step: Step, look_at_max: int) -> int:
        """How many of its namespace and route stand before it; of too many to look through, how many there are."""
        heap = self._by_namespace.get(step.task.namespace, {}).get(self._route_of(step), [])
        if len(heap) > look_at_max:
            return len(heap) - 1
        own = (-(step.task.priority + step.definition.priority), step.ready_ms or 0, step.id)
        return sum(entry[:3] < own and _stands(entry[-1]) for entry in heap)

    def standing(self) -> Iterator[tuple[Route, int, int]]:
        """By namespace and route: how many steps stand there, and since when the oldest does."""
        for routes in self._by_namespace.values():
            for route, heap in routes.items():
                since = [entry[1] for entry in heap if _stands(entry[-1])]
                if since:
                    yield route, len(since), min(since)

    def oldest(self) -> Iterator[tuple[Route, int, int]]:
        """By namespace and route: about how many steps stand there, and since when the one whose turn is next does."""
        for routes in self._by_namespace.values():
            for route, heap in routes.items():
                if heap and _stands(heap[0][-1]):
                    yield route, len(heap), heap[0][1]

    def sort_again(self, route_of: Callable[[Step], Route]) -> None:
        """Where steps go has changed: each stands in its new route, and keeps its place by priority and age."""
        self._route_of = route_of
        standing = [e[-1] for routes in self._by_namespace.values() for heap in routes.values() for e in heap]
        self._by_namespace = {}
        self._turns.clear()
        self._left = self.quantum
        self.count = 0
        for step in standing:
            step.queued = False
            if _stands(step):
                self.put(step)

    def sweep(self) -> None:
        """Throw out what has left `ready` by another way, so that a queue nobody serves does not keep it alive."""
        for routes in self._by_namespace.values():
            for route, heap in list(routes.items()):
                kept = [entry for entry in heap if _stands(entry[-1])]
                if len(kept) != len(heap):
                    for entry in heap:
                        if not _stands(entry[-1]):
                            entry[-1].queued = False
                    self.count -= len(heap) - len(kept)
                    heapify(kept)
                    routes[route] = kept


def _stands(step: Step) -> bool:
    return step.state is READY and step.task.state is TaskState.RUNNING and bool(step.task.steps)
