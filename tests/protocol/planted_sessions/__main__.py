"""`python -m tests.protocol.planted_sessions NAME`: Python's driver with the planted fault of this name."""

import sys

from stepwire.driver import serve

from .faults import FAULTS
from .plant import driver_with

if __name__ == "__main__":
    (wanted,) = (fault for fault in FAULTS if fault.name == sys.argv[1])
    serve(sys.stdin.buffer, sys.stdout.buffer, driver_with(wanted)())
