"""Calls on routing: the rules that choose the executor and the workers of a step."""

from typing import Any

from stepwire.errors import NotFound

from .transport import Calls


class RoutingCalls(Calls):
    """Routing rules, and the results of shadow runs."""

    def route(self, path: str, worker_selector: str | None = None) -> dict[str, Any]:
        """The executor for a step with this path (`namespace::workflow::step`), and the rule that decides."""
        return self._transport.get("/v1/route", {"path": path, "worker_selector": worker_selector})

    def rules(self) -> dict[str, Any]:
        """All routing rules."""
        return self._transport.get("/v1/rules")

    def set_rule(self, rule: dict[str, Any]) -> dict[str, Any]:
        """Store this rule and apply it from now on, also after restarts. A rule with the same `match` is replaced."""
        return self._transport.post("/v1/rules", rule, is_safe=True)

    def remove_rule(self, match: str) -> dict[str, Any]:
        """Remove the rule that was set at run time for this `match`."""
        try:
            return self._transport.post("/v1/rules/remove", {"match": match}, is_safe=True)
        except NotFound as error:
            if error.may_be_done:
                return {"match": match, "is_set": False}  # removed by the first try, whose answer was lost
            raise

    def shadows(self) -> dict[str, Any]:
        """The comparisons of shadow copies with their steps."""
        return self._transport.get("/v1/shadows")
