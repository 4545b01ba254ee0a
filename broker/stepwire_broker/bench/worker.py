"""The worker of the measurement: the shipped SDK with a handler that does next to nothing.

python -m stepwire_broker.bench.worker STEPS RESULTS SLOTS
"""

import sys

from stepwire import Context, Worker

from .load import HANDLER, OUTPUT


def main(steps: str, results: str, slots: str) -> None:
    worker = Worker(steps=steps, results=results, name="bench", slots=int(slots))

    @worker.handler(HANDLER)
    async def echo(context: Context) -> dict[str, str]:
        return OUTPUT

    worker.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
