"""The first limit: batches over the bus and back, without any stored state."""

import time

import msgspec
from msgspec import Raw
from stepwire_protocol import codec, limits
from stepwire_protocol.messages import ResultsLevel0, StepMetadataLevel0, StepRequestLevel0, StepsLevel0

from .load import CONTEXT, HANDLER, OUTPUT, STEPS, BenchFailed, Progress, Throughput, Workload
from .peer import ANSWER, TOPIC, Sockets, wait_for

_decode = msgspec.json.Decoder(ResultsLevel0).decode


def run(sockets: Sockets, load: Workload, progress: Progress) -> Throughput:
    """Send `load.tasks` messages, with `load.echo_window` in flight. Each is encoded, sent, answered and decoded."""
    to_peer, from_peer = sockets
    steps = [_step(number) for number in range(load.batch_steps)]
    messages = load.tasks
    window = min(load.echo_window, messages)
    sent = answered = 0
    started = time.perf_counter()
    while answered < messages:
        while sent < messages and sent - answered < window:
            batch = StepsLevel0(batch_id=f"batch_{sent}", protocol_version=limits.PROTOCOL_LEVEL_0, steps=steps)
            to_peer.send(TOPIC + codec.encode(batch))
            sent += 1
        wait_for(from_peer)
        results = _decode(from_peer.recv()[len(ANSWER) :])
        if results.batch_id != f"batch_{answered}" or len(results.results) != len(steps):
            raise BenchFailed(f"the answer to batch_{answered} does not match the batch")
        answered += 1
        progress(1)
    return Throughput(answered * len(steps), time.perf_counter() - started)


def _step(number: int) -> StepRequestLevel0:
    return StepRequestLevel0(
        step_id=number + 1,
        task_id=1,
        step_name=STEPS[-1],
        handler_class=HANDLER,
        task_context=Raw(msgspec.json.encode(CONTEXT)),
        previous_results=Raw(msgspec.json.encode({STEPS[-2]: OUTPUT})),
        metadata=StepMetadataLevel0(attempt=0, retry_limit=3, timeout_ms=30_000),
    )
