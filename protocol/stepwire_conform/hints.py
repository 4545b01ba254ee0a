"""The likely cause of a failure, from what the played brokers heard: they name near misses of the protocol."""

import re
from typing import Final

from stepwire_protocol import topics

from .broker import PlayedBroker

_ADDRESS_IN_USE: Final = re.compile(r"address (is )?already in use|EADDRINUSE", re.IGNORECASE)
_NEAR_INBOX: Final = re.compile(rb"@[^ ]*")


def of_subscriptions(brokers: list[PlayedBroker], *, is_level0: bool) -> list[str]:
    """The faults in the subscriptions of the worker's connections."""
    causes = []
    for broker in brokers:
        for topic in dict.fromkeys(broker.subscriptions):
            cause = _of_subscription(topic, is_level0)
            if cause:
                causes.append(cause)
    return list(dict.fromkeys(causes))


def _of_subscription(topic: bytes, is_level0: bool) -> str | None:
    text = topic.decode(errors="backslashreplace")
    if is_level0:
        return None if topic in (b"steps", b"steps ") else f"the program subscribes {text!r}: `steps ` is expected"
    if topic == topics.BROKERS or topics.worker_of(topic) is not None:
        return None
    if topic == b"":
        return "the program subscribes everything (an empty subscription): a broker grants only its own topic"
    if topic in (b"steps", b"steps "):
        return "the program subscribes `steps `: a broker takes it for a level-0 handler as well"
    if topics.worker_of(topic + b" ") is not None or topic == b"brokers":
        return f"the program subscribes {text!r} without the space at its end: a broker grants only {text + ' '!r}"
    if _NEAR_INBOX.fullmatch(topic.rstrip()):
        return f"the program subscribes {text!r}: the form is `@<name>:<16 hex> `, with one space at the end"
    return f"the program subscribes {text!r}, which no broker grants"


def of_connections(brokers: list[PlayedBroker], output: str) -> list[str]:
    """The faults in the connections."""
    causes = []
    for broker in brokers:
        replaced = broker.replaced_socket()
        if replaced is not None:
            causes.append(f"the program binds {replaced}: the broker binds both sockets, and a worker connects")
        for name, variable in (("steps", "STEPWIRE_STEPS"), ("results", "STEPWIRE_RESULTS")):
            if not broker.accepted[name]:
                endpoint = broker.steps_endpoint if name == "steps" else broker.results_endpoint
                causes.append(f"nothing connected to the {name} endpoint {endpoint}: does the program read {variable}?")
    if _ADDRESS_IN_USE.search(output):
        causes.insert(0, "the program binds an endpoint (address already in use): a worker connects, a broker binds")
    return causes
