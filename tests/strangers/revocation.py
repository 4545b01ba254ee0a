"""The end and the return of access: `python -m tests.strangers.revocation`.

A worker whose principal is revoked while it runs steps: when it is disconnected, which of its messages still count, who
runs its steps, and when it works again after `keys allow`. Then the open requests of a revoked token. Exit code 1: a
promise of docs/operating/security.md or docs/operating/running.md is broken.
"""

import argparse
import http.client
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

from tests.system.harness import Program, Site, eventually, workflow
from tests.system.ledger import read

from .account import POLL_S, Account, Moment
from .kernel import connections_of

REVOKED_S: Final = 3.0
ADMITTED_S: Final = 5.0
BOUND_S: Final = 60.0
SUBMIT_EVERY_S: Final = 0.1
LEASE_MS: Final = 10_000
KEYS: Final = ".stepwire/keys"
HEARD: Final = ("received", "go", "told_to_stop", "results_acked", "beat_heard")

LONG: Final = workflow(
    "long",
    {"name": "once", "delivery_mode": "at_most_once", "handler_class": "shop.long", "handler_config": {"gate": "end"}},
    {"name": "again", "handler_class": "shop.long", "handler_config": {"gate": "end"}},
)
SHORT: Final = tuple(workflow(name, {"name": name, "handler_class": f"shop.{name}"}) for name in ("shop", "honest"))
UNOFFERED: Final = workflow("unoffered", {"name": "only", "handler_class": "none.offers"})


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.strangers.revocation", description=__doc__)
    parser.parse_args()
    return run(Account()).print()


def run(account: Account) -> Account:
    settings = {
        "bus.curve.secret_file": f"{KEYS}/server.key",
        "bus.curve.clients_dir": f"{KEYS}/clients",
        "bus.lease_ms": LEASE_MS,
    }
    with Site("tcp", settings) as site:
        _command(site, "keys", "init")
        site.start_broker(bound_s=BOUND_S)
        for document in (LONG, *SHORT, UNOFFERED):
            site.apply(document)
        Keys(site, account).run()
        Tokens(site, account).run()
    return account


class Keys:
    """The worker `shop` loses its access while it runs steps; `honest` has the same handlers and another key."""

    def __init__(self, site: Site, account: Account) -> None:
        self._site, self._account = site, account
        self._client_file = site.directory / KEYS / "clients" / "shop"
        self._ports = frozenset(int(site.settings[f"bus.{name}"].rpartition(":")[2]) for name in ("steps", "results"))

    def run(self) -> None:
        self._shop = self._worker("shop")
        task_id = self._submit("long")
        steps = {step["name"]: step["step_id"] for step in self._site.task(task_id)["steps"]}
        eventually(
            lambda: len(self._site.runs("started", pid=self._shop.pid)) == 2 or None, "two steps to run", BOUND_S
        )
        self._honest = self._worker("honest")
        with self._steady_work():
            eventually(lambda: self._both_worked() or None, "both workers to run short steps", BOUND_S)
            revoked_s = self._revoke()
            self._lose_the_lease(task_id, steps, revoked_s)
            self._return()
        honest = [run for run in self._site.runs("finished", pid=self._honest.pid) if run["step"] == "honest"]
        self._account.note(f"honest worker: {len(honest)} short steps meanwhile")

    def _revoke(self) -> float:
        connections = connections_of(self._shop.pid, self._ports)
        assert {each.peer_port for each in connections} == self._ports, connections
        ended = Moment(lambda: not connections & connections_of(self._shop.pid, self._ports), BOUND_S)
        _command(self._site, "keys", "revoke", "shop")
        revoked_s = self._client_file.stat().st_mtime
        self._account.took("keys revoke until all connections have ended", ended.wait() - revoked_s, REVOKED_S)
        # The worker itself gives up a silent broker later, so the count shows which side has ended them.
        count = self._disconnected()
        self._account.check(
            count >= len(connections), f"the broker has ended {count} of {len(connections)} connections"
        )
        return revoked_s

    def _lose_the_lease(self, task_id: int, steps: dict[str, int], revoked_s: float) -> None:
        """Let the revoked worker finish its steps, and wait until they are taken from it."""
        self._site.open_gate("end")
        eventually(lambda: self._long_runs_ended() or None, "the revoked worker to end its runs", BOUND_S)
        states = {self._state(task_id, "once")}
        while self._state(task_id, "again") != "completed" or "held" not in states:
            states.add(self._state(task_id, "once"))
            if time.time() > revoked_s + BOUND_S:
                self._account.check(False, f"the lease has not ended: the at_most_once step is {states}")
                return
            time.sleep(POLL_S)
        self._report_frames(revoked_s)
        self._report_runs(steps)
        self._account.note(f"the at_most_once step was {' then '.join(sorted(states))}")
        self._account.check(states <= {"dispatched", "held"}, f"the at_most_once step was {sorted(states)}")

    def _report_frames(self, revoked_s: float) -> None:
        heard_s = max(line["wall"] / 1e9 for line in self._wire(*HEARD))
        late = [line for line in self._wire("beat", "results_sent") if line["wall"] / 1e9 > max(heard_s, revoked_s)]
        self._account.took("keys revoke until the last frame to the worker", max(0.0, heard_s - revoked_s), REVOKED_S)
        self._account.note(f"messages of the revoked worker after that frame: {len(late)}, without an effect")

    def _report_runs(self, steps: dict[str, int]) -> None:
        account, shop, honest = self._account, self._shop.pid, self._honest.pid
        once, again = (
            [run for run in self._site.runs("started") if run["step_id"] == steps[name]] for name in ("once", "again")
        )
        account.check([run["pid"] for run in once] == [shop], f"the at_most_once step was started again: {once}")
        account.check([run["pid"] for run in again] == [shop, honest], f"the other step was started by others: {again}")
        acknowledged = {line["n"] for line in self._wire("beat_heard")}
        leased_s = max(line["wall"] / 1e9 for line in self._wire("beat") if line["n"] in acknowledged)
        after_s, lease_s = again[-1]["wall"] / 1e9 - leased_s, LEASE_MS / 1000
        account.note(f"the at_least_once step ran again {after_s:.2f} s after the last acknowledged heartbeat")
        account.check(
            after_s >= lease_s, f"a step ran again {after_s:.2f} s after a heartbeat: the lease is {lease_s:g} s"
        )
        output = self._site.ask("GET", f"/v1/steps/{steps['again']}").body["output"]
        account.check(output["token"].endswith(f"/{honest}"), f"the revoked worker's result was accepted: {output}")

    def _return(self) -> None:
        before = len(self._site.runs("started", pid=self._shop.pid))
        runs = Moment(lambda: len(self._site.runs("started", pid=self._shop.pid)) > before, BOUND_S)
        _command(self._site, "keys", "allow", "shop")
        allowed_s = self._client_file.stat().st_mtime
        self._account.took("keys allow until the worker runs a step", runs.wait() - allowed_s, ADMITTED_S)
        self._account.check(self._shop.is_running, "the revoked worker has ended")

    @contextmanager
    def _steady_work(self) -> Iterator[None]:
        is_over = threading.Event()

        def submit() -> None:
            while not is_over.wait(SUBMIT_EVERY_S):
                self._submit("shop")
                self._submit("honest")

        thread = threading.Thread(target=submit)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def _worker(self, name: str) -> Program:
        _command(self._site, "keys", "new", name, "--handlers", "shop.*", "--out", f"{name}.key")
        offers = ["--offers", "shop.long", f"shop.{name}"]
        argv = [sys.executable, "-m", "tests.system.handlers", str(self._site.directory), name, "--unsynced", *offers]
        worker = self._site.start(name, argv, {"STEPWIRE_CURVE_FILE": str(self._site.directory / f"{name}.key")})
        self._site.await_worker(worker, BOUND_S)
        return worker

    def _submit(self, name: str) -> int:
        answer = self._site.ask("POST", "/v1/tasks", {"workflow": name})
        assert answer.status == 201, answer
        return int(answer.body["task_id"])

    def _long_runs_ended(self) -> bool:
        runs = self._site.runs("finished", "stopped", pid=self._shop.pid)
        return {"once", "again"} <= {run["step"] for run in runs}

    def _both_worked(self) -> bool:
        return {"shop", "honest"} <= {run["step"] for run in self._site.runs("finished")}

    def _disconnected(self) -> int:
        """The number of connections that the broker has ended because their principal was revoked."""
        lines = self._site.ask("GET", "/metrics").body.decode().splitlines()
        return sum(
            int(line.rpartition(" ")[2]) for line in lines if 'bus_disconnections_total{reason="revoked"}' in line
        )

    def _state(self, task_id: int, step: str) -> str:
        return next(str(each["state"]) for each in self._site.task(task_id)["steps"] if each["name"] == step)

    def _wire(self, *events: str) -> list[dict[str, Any]]:
        """The messages of the session of the worker `shop`."""
        return [line for line in read(self._site.ledgers, "wire-shop-") if line["event"] in events]


class Tokens:
    """A token is revoked while a stream and a long poll are open with it."""

    def __init__(self, site: Site, account: Account) -> None:
        self._site, self._account = site, account
        self._file = site.directory / ".stepwire/tokens"

    def run(self) -> None:
        account = self._account
        answer = self._site.ask("POST", "/v1/tasks", {"workflow": "unoffered"})
        old = self._new()
        stream = _Request(self._site, old, "/v1/events")
        poll = _Request(self._site, old, f"/v1/tasks/{answer.body['task_id']}?wait_ms=60000")
        eventually(lambda: stream.status == 200 or None, "the stream to begin", BOUND_S)
        assert self._code(old) == 200
        assert poll.ended_s is None
        refused = Moment(lambda: self._code(old) == 401, BOUND_S)
        _command(self._site, "token", "revoke", "viewer")
        revoked_s = self._file.stat().st_mtime
        account.took("token revoke until a request is refused", refused.wait() - revoked_s, REVOKED_S)
        for what, request in (("the stream", stream), ("the request with wait_ms", poll)):
            account.took(f"token revoke until {what} has ended", request.wait() - revoked_s, REVOKED_S)
        account.check(poll.status == 401, f"the request with wait_ms was answered {poll.status}, and not 401")
        new = self._new()
        created_s = self._file.stat().st_mtime
        admitted = Moment(lambda: self._code(new) == 200, BOUND_S)
        account.took("token new until a request is answered", admitted.wait() - created_s, ADMITTED_S)
        account.check(self._code(old) == 401, "the revoked token is valid again")

    def _new(self) -> str:
        return _command(self._site, "token", "new", "viewer", "--scope", "read").strip()

    def _code(self, token: str) -> int:
        connection = _connection(self._site)
        try:
            connection.request("GET", "/v1/tasks?limit=1", headers={"Authorization": f"Bearer {token}"})
            return connection.getresponse().status
        finally:
            connection.close()


class _Request:
    """A request that is open until the broker ends it."""

    def __init__(self, site: Site, token: str, path: str) -> None:
        self.status: int | None = None
        self.ended_s: float | None = None
        self._connection = _connection(site)
        self._connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def wait(self) -> float:
        self._thread.join(BOUND_S)
        return float("inf") if self.ended_s is None else self.ended_s

    def _read(self) -> None:
        try:
            answer = self._connection.getresponse()
            self.status = answer.status
            answer.read()
        except (OSError, http.client.HTTPException):  # a stream without its last chunk has also ended
            pass
        self.ended_s = time.time()


def _connection(site: Site) -> http.client.HTTPConnection:
    parts = urlsplit(site.url)
    return http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=BOUND_S)


def _command(site: Site, *words: str) -> str:
    done = site.stepwire(*words)
    assert done.returncode == 0, done
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
