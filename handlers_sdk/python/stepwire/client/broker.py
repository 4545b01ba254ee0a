"""Calls on the broker itself."""

from typing import Any

import msgspec

from .transport import Calls, error_of


class BrokerCalls(Calls):
    """Health and maintenance."""

    def is_alive(self) -> bool:
        """True if a broker answers at this address. Sends one request, which needs no token."""
        try:
            return self._transport.get_once("/livez").status == 200
        except OSError:
            return False

    def readiness(self) -> dict[str, Any]:
        """Returns `{"ready": true, "reasons": []}`, or the reasons why the broker accepts no work. One request."""
        try:
            answer = self._transport.get_once("/readyz")
        except OSError as error:
            raise self._transport.unreachable(error) from error
        if answer.status not in (200, 503):
            raise error_of(answer.status, answer.body)
        document: dict[str, Any] = msgspec.json.decode(answer.body)
        return document

    def orchestration(self) -> dict[str, Any]:
        """The health of the broker's stages: `{"status", "reason", "executor_pools", "database", …}`."""
        return self._transport.get("/health/orchestration")

    def brokers(self) -> dict[str, Any]:
        """The brokers of the deployment: `{"broker", "epoch", "controls_revision", "brokers"}`."""
        return self._transport.get("/v1/brokers")

    def lanes(self) -> dict[str, Any]:
        """The lanes with their owners: `{"broker", "epoch", "lanes"}`."""
        return self._transport.get("/v1/lanes")

    def move_lane(self, lane: int, to: str) -> dict[str, Any]:
        """Have the owner of a lane give it to another broker. `lanes` shows when that broker owns it."""
        return self._transport.post(f"/v1/lanes/{lane}/move", {"to": to}, is_safe=True)

    def finish_erasures(self) -> dict[str, Any]:
        """Search the database file for words of the payloads that were erased, and rewrite the file if any is left.

        `is_clean` in the answer: the search was complete and found nothing. Otherwise `hint` names the next action."""
        return self._transport.post("/v1/database/finish-erasures", None, is_safe=True)

    def audit(
        self,
        *,
        principal: str | None = None,
        action: str | None = None,
        target: str | None = None,
        outcome: str | None = None,
        since: str | None = None,
        until: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> dict[str, Any]:
        """One page of the audit, the newest rows first. `next_cursor` is the `cursor` of the next page."""
        filters = {"principal": principal, "action": action, "target": target, "outcome": outcome}
        page = {"since": since, "until": until, "limit": limit, "cursor": cursor}
        return self._transport.get("/v1/audit", {**filters, **page})

    def audit_head(self) -> dict[str, Any]:
        """The last row of each of the audit's chains: `{"at", "heads"}`."""
        return self._transport.get("/v1/audit/head")

    def record_backup(self, file: str) -> dict[str, Any]:
        """Record in the audit that the database will be copied to this file. Returns the same as `audit_head`."""
        return self._transport.post("/v1/database/backups", {"file": file}, is_safe=False)

    def prune(self) -> dict[str, Any]:
        """Remove finished tasks whose retention time is over.

        Returns `{"now_ms", "completed_ms", "failed_ms"}`: the time of the call, and the retention times.
        """
        return self._transport.post("/v1/database/prune", None, is_safe=True)
