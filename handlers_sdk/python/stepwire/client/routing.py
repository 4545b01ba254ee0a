"""Calls on routing: which executor and worker a step goes to."""

from typing import Any

from .transport import Calls


class RoutingCalls(Calls):
    """Routing rules, and the results of shadow runs."""

    def route(self, path: str, worker_selector: str | None = None) -> dict[str, Any]:
        """Where a step of this path (`namespace::workflow::step`) goes, and which rule decides that."""
        return self._transport.get("/v1/route", {"path": path, "worker_selector": worker_selector})

    def rules(self) -> dict[str, Any]:
        """All routing rules."""
        return self._transport.get("/v1/rules")

    def set_rule(self, rule: dict[str, Any]) -> dict[str, Any]:
        """Apply this rule from now on, also after restarts. A rule with the same `match` is replaced."""
        return self._transport.post("/v1/rules", rule, is_safe=True)

    def remove_rule(self, match: str) -> dict[str, Any]:
        """Remove the rule that was set at run time for this `match`."""
        return self._transport.post("/v1/rules/remove", {"match": match}, is_safe=True)

    def shadows(self) -> dict[str, Any]:
        """How the results of shadow runs compare with those of their steps."""
        return self._transport.get("/v1/shadows")
