"""The number of requests by route, method and status."""

from typing import Final

from starlette.types import Message, Send
from starlette.types import Scope as ASGIScope

from .http import Resource

NO_ROUTE: Final = "none"  # an unknown path, or a request that access control refused
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class RequestCounts:
    """Routes and methods come from fixed lists, so that clients cannot make the table grow."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, str, int], int] = {}

    def count(self, route: str, method: str, status: int) -> None:
        key = (route, method, status)
        self.counts[key] = self.counts.get(key, 0) + 1

    def counting(self, scope: ASGIScope, send: Send) -> Send:
        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                resource = scope.get("endpoint")
                route = resource.path if isinstance(resource, Resource) else NO_ROUTE
                method = scope["method"] if scope["method"] in _METHODS else "other"
                self.count(route, method, message["status"])
            await send(message)

        return counted
