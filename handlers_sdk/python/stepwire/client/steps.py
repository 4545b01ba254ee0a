"""Calls on single steps."""

from typing import Any, Literal

from . import payloads
from .transport import Calls, in_path


class StepCalls(Calls):
    """Read steps, and resolve held ones."""

    def steps(self, **filters: Any) -> dict[str, Any]:
        """A page of steps. Filters: state, handler_class, limit, cursor.

        `next_cursor` continues the list. A page with `scanned_to` may have fewer steps than `limit`, or none, although
        there are more: the broker has searched back to this time."""
        return self._transport.get("/v1/steps", filters)

    def step(self, step_id: int) -> dict[str, Any]:
        """One step. Its payloads need the scope `inspect`."""
        return payloads.of_step(self._transport.get(_path(step_id)))

    def resolve(
        self,
        step_id: int,
        outcome: Literal["completed", "failed", "retry"],
        *,
        reason: str,
        output: Any = None,
        message: str | None = None,
        new_key: bool = False,
    ) -> dict[str, Any]:
        """Decide the outcome of a held step. `reason` is stored with it."""
        body: dict[str, Any] = {"outcome": outcome, "reason": reason}
        if output is not None:
            body["output"] = output
        if message is not None:
            body["message"] = message
        if new_key:
            body["new_key"] = True
        return self._transport.post(f"{_path(step_id)}/resolve", body, is_safe=False)


def _path(step_id: int) -> str:
    return f"/v1/steps/{in_path(int(step_id))}"
