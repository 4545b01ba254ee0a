"""The Python conformance worker with one planted fault: `python -m tests.conform.faulty_worker FAULT`."""

import sys

from stepwire.conform import make_worker

from .faults import FAULTS

if __name__ == "__main__":
    FAULTS[sys.argv[1]].patch()
    make_worker().run()
