"""The features of an SDK, and the cases of the conformance kit that prove each of them.

A name that ends in `.` means all cases of that group. A feature without cases cannot be seen from outside the program:
the SDK's own test proves it, and its capabilities.yaml names that test.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from stepwire_conform.case import CASES

OWN_TEST: Final[tuple[str, ...]] = ()

FEATURES: Final[Mapping[str, tuple[str, ...]]] = {
    "typed_input": ("errors.bad_input", "errors.good_input"),
    "results_of_dependencies": ("payload.context",),
    "config": ("payload.context",),
    "deadline": ("timeout.deadline",),
    "idempotency_key": ("payload.context",),
    "trace_context": ("payload.traceparent", "payload.tracestate"),
    "logger": OWN_TEST,
    "progress": ("progress.form",),
    "permanent": ("errors.permanent",),
    "retry_after": ("errors.retry",),
    "outcome_unknown": ("errors.outcome_unknown",),
    "unavailable": ("errors.unavailable",),
    "handler_concurrency": ("concurrency.handler",),
    "worker_slots": ("hello.slots", "results.slots", "steps.full_credit"),
    "at_most_once": ("at_most_once.",),
    "cancel": ("cancel.",),
    "timeouts": ("timeout.enforced", "timeout.none", "timeout.from_start", "timeout.of_handler"),
    "several_brokers": ("brokers.",),
    "adoption": ("adopt.", "brokers.adopt", "brokers.adopt_done"),
    "proof_of_death": ("hello.proof", "hello.host", "hello.process", "fork."),
    "drain": (
        *("drain.term", "drain.code", "drain.int", "drain.second_int", "drain.running", "drain.queued", "drain.new"),
        *("drain.outbox", "drain.no_credit", "drain.lingers", "drain.overdue"),
    ),
    "quiet": ("quiet.",),
    "quit": ("drain.quit", "drain.overdue_quit"),
    "curve": (
        *("curve.session", "curve.missing", "curve.wrong_server", "curve.no_keys", "curve.allowed_later"),
        "curve.restart",
    ),
    "curve_file": ("curve.file", "curve.open_file"),
    "large_messages": (
        *("payload.mebibyte_in", "payload.mebibyte_out", "errors.split", "errors.too_large", "malformed.too_large"),
    ),
    "heartbeats_while_computing": ("heartbeat.computing",),
    "handler_processes": OWN_TEST,
    "secret_references": ("secrets.",),
    "sealed_payloads": ("sealed.",),
    "testing_harness": OWN_TEST,
}

TRANSPORT_CASES: Final = {"tcp": ("transport.tcp",), "ipc": ("transport.ipc",)}


def cases_of(names: tuple[str, ...]) -> Iterator[str]:
    """The cases that these names mean. A name that means none is a mistake of this file."""
    for name in names:
        found = [case for case in CASES if (case.startswith(name) if name.endswith(".") else case == name)]
        assert found, f"no case is called {name}"
        yield from found
