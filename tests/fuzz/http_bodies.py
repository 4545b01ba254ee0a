"""`python -m tests.fuzz.http_bodies --seed 1 --count 1000000 --sockets 20000`: hostile requests to every operation.

Most enter the application in the broker's own process; `--sockets` of them travel over connections. Exit code 1: an
answer was 500, or missing; an exception was logged; the loop computed for longer than LOOP_MS_MAX without a pause; the
database has an error; or the broker does not work afterwards.

The client of a request in the process disconnects after its body. A long poll that notices that ends without an answer,
because HTTP has no way to send one, and is counted as GONE.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from stepwire import Worker
from stepwire_broker.api import access, listening, token
from stepwire_broker.api.app import Application
from stepwire_broker.api.http import CONNECTION
from stepwire_broker.api.limits import DEFAULT
from stepwire_broker.api.server import Server
from stepwire_broker.core.definitions.settings import Settings
from stepwire_broker.engine import Engine
from stepwire_broker.executors.registry import Executors

from tests.api.running_api import TOKEN, WORKFLOW, settings_in

from .http_requests import Request, request
from .observed import LOOP_MS_MAX, Observed, check_database, logged

TASKS_AT_ONCE: Final = 8
ANSWER_S: Final = 60.0
CLEAN_EVERY: Final = 2_000  # requests
CANCELLED_AT_ONCE: Final = 1_000
GONE: Final = "the client of a long poll has gone"


class Connection:
    """The connection of a request without a socket."""

    user_grant = None
    certificate = None
    is_too_slow = False
    answer_left = 0

    def present_token(self, name: str) -> None:
        pass

    def abort(self) -> None:
        pass


async def fuzz(directory: Path, seed: int, first: int, count: int, sockets: int, seconds: float) -> Observed:
    observed = Observed()
    settings = settings_in(directory)
    asyncio.get_running_loop().set_exception_handler(lambda _, context: observed.fault(f"loop: {context}"))
    async with serving(directory, settings) as (broker, port):
        app = Application(broker)
        tokens = token.open_tokens(str(directory / "tokens"))
        entry = access.AccessControl(app.routes, tokens, frozenset({b"localhost"}), app.requests)
        watching = asyncio.create_task(observed.watch_loop())
        await call(entry, "POST", "/v1/workflows", observed, WORKFLOW)
        numbers = _until(time.monotonic() + seconds, range(first, first + count))

        async def run() -> None:
            for number in numbers:
                hostile = request(random.Random(f"{seed}.{number}"), number)
                observed.current = f"{number}: {hostile.method} {hostile.path[:100]}"
                await _enter(entry, hostile, number, observed)
                observed.requests += 1
                if number % CLEAN_EVERY == CLEAN_EVERY - 1:
                    await _clean(broker, entry, observed)

        await asyncio.gather(*(run() for _ in range(TASKS_AT_ONCE)))
        await _over_sockets(port, seed, first + count, sockets, observed)
        watching.cancel()
        await _clean(broker, entry, observed)
        app.close()
        await _works(broker, entry, settings, observed)
    check_database(directory / "state.db", observed)
    return observed


def _until(ends_s: float, numbers: range) -> Iterator[int]:
    return itertools.takewhile(lambda number: time.monotonic() < ends_s, numbers)


@contextlib.asynccontextmanager
async def serving(directory: Path, settings: Settings) -> Any:
    executors = Executors(settings)
    executors.configure()
    broker = Engine(settings, companion=executors)
    await broker.start()
    (directory / "tokens").touch(0o600)
    (directory / "tokens").write_text(TOKEN)
    listeners = listening.Listeners(listening.listen(settings.http))
    tokens = token.open_tokens(str(directory / "tokens"))
    server = Server(broker, tokens, listeners, DEFAULT._replace(strangers_per_s=10**6))
    await server.start()
    try:
        yield broker, listeners.sockets[0].getsockname()[1]
    finally:
        await server.stop()
        await broker.stop()


async def _enter(entry: Any, hostile: Request, number: int, observed: Observed) -> tuple[int, bytes]:
    """Call the application as the HTTP server does. The client disconnects after its body, so streams end."""
    status, body, parts, has_gone = 0, [], [hostile.body], False

    async def receive() -> dict[str, Any]:
        nonlocal has_gone
        if parts:
            return {"type": "http.request", "body": parts.pop(), "more_body": False}
        await asyncio.sleep(0)
        has_gone = True
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            body.append(bytes(message.get("body", b"")))

    headers = [(b"host", b"localhost"), (b"authorization", b"Bearer " + TOKEN.encode())]
    headers += [(b"content-type", hostile.content_type), (b"content-length", b"%d" % len(hostile.body))]
    scope = {
        "type": "http",
        "method": hostile.method,
        "path": unquote(hostile.path),
        "query_string": hostile.query.encode("latin-1"),
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "root_path": "",
        CONNECTION: Connection(),
    }
    try:
        await asyncio.wait_for(entry(scope, receive, send), ANSWER_S)
    except Exception as error:
        observed.fault(f"{number}: {hostile}: {error!r}"[:600])
    is_gone = status == 0 and has_gone
    observed.statuses[GONE if is_gone else str(status)] += 1
    if status == 500 or (status == 0 and not is_gone):
        observed.fault(f"{number}: {hostile}: {b''.join(body)[:200]!r}"[:900])
    return status, b"".join(body)


async def _clean(broker: Engine, entry: Any, observed: Observed) -> None:
    """Cancel the open tasks, so that the number of open steps stays below its limit, and lift what stops them."""
    for executor in ("bus", "local"):
        await call(entry, "POST", f"/v1/executors/{executor}/resume", observed)
    for task_id in list(broker.state.tasks)[:CANCELLED_AT_ONCE]:
        await call(entry, "POST", f"/v1/tasks/{task_id}/cancel", observed, {"reason": "cleaned"})


async def call(entry: Any, method: str, path: str, observed: Observed, document: Any = None) -> tuple[int, bytes]:
    body = b"" if document is None else json.dumps(document).encode()
    return await _enter(entry, Request(method, path, "", b"application/json", body), -1, observed)


async def _over_sockets(port: int, seed: int, first: int, count: int, observed: Observed) -> None:
    numbers = iter(range(first, first + count))

    async def run() -> None:
        for number in numbers:
            hostile = request(random.Random(f"{seed}.{number}"), number)
            observed.current = f"{number}: {hostile.method} {hostile.path[:100]} over a socket"
            try:
                status = await asyncio.wait_for(_exchange(port, hostile), ANSWER_S)
            except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
                observed.fault(f"{number}: {hostile}: {error!r}"[:600])
                continue
            observed.statuses[f"{status} over a socket"] += 1
            if status in (0, 500):
                observed.fault(f"{number}: {hostile}: {status}"[:900])

    await asyncio.gather(*(run() for _ in range(TASKS_AT_ONCE)))


async def _exchange(port: int, hostile: Request) -> int:
    target = f"{hostile.path}?{hostile.query}" if hostile.query else hostile.path
    lines = [
        f"{hostile.method} {target} HTTP/1.1",
        "Host: localhost",
        f"Authorization: Bearer {TOKEN}",
        "Connection: close",
    ]
    lines += [f"Content-Type: {hostile.content_type.decode()}", f"Content-Length: {len(hostile.body)}", "", ""]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write("\r\n".join(lines).encode("latin-1", "replace") + hostile.body)
        line = await reader.readline()
        return int(line.split()[1]) if line else 0
    finally:
        writer.close()


async def _works(broker: Engine, entry: Any, settings: Settings, observed: Observed) -> None:
    """A new task is run by a worker, whatever rules and breakers the requests have set."""
    rules = json.loads((await call(entry, "GET", "/v1/rules", observed))[1])["rules"]
    for rule in rules:
        await call(entry, "POST", "/v1/rules/remove", observed, {"match": rule["match"]})
    for handler in ("shop.reserve", "shop.charge"):
        await call(entry, "POST", f"/v1/breakers/{handler}", observed, {"state": "auto"})
    workflow = {**WORKFLOW, "name": "honest", "version": "honest"}
    assert (await call(entry, "POST", "/v1/workflows", observed, workflow))[0] in (200, 201)
    worker = Worker(steps=settings.bus.steps, results=settings.bus.results, name="honest")
    worker.handler("shop.reserve")(lambda context: {"seats": 2})
    worker.handler("shop.charge")(lambda context: {"total": 1.5})
    worker.start()
    try:
        _, created = await call(entry, "POST", "/v1/tasks", observed, {"workflow": "honest"})
        ends_s, state = time.monotonic() + ANSWER_S, ""
        while state != "completed" and time.monotonic() < ends_s:
            await asyncio.sleep(0.05)
            state = json.loads((await call(entry, "GET", f"/v1/tasks/{json.loads(created)['task_id']}", observed))[1])[
                "state"
            ]
        if state != "completed":
            observed.fault(f"an honest task is {state}")
    finally:
        await asyncio.to_thread(worker.stop)


def report(observed: Observed, seed: int, first: int, sockets: int, seconds: float) -> dict[str, Any]:
    return {
        "seed": seed,
        "first": first,
        "requests": observed.requests,
        "over_sockets": sockets,
        "seconds": round(seconds, 1),
        "answers": dict(sorted(observed.statuses.items())),
        "loop_ms_max": round(observed.loop_ms, 1),
        "loop_at": observed.loop_at,
        "faults": observed.faults,
        "ok": not observed.faults and observed.loop_ms <= LOOP_MS_MAX,
    }


def run(seed: int, count: int, sockets: int, seconds: float = math.inf, first: int = 0) -> dict[str, Any]:
    """Fuzz a broker of its own with `count` requests or for this time, and return the report. Together, the runs of
    several parts of the numbers send the same requests as one long run."""
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fuzz") as directory, logged() as errors:
        Path(directory).chmod(0o700)
        observed = asyncio.run(fuzz(Path(directory), seed, first, count, sockets, seconds))
    for error in errors:
        observed.fault(error)
    return report(observed, seed, first, sockets, time.monotonic() - began_s)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.http_bodies", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the number of the first request, to run in parts")
    parser.add_argument("--count", type=int, default=1_000_000)
    parser.add_argument("--sockets", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop before COUNT after this time")
    options = parser.parse_args()
    outcome = run(options.seed, options.count, options.sockets, options.seconds, options.first)
    print(json.dumps(outcome, indent=1))
    return 0 if outcome["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
