"""The worker's half of the protocol, as pure logic: without sockets, clock, threads or its own randomness.

The caller passes facts with the time, and receives actions. `session.py` composes the parts; each part owns its state:

    config         what the worker offers
    promises       the credit that a broker may still use
    brokers        the brokers that the worker knows
    leases         the session with each broker, and its lease
    announcements  hello, heartbeat, bye
    endpoints      which brokers to connect to, and when to connect again
    intake         `steps` messages, and their answers: accept, refuse
    holdings       every delivery that this process holds (records: `deliveries`, `tombstones`)
    slots          the run queue, and the slots of runs
    runs           start, at_most_once permission, timeouts, cancels
    credit         the number of steps that each broker may send
    reporting      results messages of finished runs
    outbox         results messages until they are acknowledged
    progress       progress reports
    outgoing       the actions decided so far, and the message counter
"""

from .config import Config, Offer, find_offer
from .session import Session

__all__ = ["Config", "Offer", "Session", "find_offer"]
