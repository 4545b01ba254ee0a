"""The report of a death, and the output of copies, as others read them."""

import os
from pathlib import Path

import zmq
from stepwire_broker.autoscale.deaths import DeathReports
from stepwire_broker.autoscale.output import KEPT_BYTES, PASSED_BYTES_PER_S, Passing, Printed
from stepwire_protocol import codec, topics
from stepwire_protocol.messages import Gone

from tests.system.harness import eventually

WORKER = "shop:0123456789abcdef"


def test_the_death_of_a_copy_reaches_the_endpoint_of_results(tmp_path: Path) -> None:
    results = f"ipc://{tmp_path}/results.sock"
    context = zmq.Context[zmq.Socket[bytes]]()
    sub = context.socket(zmq.SUB)
    sub.subscribe(topics.WORKERS)
    sub.rcvtimeo = 20
    sub.bind(results)
    reports = DeathReports({"STEPWIRE_STEPS": f"ipc://{tmp_path}/steps.sock", "STEPWIRE_RESULTS": results})

    def received() -> bytes | None:
        reports.report(WORKER)  # again, because the subscription may not have reached it
        try:
            return sub.recv()
        except zmq.Again:
            return None

    topic, body = codec.split(eventually(received, "a report"))
    assert (topic, codec.decode_worker(body)) == (topics.WORKERS, Gone(v="2.0", worker=WORKER))
    reports.close()
    sub.close()
    context.term()


def test_the_end_of_the_output_is_kept_and_not_the_rest() -> None:
    printed = Printed()
    for _ in range(100):
        printed.add(b"x" * KEPT_BYTES)
    printed.add(b"the end")
    assert len(printed.end) == KEPT_BYTES
    assert printed.end.endswith("the end")
    assert printed.total == 100 * KEPT_BYTES + 7


def test_output_beyond_the_limit_is_dropped_and_its_size_is_printed() -> None:
    ours, theirs = os.pipe()
    passing = Passing(theirs)
    passing.put(b"first\n")
    passing.put(b"x" * 2 * PASSED_BYTES_PER_S)
    passing.put(b"second\n")
    read = b""
    while not read.endswith(b"second\n"):
        read += os.read(ours, 4096)
    assert read == b"first\n\n[%d bytes of the copies' output are left out]\nsecond\n" % (2 * PASSED_BYTES_PER_S)
    os.close(ours)
