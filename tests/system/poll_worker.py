"""A worker over HTTP with several slots, made from the standard library.

The worker implements what SPEC.md requires and nothing else. It records its actions, and loses answers on request.

    python -m tests.system.poll_worker DIRECTORY NAME URL[,URL…] [--slots N] [--loses 0.3] [--seed N]

Its handlers are those of handlers.py, with `work_ms` and `gate` only. Of several brokers the worker prefers the first:
when that one does not answer, it goes on at the next, and looks for the first again while it holds no step.
"""

import argparse
import http.client
import itertools
import json
import os
import random
import secrets
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from .handlers import GATE_POLL_S, GATES, LEDGERS, token
from .ledger import Ledger

AGAIN = (0, 421, 429, 500, 503)
HOME_AGAIN_S = 3.0
Item = tuple[int, int]


class Held:
    def __init__(self, session: str) -> None:
        self.session = session
        self.state = "queued"
        self.since = time.monotonic()
        self.stop = threading.Event()


class PollWorker:
    def __init__(self, directory: Path, name: str, url: str, slots: int, loses: float, seed: int) -> None:
        self.id = f"{name}:{secrets.token_hex(8)}"
        self.slots = slots
        self._gates = directory / GATES
        self._ledger = Ledger(directory / LEDGERS, f"worker-{name}-{os.getpid()}")
        self._wire = Ledger(directory / LEDGERS, f"wire-{name}-{os.getpid()}", is_synced=False)
        self._beats = itertools.count(1)
        self._token = (directory / ".stepwire" / "token").read_text().strip()
        self._hosts = [urlsplit(each).netloc for each in url.split(",")]
        self._host = self._hosts[0]
        self._away_since = 0.0
        self._loses = loses
        self._random = random.Random(seed)
        self._lock = threading.Condition()
        self._held: dict[Item, Held] = {}
        self._session: str | None = None
        self._lease_until = 0.0
        self._n = 0
        self._heartbeat_s = 0.1
        self._is_lost = False  # the session is over: the next lease reports what still runs

    def run(self) -> None:
        threading.Thread(target=self._heartbeats, daemon=True).start()
        try:
            while True:
                with self._lock:
                    while not (self._is_lost or self._free() > 0):
                        self._lock.wait()
                self._lease()
        finally:
            self._call("bye", n=self._n + 1, session=self._session, drain=False)

    def _lease(self) -> None:
        self._look_for_home()
        with self._lock:
            self._n += 1
            body = {"n": self._n, "session": self._session, "holding": self._holding(), "free": self._free()}
        sent, beat = time.monotonic(), self._record_beat()
        status, answer = self._call(
            "lease", **body, handlers=["system.*"], slots=self.slots, lang="test", pid=os.getpid(), wait_ms=3_000
        )
        if status == 409:
            self._lose_session()
        if status != 200:
            time.sleep(0.05)
            return
        with self._lock:
            if answer["session"] != self._session:
                self._drop_queued()
                self._session, self._is_lost, self._lease_until = answer["session"], False, 0.0
            self._heartbeat_s = answer["heartbeat_ms"] / 1000
            self._renew(sent, answer)
            self._record_heard(beat, answer)
            self._record_heard(self._record_beat(), answer)  # a call that waits counts as heartbeats
            steps = [(step, Held(answer["session"])) for step in answer["steps"]]
            for step, held in steps:
                item = (step["step_id"], step["delivery"])
                assert item not in self._held, f"{item} was given twice"
                self._held[item] = held
        for step, held in steps:
            threading.Thread(target=self._do, args=(step, held, answer), daemon=True).start()

    def _do(self, step: dict[str, Any], held: Held, answer: dict[str, Any]) -> None:
        item = (step["step_id"], step["delivery"])
        result = self._started(step, held, item)
        if result is None:
            with self._lock:
                self._held.pop(item, None)
                self._lock.notify_all()
            return
        with self._lock:
            held.state = "done"
            self._lock.notify_all()
        batch = {name: answer[name] for name in ("deployment", "batch_id")}
        result = {"step_id": item[0], "delivery": item[1], **result}
        while self._call("results", session=held.session, **batch, results=[result])[0] in AGAIN:
            time.sleep(0.05)
        with self._lock:
            self._held.pop(item, None)

    def _started(self, step: dict[str, Any], held: Held, item: Item) -> dict[str, Any] | None:
        """Start and run the step. None: it must not start."""
        if step["delivery_mode"] == "at_most_once":
            while (status := self._call("start", session=held.session, items=[item])[0]) in AGAIN:
                time.sleep(0.05)
            if status != 200:
                return None
            self._record("go", items=[item], session=held.session)
        while True:
            with self._lock:
                if held.session != self._session or self._is_lost or item not in self._held or held.stop.is_set():
                    return None
                if time.monotonic() < self._lease_until:
                    held.state, held.since = "running", time.monotonic()
                    break
            self._heartbeat()
        config, key = step["handler_config"], step["metadata"]["idempotency_key"]
        seen = {name: output.get("token") for name, output in step["previous_results"].items()}
        self._write("started", step, mode=step["delivery_mode"], key=key, seen=seen, session=held.session)
        gate = config.get("gate")
        while gate is not None and not (self._gates / gate).exists() and not held.stop.wait(GATE_POLL_S):
            pass
        if held.stop.wait(config.get("work_ms", 0) / 1000):
            self._write("stopped", step, reason="cancel")
            return {"status": "failed", "error": {"message": "stopped", "code": "outcome_unknown"}}
        self._write("effect", step, key=key)
        self._write("finished", step)
        return {"status": "completed", "output": {"token": token(*item, os.getpid())}}

    def _heartbeats(self) -> None:
        while True:
            time.sleep(self._heartbeat_s)
            if self._held:
                self._heartbeat()

    def _heartbeat(self) -> None:
        with self._lock:
            session, holding = self._session, self._holding()
        sent, beat = time.monotonic(), self._record_beat()
        status, answer = self._call("heartbeat", session=session, holding=holding)
        with self._lock:
            if status == 200 and session == self._session:
                self._renew(sent, answer)
                self._record_heard(beat, answer)
                for step_id, delivery, _ in answer["cancel"]:
                    if (held := self._held.get((step_id, delivery))) is not None:
                        held.stop.set()
        if status == 409 and session == self._session:
            self._lose_session()

    def _lose_session(self) -> None:
        with self._lock:
            self._is_lost = True
            self._drop_queued()
            self._lock.notify_all()

    def _drop_queued(self) -> None:
        for item, held in list(self._held.items()):
            if held.state == "queued":
                held.stop.set()
                del self._held[item]

    def _renew(self, sent: float, answer: dict[str, Any]) -> None:
        self._lease_until = max(self._lease_until, sent + answer["lease_ms"] * 0.97 / 1000)

    def _holding(self) -> list[list[Any]]:
        now = time.monotonic()
        return [[*item, held.state, int((now - held.since) * 1000)] for item, held in self._held.items()]

    def _free(self) -> int:
        return self.slots - sum(held.state != "done" for held in self._held.values())

    def _write(self, event: str, step: dict[str, Any], **facts: Any) -> None:
        self._ledger.write(
            event,
            step_id=step["step_id"],
            task_id=step["task_id"],
            step=step["step_name"],
            delivery=step["delivery"],
            attempt=step["metadata"]["attempt"],
            pid=os.getpid(),
            **facts,
        )

    def _record(self, event: str, **facts: Any) -> None:
        self._wire.write(event, pid=os.getpid(), worker=self.id, **facts)

    def _record_beat(self) -> int:
        n = next(self._beats)
        self._record("beat", n=n)
        return n

    def _record_heard(self, n: int, answer: dict[str, Any]) -> None:
        """The broker has renewed the lease of the session, which is this worker's present one."""
        self._record("beat_heard", n=n, session=self._session, broker=answer["broker"])

    def _look_for_home(self) -> None:
        """End the session with another broker than the first, if it holds no step."""
        with self._lock:
            is_due = self._host != self._hosts[0] and time.monotonic() > self._away_since + HOME_AGAIN_S
            if not is_due or self._held:
                return
            self._n += 1
            n, session, self._session = self._n, self._session, None
        if session is not None:
            self._call("bye", n=n, session=session, drain=False)
        with self._lock:
            self._go_to(self._hosts[0])

    def _go_to(self, host: str) -> None:
        self._host = host
        self._away_since = time.monotonic()

    def _go_on_from(self, host: str, url: str | None = None) -> None:
        """Send the next call to this URL, otherwise to the broker that follows in the list."""
        with self._lock:
            if host == self._host:
                follower = self._hosts[(self._hosts.index(host) + 1) % len(self._hosts)]
                self._go_to(urlsplit(url).netloc if url else follower)

    def _call(self, what: str, **members: Any) -> tuple[int, dict[str, Any]]:
        """Send one request, and repeat it at the broker that has the session. Status 0: no answer, or a lost one."""
        status, answer = self._call_once(what, members)
        return self._call_once(what, members) if status == 421 else (status, answer)

    def _call_once(self, what: str, members: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        host = self._host
        connection = http.client.HTTPConnection(host, timeout=20)
        try:
            body = json.dumps({"worker": self.id, **members})
            headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
            connection.request("POST", f"/v1/worker/{what}", body, headers)
            if self._random.random() < self._loses:
                time.sleep(self._random.random() * 0.03)
                return 0, {}
            answer = connection.getresponse()
            document = json.loads(answer.read())
            if answer.status in (421, 503):  # 421: the session is with another broker, which has this URL
                self._go_on_from(host, document.get("url"))
            return answer.status, document
        except (OSError, ValueError, http.client.HTTPException):
            self._go_on_from(host)
            return 0, {}
        finally:
            connection.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("name")
    parser.add_argument("url")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--loses", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    PollWorker(options.directory, options.name, options.url, options.slots, options.loses, options.seed).run()


if __name__ == "__main__":
    main()
