"""Measures the wire: CPU time of the loop's thread per message. Run: python -m tests.bus.measure [MESSAGES]"""

import asyncio
import sys
import tempfile
import threading
import time
from typing import Any

import zmq
from stepwire_broker.core.definitions.settings import BusSettings

from .bench import new_worker, serving, until

MESSAGES = 200_000
ROUNDS = 3


async def received(context: zmq.Context[Any], settings: BusSettings, messages: int) -> float:
    """Microseconds of CPU time for each message that a handler sends."""
    count = 0

    def on_message(topic: bytes, body: bytes, principal: str) -> None:
        nonlocal count
        count += 1

    def publish(socket: zmq.Socket[bytes]) -> None:
        body = b"results " + b"x" * 300
        for n in range(messages):
            socket.send(body)
            if n % 1000 == 0:
                while n - count > 8000:
                    time.sleep(0.001)

    async with serving(settings, context, on_message=on_message) as bench:
        socket = bench._socket(zmq.PUB)
        socket.sndhwm = 0
        socket.connect(bench.wire.endpoints["results"])
        while count == 0:
            socket.send(b"results probe")
            await asyncio.sleep(0.01)
        count = 0
        begun = time.thread_time()
        thread = threading.Thread(target=publish, args=(socket,))
        thread.start()
        while count < messages * 0.98:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        used = time.thread_time() - begun
        thread.join()
        return used / count * 1e6


async def sent(context: zmq.Context[Any], settings: BusSettings, messages: int) -> float:
    """Microseconds of CPU time for each message that the wire sends to one worker."""
    async with serving(settings, context) as bench:
        worker, inbox = new_worker()
        socket = bench.subscriber(inbox)
        await until(lambda: ("subscribed", worker) in bench.log.peers)
        used, body = 0.0, b"x" * 300
        for _ in range(messages // 500):
            begun = time.thread_time()
            for _ in range(500):
                bench.wire.send(inbox, body)
            used += time.thread_time() - begun
            for _ in range(500):
                socket.recv()
        return used / messages * 1e6


def main() -> None:
    messages = int(sys.argv[1]) if len(sys.argv) > 1 else MESSAGES
    for number in range(ROUNDS):
        with tempfile.TemporaryDirectory() as directory, zmq.Context() as context:
            settings = BusSettings(steps=f"ipc://{directory}/steps", results=f"ipc://{directory}/results")
            for measure in (received, sent):
                each_us = asyncio.run(measure(context, settings, messages))
                print(f"round {number + 1}: {measure.__name__} {each_us:.2f} microseconds of CPU each")


if __name__ == "__main__":
    main()
