"""`python -m tests.fuzz.bus_messages --seed 1 --count 10000000 --sockets 100000`: mutated messages of a worker.

COUNT messages enter the broker in its own process, in the name of one admitted principal, without the budgets of the
bus; the last number is sent to a broker process over connections, with the budgets. A message is the same for a seed
and a number, but for the ids of live traffic: `--first 4700 --count 100` sends number 4731 again. Exit code 1: an
exception that is not a refusal; an exception in the log; the loop computed for longer than LOOP_MS_MAX without a pause;
the state of others changed; the database has an error; or honest steps were not completed by their own workers.
"""

import argparse
import asyncio
import json
import math
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import msgspec
from stepwire_broker.api import access, token
from stepwire_broker.api.app import Application
from stepwire_broker.core.definitions.settings import Level0Settings, Settings
from stepwire_broker.core.model.events import GrantsChanged, Subscribed
from stepwire_broker.core.model.principal import ANY_LABEL, Grant, with_built_in
from stepwire_broker.core.state import BrokerState
from stepwire_broker.engine import Engine
from stepwire_protocol import errors, topics

from tests.api.running_api import settings_in

from . import bus_sockets
from .bus_mutations import BLOCK, BROKER, HANDLER, WORKER, Live, Messages
from .honest_peers import HELD, LEVEL0, OUTPUT, QUICK, honest_peers
from .http_bodies import call, serving
from .observed import LOOP_MS_MAX, Observed, check_database, logged

PROGRAM: Final = "tests.fuzz.bus_messages"
PRINCIPAL: Final = "fuzz"
OPEN_MIN, OPEN_MAX = 30, 200  # tasks for the hostile worker
SUPPLY_EVERY: Final = 10  # blocks
ANSWER_S: Final = 60.0
LEASE_MS: Final = 600_000
SHOWN_BYTES: Final = 1_500
FUZZED: Final[dict[str, Any]] = {
    "name": "fuzzed",
    "version": "1",
    "steps": [
        {"name": "a", "handler_class": HANDLER},
        {"name": "b", "handler_class": HANDLER, "delivery_mode": "at_most_once"},
        {"name": "c", "handler_class": HANDLER, "depends_on": ["a"]},
    ],
}
GRANT: Final = Grant(
    principal=PRINCIPAL, workers=("fuzz",), handlers=("fuzz.*",), labels=(ANY_LABEL,), level0=True
)  # fmt: skip


class Fuzz:
    """One broker, its honest peers, and the hostile worker."""

    def __init__(self, broker: Engine, entry: Any, seed: int, observed: Observed) -> None:
        self.broker = broker
        self.observed = observed
        self._entry = entry
        self._core = broker.core_loop
        self._state: BrokerState = broker.state
        self._messages = Messages(seed)
        self._live = Live.unknown(WORKER)
        self._n = 0
        self._k = 0
        self.honest_tasks: tuple[int, ...] = ()

    async def prepare(self) -> None:
        """Let the honest peers take their steps, and the hostile worker join."""
        grants = with_built_in((GRANT,))
        self._core.handle(GrantsChanged(grants, frozenset()))
        for workflow in (HELD, QUICK, FUZZED):
            await self._call("POST", "/v1/workflows", workflow)
        await self._call("POST", f"/v1/breakers/{HANDLER}", {"state": "closed", "reason": "fuzzed"})
        self.honest_tasks = (await self._submit("held"),)
        await self._until(lambda: len(self._held()) == len(HELD["steps"]), "the honest steps to begin")
        inbox = topics.to_worker(WORKER)
        self.broker.core_loop.wire.attach(inbox, lambda topic, body: None)
        self._core.handle(Subscribed(WORKER), PRINCIPAL)
        self._live.update(self._foreign())
        await self._supply()

    async def send(self, first: int, count: int, ends_s: float) -> None:
        """Send whole blocks of messages."""
        for number in range(first, first + count, BLOCK):
            if time.monotonic() > ends_s:
                return
            self._join()
            self._learn()
            self._send_block(number)
            if number // BLOCK % SUPPLY_EVERY == 0:
                await self._supply()
            else:
                await asyncio.sleep(0)

    def _send_block(self, number: int) -> None:
        receive, observed, clock = self._core.receive, self.observed, time.thread_time_ns
        answers: Counter[str | None] = Counter()
        block = self._messages.block(number, self._live)
        before, others = clock(), self._others()
        for at, (topic, body) in enumerate(block):
            try:
                answers[receive(topic, body, PRINCIPAL)] += 1
            except Exception as error:
                observed.fault(f"{number + at}: {topic!r} {body[:SHOWN_BYTES]!r}: {error!r}")
            after = clock()
            if after - before > observed.loop_ms * 1e6:
                observed.loop_ms = (after - before) / 1e6
                observed.loop_at = f"{number + at}: {topic!r} {body[:200]!r}"
            before = after
        if self._others() != others:
            observed.fault(
                f"{number}..{number + BLOCK - 1} changed the state of others: {_difference(others, self._others())}"
            )
        for code, times in answers.items():
            if code is not None and code not in errors.REFUSALS:
                observed.fault(f"{number}..{number + BLOCK - 1}: {code!r} is no code of a refusal")
            observed.statuses[code or "accepted"] += times
        observed.requests += BLOCK
        self._core.flush()
        after = clock()
        if after - before > observed.loop_ms * 1e6:
            observed.loop_ms, observed.loop_at = (after - before) / 1e6, f"the flush after {number}"

    def _join(self) -> None:
        """Open a session of the hostile worker again, after one of its own messages has ended it."""
        session = self._state.sessions.get(WORKER)
        if session is None or session.draining or session.muted or not session.free:
            self._k = max(self._k, 0 if session is None else session.k, self._state.dead_k.get(WORKER, 0)) + 1
            self._n += 1
            hello = {"type": "hello", "v": "2.0", "worker": WORKER, "n": self._n, "versions": ["2.0"], "slots": 50}
            hello |= {"next": {BROKER: self._k}, "free": {BROKER: 50}, "handlers": [HANDLER]}
            self._core.receive(topics.WORKERS, msgspec.json.encode(hello), PRINCIPAL)
            self._core.flush()

    def _learn(self) -> None:
        """Take the ids of the hostile worker's current session, and of the delivery that is its oldest."""
        live, session = self._live, self._state.sessions.get(WORKER)
        self._n += 1
        live.update({"n": b"%d" % self._n, "rid": b"%d" % self._n})
        live["deployment"] = b'"%s"' % self.broker.deployment.encode()
        live["next"] = b"%d" % (self._k + (self._n % 8 == 0))
        live["session"] = b'"1.1"' if session is None else b'"%s"' % session.id.encode()
        step = next(iter(session.deliveries.values()), None) if session is not None else None
        if step is not None and step.batch_id is not None:
            live["old.batch"], live["old.step"] = live["batch"], live["step"]
            live["batch"], live["step"] = b'"%s"' % step.batch_id.encode(), b"%d" % step.id
            live["delivery"] = b"%d" % step.delivery
        else:
            live["batch"], live["step"], live["delivery"] = live["old.batch"], live["old.step"], b"1"

    def _foreign(self) -> dict[str, bytes]:
        step = next(step for step in self._held() if step.session is not None)
        handout = next(iter(self._state.level0.handouts.values()))
        return {
            "foreign.worker": b'"%s"' % step.session.worker.encode(),
            "foreign.session": b'"%s"' % step.session.id.encode(),
            "foreign.batch": b'"%s"' % step.batch_id.encode(),
            "foreign.step": b"%d" % step.id,
            "foreign.delivery": b"%d" % step.delivery,
            "level0.batch": b'"%s"' % handout.id.encode(),
            "level0.step": b"%d" % handout.items[0][0],
        }

    def _held(self) -> list[Any]:
        """The honest steps that were sent to their workers."""
        steps = self._state.steps.values()
        return [step for step in steps if step.task.id in self.honest_tasks and step.batch_id]

    def _others(self) -> Any:
        """Everything of others that a message of the hostile worker could change."""
        state = self._state
        return (
            [
                (step.id, step.state, step.delivery, step.attempt, step.granted, step.seen, step.cancel, step.worker,
                 step.batch_id, step.started_ms, None if step.session is None else step.session.k)
                for task_id in self.honest_tasks for step in state.tasks[task_id].steps
            ],
            [(task.state, len(task.facts), task.dirty) for task in map(state.tasks.get, self.honest_tasks) if task],
            [
                (session.worker, session.id, session.principal, session.free, session.slots_free, session.unanswered,
                 session.heard_mono, session.reported_n, session.draining, session.stuck, session.muted,
                 session.confirmed, list(session.deliveries), list(session.unanswered_batches))
                for session in state.sessions.values() if session.principal != PRINCIPAL
            ],
            [(peer.to, peer.doubted, list(peer.holds), peer.completed) for peer in state.level0.peers.values()],
            [(handout.id, list(handout.items), handout.over) for handout in state.level0.handouts.values()],
            {worker: owner for worker, owner in state.inboxes.items() if owner != PRINCIPAL},
            {worker: k for worker, k in state.dead_k.items() if worker != WORKER},
            list(state.principals), list(state.attached), len(state.workflows),
        )  # fmt: skip

    async def _supply(self) -> None:
        """Keep some tasks open for the hostile worker. Too many are cancelled: it also holds steps for good."""
        own = [task_id for task_id in self._state.tasks if task_id not in self.honest_tasks]
        if len(own) < OPEN_MIN:
            tasks = [{"workflow": "fuzzed", "context": {"cents": 1}}] * OPEN_MIN
            await self._call("POST", "/v1/tasks/batch", {"tasks": tasks})
        for task_id in own[: max(0, len(own) - OPEN_MAX)]:
            await self._call("POST", f"/v1/tasks/{task_id}/cancel", {"reason": "fuzzed"})
        if self.broker.failed.done():
            self.observed.fault(f"the broker failed: {self.broker.failed.exception()!r}")

    async def finish(self, release: Path) -> None:
        """The honest steps end as their own workers say, and another task is run."""
        await asyncio.to_thread(release.touch)
        for task_id in (*self.honest_tasks, await self._submit("quick")):
            document: dict[str, Any] = {}
            ends_s = time.monotonic() + ANSWER_S
            while document.get("state") != "completed" and time.monotonic() < ends_s:
                await asyncio.sleep(0.05)
                document = await self._call("GET", f"/v1/tasks/{task_id}")
            outputs = [step.get("output") for step in document["steps"]]
            if document["state"] != "completed" or any(output != OUTPUT for output in outputs):
                self.observed.fault(f"honest task {task_id} is {document['state']} with the outputs {outputs}")

    def counts(self) -> dict[str, int]:
        """Count the steps that the hostile worker has ended, and the messages that changed nothing."""
        counters = self._state.counters
        names = ("completed", "failed", "held", "retried", "late_results", "sessions_opened", "ignored")
        return {name: getattr(counters, name) for name in names}

    async def _submit(self, workflow: str) -> int:
        return int((await self._call("POST", "/v1/tasks", {"workflow": workflow}))["task_id"])

    async def _call(self, method: str, path: str, document: Any = None) -> Any:
        return json.loads((await call(self._entry, method, path, self.observed, document))[1])

    async def _until(self, condition: Any, what: str) -> None:
        ends_s = time.monotonic() + ANSWER_S
        while not condition():
            assert time.monotonic() < ends_s, f"after {ANSWER_S:g} s still waiting for {what}"
            await asyncio.sleep(0.02)


def _difference(before: Any, after: Any) -> str:
    return next(
        (f"{one!r} became {other!r}"[:600] for one, other in zip(before, after, strict=True) if one != other), ""
    )


async def fuzz(directory: Path, seed: int, first: int, count: int, seconds: float) -> Observed:
    observed = Observed()
    settings = _settings(directory)
    asyncio.get_running_loop().set_exception_handler(lambda _, context: observed.fault(f"loop: {context}"))
    release = directory / "release"
    async with serving(directory, settings) as (broker, _):
        endpoints = broker.core_loop.wire.endpoints
        with honest_peers(endpoints["steps"], endpoints["results"], release) as peers:
            app = Application(broker)
            tokens = token.open_tokens(str(directory / "tokens"))
            entry = access.AccessControl(app.routes, tokens, frozenset({b"localhost"}), app.requests)
            fuzzed = Fuzz(broker, entry, seed, observed)
            await fuzzed.prepare()
            observed.statuses.clear()
            await fuzzed.send(first, count, time.monotonic() + seconds)
            sent = {code: times for code, times in observed.statuses.items() if not code.isdigit()}
            observed.steps = fuzzed.counts()
            await fuzzed.finish(release)
            observed.statuses = Counter(sent)
            if peers.poll() is not None:
                observed.fault(f"the honest peers ended with {peers.returncode}")
            app.close()
    check_database(directory / "state.db", observed)
    return observed


def _settings(directory: Path) -> Settings:
    settings = settings_in(directory)
    # On a busy machine the honest peers may be slower than a lease.
    bus = msgspec.structs.replace(settings.bus, level0=Level0Settings(handlers=(LEVEL0,)), lease_ms=LEASE_MS)
    return msgspec.structs.replace(settings, bus=bus)


def run(seed: int, first: int, count: int, seconds: float = math.inf) -> dict[str, Any]:
    """Fuzz a broker of its own in this process, and return the report."""
    began_s, cpu_s = time.monotonic(), time.process_time()
    with tempfile.TemporaryDirectory(prefix="fuzz") as directory, logged() as errors_logged:
        Path(directory).chmod(0o700)
        observed = asyncio.run(fuzz(Path(directory), seed, first, count, seconds))
    for error in errors_logged:
        observed.fault(error)
    return {
        "seed": seed,
        "first": first,
        "messages": observed.requests,
        "seconds": round(time.monotonic() - began_s, 1),
        "cpu_s": round(time.process_time() - cpu_s, 1),
        "answers": dict(sorted(observed.statuses.items())),
        "steps": observed.steps,
        "loop_ms_max": round(observed.loop_ms, 1),
        "loop_at": observed.loop_at,
        "faults": observed.faults,
        "ok": not observed.faults and observed.loop_ms <= LOOP_MS_MAX,
    }


def run_in_parts(seed: int, first: int, count: int, seconds: float, processes: int) -> list[dict[str, Any]]:
    """Divide the messages among processes, each with a broker of its own."""
    each = math.ceil(count / processes / BLOCK) * BLOCK
    command = [sys.executable, "-m", PROGRAM, "--seed", str(seed), "--seconds", str(seconds), "--processes", "1"]
    parts = [
        subprocess.Popen(
            [*command, "--sockets", "0", "--first", str(number), "--count", str(min(each, first + count - number))],
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(first, first + count, each)
    ]
    return [json.loads(part.communicate()[0])[0] for part in parts]


def main() -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {PROGRAM}", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help=f"the number of the first message, a multiple of {BLOCK}")
    parser.add_argument("--count", type=int, default=10_000_000)
    parser.add_argument("--sockets", type=int, default=100_000, help="messages over connections, with budgets")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop before COUNT after this time")
    options = parser.parse_args()
    first = options.first // BLOCK * BLOCK
    reports = []
    if options.count and options.processes > 1:
        reports += run_in_parts(options.seed, first, options.count, options.seconds, options.processes)
    elif options.count:
        reports.append(run(options.seed, first, options.count, options.seconds))
    if options.sockets:
        reports.append(bus_sockets.run(options.seed, first, options.sockets))
    print(json.dumps(reports, indent=1))
    return 0 if all(report["ok"] for report in reports) else 1


if __name__ == "__main__":
    sys.exit(main())
