"""A token with the scope `read` sends twelve lists at a time that no index serves, to a broker with 50,000 tasks."""

import threading
import time
from collections import Counter

from stepwire_broker.core.answers.scopes import Scope

from .target import Target

PATHS = ("/v1/tasks?label=region=none", "/v1/steps?handler_class=none.**", "/v1/tasks?state=cancelled")


def prepare(target: Target) -> None:
    tasks = [{"workflow": "order", "labels": {"region": "eu"}}] * 10_000
    for _ in range(5):
        assert target.call("POST", "/v1/tasks/batch", target.admin, {"tasks": tasks})[0] == 201


def attack(target: Target, seconds: float) -> dict[str, int]:
    token = target.token("searcher", Scope.READ)
    seen: Counter[str] = Counter()
    ends_s = time.monotonic() + seconds
    threads = [threading.Thread(target=_search, args=(target, token, n, ends_s, seen)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return dict(seen)


def _search(target: Target, token: str, number: int, ends_s: float, seen: Counter[str]) -> None:
    while time.monotonic() < ends_s:
        try:
            seen[str(target.call("GET", PATHS[number % len(PATHS)], token)[0])] += 1
        except OSError:
            seen["closed"] += 1
