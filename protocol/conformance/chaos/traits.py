"""The traits of one course: sizes, times and probabilities, drawn from the seed. Each seed is another world."""

from random import Random
from typing import Any, Final

from stepwire_protocol.patterns import matches

HANDLERS: Final = ("shipping.ship", "payments.charge", "mail.send", "reports.build", "Order::Ship")
PATTERNS: Final = (*HANDLERS, "shipping.*", "**", "Order::**")
CHAOS: Final = (
    "steps",
    "resend_steps",
    "steps_again",
    "stray_steps",
    "unreadable",
    "here",
    "restart",
    "old_here",
    "other_deployment",
    "welcome",
    "wrong_welcome",
    "ack_heartbeat",
    "order",
    "go",
    "cancel",
    "ack",
    "adopt",
    "reset",
    "refused",
    "unknown",
    "replay",
    "delay",
    "end_run",
    "end_nothing",
    "progress",
    "quiet",
    "full",
    "drain",
    "expel",
    "silence",
    "jump",
    "lists",
)
# Kinds that end a course, or most of its traffic, are rarer than the others.
RARE: Final = {
    "drain": 0.03,
    "quiet": 0.03,
    "expel": 0.1,
    "full": 0.2,
    "other_deployment": 0.1,
    "restart": 0.3,
    "reset": 0.4,
    "jump": 0.15,
    "silence": 0.2,
    "order": 0.4,
}


class Traits:
    """What one course is like."""

    def __init__(self, rng: Random) -> None:
        pick = rng.choice
        self.ops = pick((40, 80, 120, 200, 300))
        self.brokers = rng.choices((1, 2, 3), (6, 3, 1))[0]
        # -- the network
        self.latency_ms = pick(((0, 0), (0, 2), (1, 20), (5, 200), (50, 900)))
        self.loss = pick((0.0, 0.0, 0.05, 0.2, 0.4))
        self.double = pick((0.0, 0.0, 0.05, 0.3))
        self.late = pick((0.0, 0.0, 0.02, 0.1))  # a message arrives seconds later
        # -- the brokers
        self.lease_ms = pick((500, 1_000, 2_500, 10_000, 10_000, 10_000, 10_000, 30_000))
        self.heartbeat_ms = pick((0, 0, 0, 50, 400, 2_000, 60_000))
        self.message_bytes_max = pick((4_194_304, 4_194_304, 4_194_304, 3_000, 700, 300))
        self.is_reset_by_broker = rng.random() < 0.7
        self.grants = pick((1.0, 1.0, 0.8, 0.3))
        self.acks_results = pick((1.0, 1.0, 0.9, 0.4))
        self.respects_credit = rng.random() < 0.8
        self.lists_brokers = rng.random() < 0.3
        # -- unexpected facts
        self.chaos = pick((0.2, 0.4, 0.6, 0.8))
        variety = pick((0.1, 0.3, 0.6, 0.9))
        self.weights = [
            RARE.get(kind, 1.0) * (rng.expovariate(1.0) + 0.02 if rng.random() < variety else 0.0) for kind in CHAOS
        ]
        self.weights[0] = pick((3.0, 8.0, 20.0))  # without steps, nothing happens
        # -- the steps
        self.batch_max = pick((1, 1, 3, 10, 40))
        self.at_most_once = pick((0.0, 0.0, 0.2, 1.0))
        self.unknown_handler = pick((0.0, 0.02, 0.2))
        self.timeouts_ms = pick(((0,), (30_000,), (0, 5, 50, 500), (20, 2_000)))
        self.deadlines_ms = pick(((None,), (None,), (None, None, 0, 30, 400, 20_000)))
        self.context_bytes_max = pick((2, 20, 200, 2_000))
        # -- the handlers
        self.run_ms = pick(((0, 0), (0, 3), (0, 3), (1, 60), (10, 900), (500, 20_000)))
        self.endless = pick((0.0, 0.0, 0.1))
        self.fails = pick((0.0, 0.1, 0.5))
        self.obeys_stop = pick((1.0, 0.7, 0.0))
        self.output_bytes_max = pick((4, 40, 400, 4_000))
        self.handlers: list[str] = []  # classes that the worker offers; set by `start`
        # -- the end
        self.settles = rng.random() < 0.15

    def start(self, rng: Random) -> dict[str, Any]:
        """The members of the op `start`."""
        pick = rng.choice
        patterns = rng.sample(PATTERNS, pick((1, 2, 3, 4)))
        offers: list[dict[str, Any]] = []
        for pattern in patterns:
            offer: dict[str, Any] = {"pattern": pattern}
            if rng.random() < 0.25:
                offer["concurrency"] = pick((1, 1, 2, 5))
            if rng.random() < 0.15:
                offer["timeout_ms"] = pick((10, 100, 3_000))
            if rng.random() < 0.1:
                offer["shadow_safe"] = True
            offers.append(offer)
        offered = [name for name in HANDLERS if any(matches(pattern, name) for pattern in patterns)]
        self.handlers = offered or list(HANDLERS)
        links = [
            {"steps": f"tcp://10.0.0.{i}:7411", "results": f"tcp://10.0.0.{i}:7412"}
            for i in range(1, 1 + pick((1, 1, self.brokers)))
        ]
        start: dict[str, Any] = {
            "worker": "shop-1:0123456789abcdef",
            "offers": offers,
            "slots": pick((1, 1, 2, 3, 4, 8, 32)),
            "prefetch": pick((None, None, 0, 0, 1, 4, 10)),
            "heartbeat_ms": pick((2_000, 2_000, 2_000, 2_000, 500, 100)),
            "links": links,
            "lang": "kit",
            "max_message_bytes": pick((4_194_304, 4_194_304, 4_194_304, 20_000, 2_000)),
            "accept_delay_ms": pick((0, 0, 0, 3, 50)),
        }
        if rng.random() < 0.2:
            start |= {
                "labels": {"region": "eu", "größe": "groß"},
                "sdk": "kit 1",
                "host": "h:1:2",
                "pid": 4711,
                "pid_started": 99,
                "proof": True,
                "handler_version": "7.1",
                "curve": rng.random() < 0.5,
            }
        return start
