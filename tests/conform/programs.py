"""Programs that are no good workers as processes: `python -m tests.conform.programs KIND`."""

import os
import signal
import sys
import time

KINDS = ("exits", "silent", "floods", "forks", "outlives_term", "connects_only", "binds")


def main(kind: str) -> None:
    match kind:
        case "exits":
            print("there is no configuration here")
            sys.exit(3)
        case "silent":
            time.sleep(600)
        case "floods":
            while True:
                os.write(1, b"nothing to say, and all day to say it\n" * 1_000)
        case "forks":
            forks()
        case "outlives_term":
            outlives_term()
        case "connects_only":
            connects_only()
        case _:
            raise ValueError(kind)


def forks() -> None:
    """Go into the background as a daemon does: two forks, and a session of its own."""
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    time.sleep(600)


def outlives_term() -> None:
    """A good worker that ignores SIGTERM, with a child that ignores it as well."""
    from stepwire.conform import make_worker

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if not os.fork():
        time.sleep(600)
        os._exit(0)
    worker = make_worker()
    worker.start()
    worker.wait()


def connects_only() -> None:
    import zmq

    context = zmq.Context()
    steps, results = context.socket(zmq.SUB), context.socket(zmq.PUB)
    steps.connect(os.environ["STEPWIRE_STEPS"])
    results.connect(os.environ["STEPWIRE_RESULTS"])
    time.sleep(600)


if __name__ == "__main__":
    main(sys.argv[1])
