"""The worker of the measurement: the released SDK with a handler that does almost nothing.

python -m stepwire_broker.bench.worker STEPS RESULTS SLOTS [LABEL=VALUE …]; SLOTS is `default` or a number
"""

import sys
from typing import Any

from stepwire import Context, Worker

from .load import HANDLER, OUTPUT


def main(steps: str, results: str, slots: str, *labels: str) -> None:
    pairs = (label.partition("=")[::2] for label in labels)
    given: dict[str, Any] = {} if slots == "default" else {"slots": int(slots)}
    # Only its keys come from the environment.
    worker = Worker.from_env(steps=steps, results=results, name="bench", labels=dict(pairs), **given)

    @worker.handler(HANDLER)
    async def echo(context: Context) -> dict[str, str]:
        return OUTPUT

    worker.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
