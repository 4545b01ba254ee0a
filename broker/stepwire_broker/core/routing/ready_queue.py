"""The ready queue: higher priority first, then age. Namespaces take turns, so that no namespace starves another.

Steps are kept by namespace, lane and route, so that a route without workers costs nothing. The entry of a step that
leaves `ready` without being dispatched stays here, and is skipped when its turn comes.
"""

from collections import deque
from collections.abc import Callable, Container, Iterator
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from stepwire_broker.core.model.live import Step
from stepwire_broker.core.model.states import READY, RUNNING
from stepwire_broker.core.model.targets import Route

# negated priority, ready since, step id; the count makes the order total when a task is loaded a second time
_Entry: TypeAlias = tuple[int, int, int, int, Step]
_Head: TypeAlias = tuple[Route, list[_Entry]]  # a route, and its heap, which is not empty
_Heaps: TypeAlias = dict[int, dict[Route, list[_Entry]]]  # by lane and route


class ReadyQueue:
    def __init__(self, quantum: int, route_of: Callable[[Step], Route]) -> None:
        self._route_of = route_of
        self.quantum = quantum  # steps of a namespace that leave before the next namespace has its turn
        self._by_namespace: dict[str, _Heaps] = {}
        self._turns: deque[str] = deque()
        self._left = quantum  # steps that the namespace at the front may still take in this turn
        self._puts = 0
        self.count = 0

    def put(self, step: Step) -> None:
        """Add a step that became ready, unless it is already in the queue."""
        if step.queued:
            return
        step.queued = True
        self.count += 1
        namespace = step.task.namespace
        lanes = self._by_namespace.get(namespace)
        if lanes is None:
            lanes = self._by_namespace[namespace] = {}
            self._turns.append(namespace)
        routes = lanes.get(step.task.lane)
        if routes is None:
            routes = lanes[step.task.lane] = {}
        step.route = route = self._route_of(step)
        heap = routes.get(route)
        if heap is None:
            heap = routes[route] = []
        rank = -(step.task.priority + step.definition.priority)
        self._puts += 1
        heappush(heap, (rank, step.ready_ms or 0, step.id, self._puts, step))

    def _heaps(self) -> Iterator[_Head]:
        for lanes in self._by_namespace.values():
            for routes in lanes.values():
                yield from routes.items()

    def entries(self) -> list[Step]:
        """Return the steps of all entries, ready or not."""
        return [entry[-1] for _, heap in self._heaps() for entry in heap]

    def routes(self) -> Iterator[Route]:
        """Yield each route with entries, perhaps several times."""
        return (route for route, _ in self._heaps())

    def count_of(self, servable: Container[Route]) -> int:
        """Return the approximate number of ready steps of these routes."""
        return sum(len(heap) for route, heap in self._heaps() if route in servable)

    def next(
        self, servable: Container[Route], closing: Container[int] | None = None, lane: int | None = None
    ) -> tuple[Route, Step] | None:
        """Remove and return the next step of these routes. None if these routes have no step.

        `closing`: the lanes whose groups are handed to their writers now; None: all lanes. A step of another lane waits
        for the end of its lane's group in any case. It leaves now only if all others have a lower priority, so that
        these do not take its worker. Among steps of the same priority, those of `lane` come first.
        """
        for _ in range(len(self._turns) + 1):
            if not self._turns:
                return None
            namespace = self._turns[0]
            best = self._best(self._by_namespace[namespace], servable, closing, lane) if self._left > 0 else None
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

    def _best(
        self, lanes: _Heaps, servable: Container[Route], closing: Container[int] | None, preferred: int | None
    ) -> tuple[Route, Step] | None:
        if len(lanes) == 1:
            (lane,) = lanes
            is_waited_for = closing is not None and lane not in closing
            best = None if is_waited_for else self._first(lanes, lane, servable)
        else:
            best = self._best_of(lanes, servable, closing, preferred)
        if best is None:
            return None
        route, heap = best
        step = heappop(heap)[-1]
        step.queued = False
        self.count -= 1
        return route, step

    def _best_of(
        self, lanes: _Heaps, servable: Container[Route], closing: Container[int] | None, preferred: int | None
    ) -> _Head | None:
        best: tuple[_Head, int] | None = None
        has_closing = False
        for lane in tuple(lanes):
            first = self._first(lanes, lane, servable)
            if first is not None:
                has_closing |= closing is None or lane in closing
                if best is None or _comes_before(first, lane, *best, closing, preferred):
                    best = first, lane
        return best[0] if best is not None and has_closing else None

    def _first(self, lanes: _Heaps, lane: int, servable: Container[Route]) -> _Head | None:
        """Return the route with the first step of this lane, and its heap."""
        best: _Head | None = None
        empty: list[Route] = []
        routes = lanes[lane]
        for route, heap in routes.items():
            while heap and not _is_ready(heap[0][-1]):
                heap[0][-1].queued = False
                self.count -= 1
                heappop(heap)
            if not heap:
                empty.append(route)
            elif route in servable and (best is None or heap[0] < best[1][0]):
                best = route, heap
        for route in empty:
            del routes[route]
        if not routes:
            del lanes[lane]
        return best

    def ahead_of(self, step: Step, look_at_max: int) -> int:
        """Count the steps of the same namespace and route that are dispatched before this step. If more than
        `look_at_max` entries exist, return the number of all other entries."""
        route = self._route_of(step)
        heaps = [routes.get(route, []) for routes in self._by_namespace.get(step.task.namespace, {}).values()]
        entries = sum(map(len, heaps))
        if entries > look_at_max:
            return entries - 1
        own = (-(step.task.priority + step.definition.priority), step.ready_ms or 0, step.id)
        return sum(entry[:3] < own and _is_ready(entry[-1]) for heap in heaps for entry in heap)

    def ready_counts(self) -> Iterator[tuple[Route, int, int]]:
        """Yield each namespace, lane and route with the number of ready steps and the time when the oldest became
        ready."""
        for route, heap in self._heaps():
            since = [entry[1] for entry in heap if _is_ready(entry[-1])]
            if since:
                yield route, len(since), min(since)

    def oldest(self) -> Iterator[tuple[Route, int, int]]:
        """Yield each route, perhaps several times, with the approximate number of ready steps and the time when the
        next one became ready."""
        for route, heap in self._heaps():
            if heap and _is_ready(heap[0][-1]):
                yield route, len(heap), heap[0][1]

    def backlog(self, exact_max: int) -> Iterator[tuple[Route, int, int]]:
        """Yield the same as `ready_counts`. Of a queue of more than `exact_max` entries, yield its length, and the time
        when the next step became ready."""
        for route, heap in self._heaps():
            if len(heap) > exact_max:
                yield route, len(heap), heap[0][1]
                continue
            since = [entry[1] for entry in heap if _is_ready(entry[-1])]
            if since:
                yield route, len(since), min(since)

    def reroute(self, route_of: Callable[[Step], Route]) -> None:
        """Move each step to its new route after a change of routing. The order by priority and age stays."""
        self._route_of = route_of
        steps = self.entries()
        self._by_namespace = {}
        self._turns.clear()
        self._left = self.quantum
        self.count = 0
        for step in steps:
            step.queued = False
            if _is_ready(step):
                self.put(step)

    def sweep(self) -> None:
        """Remove the entries of steps that are no longer ready, so that a route without workers does not keep them in
        memory."""
        for _, heap in self._heaps():
            kept = [entry for entry in heap if _is_ready(entry[-1])]
            if len(kept) != len(heap):
                for entry in heap:
                    if not _is_ready(entry[-1]):
                        entry[-1].queued = False
                self.count -= len(heap) - len(kept)
                heapify(kept)
                heap[:] = kept


def _comes_before(
    head: _Head, lane: int, other: _Head, other_lane: int, closing: Container[int] | None, preferred: int | None
) -> bool:
    """True if the first step of a lane leaves before the first step of another lane."""
    entry, other_entry = head[1][0], other[1][0]
    if entry[0] != other_entry[0]:
        return entry[0] < other_entry[0]
    if closing is not None and (lane in closing) != (other_lane in closing):
        return lane in closing
    if preferred in (lane, other_lane):
        return lane == preferred
    return entry < other_entry


def _is_ready(step: Step) -> bool:
    return step.state is READY and step.task.state is RUNNING and bool(step.task.steps)
