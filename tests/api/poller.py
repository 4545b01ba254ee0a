"""A worker over HTTP, one call at a time, whose content the test decides."""

import secrets
from typing import Any

from .running_api import Answer, Api

Item = tuple[int, int]


class Poller:
    """`lease` sends what a good worker sends, unless the test says otherwise; `held` are the deliveries that it has."""

    offers = "**"  # unless a test says which handlers

    def __init__(self, api: Api, *handlers: str, slots: int = 10, name: str = "poller") -> None:
        self.api = api
        self.id = f"{name}:{secrets.token_hex(8)}"
        self.handlers = handlers or (self.offers,)
        self.slots = slots
        self.n = 0
        self.rid = 0
        self.session: str | None = None
        self.deployment = ""
        self.batches: dict[Item, str] = {}
        self.held: dict[Item, str] = {}

    def call(self, what: str, **said: Any) -> Answer:
        return self.api.call("POST", f"/v1/worker/{what}", {"worker": self.id, **said})

    def lease_call(self, **said: Any) -> Answer:
        self.n += 1
        usual = {
            "n": self.n,
            "session": self.session,
            "handlers": list(self.handlers),
            "slots": self.slots,
            "holding": self.holding(),
            "wait_ms": 5_000,
        }
        return self.call("lease", **usual | said)

    def lease(self, **said: Any) -> list[dict[str, Any]]:
        """The steps of a call, after opening a session if necessary."""
        if self.session is None:
            self.open()
        answer = self.lease_call(**said)
        assert answer.status == 200, answer
        return self.take(answer.json)

    def open(self) -> None:
        answer = self.lease_call()
        assert answer.status == 200, answer
        assert answer.json["steps"] == []
        self.session, self.deployment = answer.json["session"], answer.json["deployment"]

    def take(self, leased: dict[str, Any]) -> list[dict[str, Any]]:
        for step in leased["steps"]:
            item = (step["step_id"], step["delivery"])
            self.held[item] = "queued"
            self.batches[item] = leased["batch_id"]
        found: list[dict[str, Any]] = leased["steps"]
        return found

    def holding(self) -> list[list[Any]]:
        return [[*item, state, 0] for item, state in self.held.items()]

    def heartbeat(self, **said: Any) -> Answer:
        return self.call("heartbeat", **{"session": self.session, "n": self.n, "holding": self.holding()} | said)

    def start(self, *items: Item) -> Answer:
        return self.call("start", session=self.session, items=items)

    def report(self, *items: Item, **said: Any) -> Answer:
        self.rid += 1
        usual = {
            "session": self.session,
            "deployment": self.deployment,
            "batch_id": self.batches[items[0]],
            "rid": self.rid,
            "results": [
                {"step_id": step_id, "delivery": delivery, "status": "completed", "output": {"by": self.id}}
                for step_id, delivery in items
            ],
        }
        answer = self.call("results", **usual | said)
        if answer.status == 200:
            for item in items:
                self.held.pop(item, None)
        return answer

    def bye(self, **said: Any) -> Answer:
        self.n += 1
        return self.call("bye", **{"n": self.n, "session": self.session, "holding": self.holding()} | said)
