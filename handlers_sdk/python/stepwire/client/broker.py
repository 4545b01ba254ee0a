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

    def finish_erasures(self) -> dict[str, Any]:
        """Search the database file for words of the payloads that were erased, and rewrite the file if any is left.

        `is_clean` in the answer: the search was complete and found nothing. Otherwise `hint` names the next action."""
        return self._transport.post("/v1/database/finish-erasures", None, is_safe=True)

    def prune(self) -> dict[str, Any]:
        """Remove finished tasks whose retention time is over.

        Returns `{"now_ms", "completed_ms", "failed_ms"}`: the time of the call, and the retention times.
        """
        return self._transport.post("/v1/database/prune", None, is_safe=True)
