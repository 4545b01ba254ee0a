"""A handler that computes for long, without yielding, must not cost its worker the lease.

    python -m tests.languages.busy --lang go --seconds 30 --lease-ms 2500

The conformance worker of the SDK runs `conform.compute`. It must keep the session that it had before, and the step must
end in its first delivery. The exit code is 1 otherwise.
"""

import argparse
import sys
import time

from tests.system.harness import Site, eventually, workflow

from .sdks import SDKS, Sdk

MARGIN_S = 30.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lang", choices=sorted(SDKS), required=True)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--lease-ms", type=int, default=2_500)
    options = parser.parse_args()
    sys.exit(not computes(SDKS[options.lang], options.seconds, options.lease_ms))


def computes(sdk: Sdk, seconds: float, lease_ms: int) -> bool:
    settings = {"bus.lease_ms": lease_ms, "bus.heartbeat_ms": lease_ms // 5}
    with Site(sdk.transport, settings) as site:
        site.start_broker()
        timeout_ms = int((seconds + MARGIN_S) * 1000)
        site.apply(workflow("busy", {"name": "compute", "handler_class": "conform.compute", "timeout_ms": timeout_ms}))
        site.start_other_worker("busy", sdk.conform, slots=1)
        (before,) = site.workers()
        context = {"ms": int(seconds * 1000)}
        task_id = site.client().submit("busy", context).task_id
        began = time.monotonic()
        ended = eventually(
            lambda: task if (task := site.task(task_id))["state"] not in ("pending", "running") else None,
            "the task to end",
            seconds + MARGIN_S,
        )
        took_s = time.monotonic() - began
        (after,) = site.workers()
        (step,) = ended["steps"]
        print(
            f"{sdk.name}: computed for {took_s:.1f} s with a lease of {lease_ms} ms: task {ended['state']}, "
            f"deliveries {step['deliveries']}, session {before['session']} before and {after['session']} after"
        )
        return (ended["state"], step["deliveries"], after["session"]) == ("completed", 1, before["session"])


if __name__ == "__main__":
    main()
