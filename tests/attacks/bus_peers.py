"""Hostile peers of the bus, and an honest worker that joins again and again meanwhile."""

import contextlib
import json
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import zmq

from tests.bus import strangers

from .listeners import use_key
from .target import Target

JOIN_S_MAX = 3.0
RETRY_MS = 250
GIVE_UP_S = 20.0
FLOOD_S = 5.0

Attack = Callable[[Counter[str]], None]


def repeat(target: Target, seconds: float, attack: Attack, *, threads: int = 2) -> dict[str, Any]:
    """Call `attack` in several threads until the time is over, while a worker joins. A refused peer is no fault."""
    ends_s = time.monotonic() + seconds
    counts: Counter[str] = Counter()

    def run() -> None:
        while time.monotonic() < ends_s:
            try:
                attack(counts)
            except OSError:
                counts["refused"] += 1

    joins = Joins(target)
    attackers = [threading.Thread(target=run) for _ in range(threads)]
    for thread in attackers:
        thread.start()
    for thread in attackers:
        thread.join()
    return {**counts, **joins.end()}


def hold(
    target: Target, seconds: float, count: int, connect: Callable[[], socket.socket], *, joins_meanwhile: bool = True
) -> dict[str, Any]:
    """Keep `count` connections open. One that the broker closes is replaced."""
    peers: list[socket.socket] = []
    counts: Counter[str] = Counter()
    ends_s = time.monotonic() + seconds
    joins = Joins(target) if joins_meanwhile else None
    try:
        while time.monotonic() < ends_s:
            for peer in [peer for peer in peers if strangers.is_closed(peer)]:
                peers.remove(peer)
                peer.close()
                counts["closed"] += 1
            for _ in range(min(100, count - len(peers))):
                if time.monotonic() > ends_s:
                    break
                try:
                    peers.append(connect())
                    counts["connections"] += 1
                except OSError:
                    counts["refused"] += 1
            time.sleep(0.02)
        return {**counts, **(joins.end() if joins is not None else {})}
    finally:
        for peer in peers:
            peer.close()


class Joins:
    """A worker that joins, leaves and joins again until `end`."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._took_s: list[float] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> dict[str, Any]:
        self._ended.set()
        self._thread.join()
        return {"joins": len(self._took_s), "join_max_s": round(max(self._took_s, default=GIVE_UP_S), 2)}

    def _run(self) -> None:
        while not self._ended.is_set():
            began_s = time.monotonic()
            with zmq.Context() as context:
                self._join(context, began_s)
            self._took_s.append(time.monotonic() - began_s)
            self._ended.wait(0.2)

    def _join(self, context: "zmq.Context[Any]", began_s: float) -> None:
        worker = f"honest:{os.urandom(8).hex()}"
        with context.socket(zmq.SUB) as sub, context.socket(zmq.PUB) as pub:
            sub.linger = pub.linger = 0
            use_key(self._target, sub)
            use_key(self._target, pub)
            sub.subscribe(f"@{worker} ".encode())
            sub.connect(self._target.ready["steps"])
            pub.connect(self._target.ready["results"])
            members: dict[str, Any] = {"type": "hello", "v": "2.0", "worker": worker, "versions": ["2.0"], "slots": 1}
            members |= {"next": {"b1": 1}, "handlers": ["honest"]}
            for n in range(int(GIVE_UP_S * 1000 / RETRY_MS)):
                pub.send(b"workers " + json.dumps(members | {"n": n}).encode())
                if sub.poll(RETRY_MS) and b'"welcome"' in sub.recv():
                    return


def flooding(endpoint: str, kind: str, data: bytes) -> Attack:
    """An attack that finishes its handshake and sends `data` for some seconds, or until the broker ends it."""

    def attack(counts: Counter[str]) -> None:
        ends_s = time.monotonic() + FLOOD_S
        with strangers.shake_hands(endpoint, kind) as peer:
            counts["connections"] += 1
            with contextlib.suppress(OSError):
                while time.monotonic() < ends_s:
                    peer.sendall(data)
                    counts["floods"] += 1

    return attack
