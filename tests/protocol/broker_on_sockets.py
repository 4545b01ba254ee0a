"""A broker for dialogues: the real one, with its database, behind real sockets. Its worker or its level-0 handlers are
played.
"""

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import msgspec
from conformance.dialogue import Dialogue
from conformance.sockets import PlayedHandlers, retry
from stepwire_broker.core.definitions.settings import Level0Settings, Settings

from tests.api.running_api import Api, running, settings_in


class BrokerOnSockets(PlayedHandlers):
    def __init__(self, dialogue: Dialogue, directory: Path) -> None:
        lease_ms = dialogue.given["lease_ms"]
        settings = settings_in(directory)
        level0 = Level0Settings(at_most_once=dialogue.given.get("at_most_once", False))
        bus = msgspec.structs.replace(settings.bus, lease_ms=lease_ms, heartbeat_ms=lease_ms // 5, level0=level0)
        super().__init__(bus.steps, bus.results, dialogue.given.get("peers", []))
        self._settings: Settings = msgspec.structs.replace(settings, bus=bus)
        self._directory = directory
        self._exits = contextlib.ExitStack()
        self._api: Api
        self._task_ids: list[int] = []

    def __enter__(self) -> "BrokerOnSockets":
        self._start()
        self.connect()
        return self

    def __exit__(self, *args: object) -> None:
        self._stop()
        self.close()

    def _start(self) -> None:
        self._api = self._exits.enter_context(running(self._directory, self._settings))

    def _stop(self) -> None:
        self._exits.pop_all().close()

    # -- the real side of the stage -----------------------------------------------------------------------------------

    def subscribe(self, peer: str, topic: str, *, on: bool) -> None:
        """Returns when the broker has seen the subscription or its end."""
        before = self._level0_peers()
        super().subscribe(peer, topic, on=on)
        retry(lambda: None if self._level0_peers() != before else "the broker has not seen the change")

    def act(self, what: str, facts: dict[str, Any]) -> None:
        match what:
            case "submit":
                self._submit(facts)
            case "cancel_task":
                answer = self._api.call("POST", f"/v1/tasks/{self._task_ids[-1]}/cancel", {})
                assert answer.status < 300, answer
            case "stop":
                self._stop()
            case "restart":
                self._stop()
                self.discard_received()
                self._start()
                if self._peers:  # handlers connect and subscribe again by themselves
                    retry(lambda: None if self._level0_peers() else "no handler has reconnected")
            case _:
                raise ValueError(what)

    def see(self, what: str, facts: dict[str, Any]) -> str | None:
        match what:
            case "task":
                return retry(lambda: self._task_problem(facts))
            case "refused":
                return retry(lambda: self._refusals_problem(facts))
        raise ValueError(what)

    def _task_problem(self, facts: dict[str, Any]) -> str | None:
        task_id = self._task_ids[facts.get("number", len(self._task_ids)) - 1]
        task = self._api.call("GET", f"/v1/tasks/{task_id}").json
        seen = {**task, "output": task["steps"][-1]["output"]}
        fits = all(seen[name] == value for name, value in facts.items() if name != "number")
        return None if fits else f"the task is {json.dumps(task)}"

    def _refusals_problem(self, facts: dict[str, Any]) -> str | None:
        metrics = self._api.call("GET", "/metrics").body.decode()
        counts = re.findall(r'^stepwire_bus_refusals_total\{.*"(\w+)"\} (\d+)', metrics, re.M)
        refused = {code: int(times) for code, times in counts}
        return None if refused.get(facts["code"], 0) == facts["times"] else f"the counts of refusals are {refused}"

    def _level0_peers(self) -> list[str]:
        return [w["worker"] for w in self._api.call("GET", "/v1/workers").json["workers"] if w["level"] == 0]

    def _submit(self, facts: dict[str, Any]) -> None:
        step = {"name": "work", "handler_class": facts["handler_class"]}
        step |= {name: facts[name] for name in ("delivery_mode", "retry_limit", "timeout_ms") if name in facts}
        if "backoff_ms" in facts:
            step["backoff"] = {"base_ms": facts["backoff_ms"], "jitter": "none"}
        steps = [step]
        if "then_handler_class" in facts:
            steps.append({"name": "then", "handler_class": facts["then_handler_class"], "depends_on": ["work"]})
        workflow = {"name": f"dialogue{len(self._task_ids) + 1}", "version": "1", "steps": steps}
        assert self._api.call("POST", "/v1/workflows", workflow).status == 201
        task = {"workflow": workflow["name"], "context": facts["context"]}
        answer = self._api.call("POST", "/v1/tasks", task)
        assert answer.status == 201, answer
        self._task_ids.append(answer.json["task_id"])
