"""The worker's half of the protocol, and nothing else: no sockets, no clock, no threads, no randomness of its own.

Facts go in with the time, actions come out. `session.py` composes the parts; each part owns its own state:

    config         what the worker offers
    brokers        the brokers it knows
    leases         the session with each broker, and how long it is valid
    announcements  hello, heartbeat, bye
    endpoints      which brokers to connect to, and when to connect again
    intake         `steps` messages, and their answers: accept, refuse
    holdings       every delivery that this process holds (records: `deliveries`, `tombstones`)
    slots          the run queue, and the slots that runs take
    runs           start, at_most_once permission, timeouts, cancels
    credit         how many steps each broker may send
    reporting      results messages of finished runs
    outbox         results messages until they are acknowledged
    progress       progress reports
    outgoing       the actions decided so far, and the message counter
"""

from .config import Config, Offer, find_offer
from .session import Session

__all__ = ["Config", "Offer", "Session", "find_offer"]
