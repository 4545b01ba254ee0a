"""Finds variables of the environment that probably misspell the name of a setting, which would be ignored silently."""

from collections.abc import Collection, Iterator
from typing import Final

from stepwire_broker.core.reading.nearest import nearest

# Without the prefix: variables of clients, workers, programs of the executor `exec`, and completion in shells.
NOT_SETTINGS: Final = frozenset(
    {
        *(
            "CONFIG",
            "URL",
            "TOKEN",
            "TOKEN_FILE",
            "OUTAGE_S",
            "ALLOW_INSECURE",
            "CA_FILE",
            "CLIENT_CERT_FILE",
            "CLIENT_KEY_FILE",
        ),
        *("STEPS", "RESULTS", "NAME", "SLOTS", "LABELS", "HANDLER_VERSION"),
        *("CURVE_SERVER_KEY", "CURVE_PUBLIC_KEY", "CURVE_SECRET_KEY", "CURVE_FILE"),
        *("SECRETS_DIR", "SEAL_KEYS_FILE"),
        "CONFORM_RUN",
        "AUTOSCALE",
        *("TASK_ID", "STEP_ID", "STEP_NAME", "HANDLER_CLASS", "ATTEMPT", "DELIVERY", "IDEMPOTENCY_KEY"),
        *("RETRY_LIMIT", "TIMEOUT_MS", "DEADLINE_MS", "SHADOW", "RUN"),
        "COMPLETE_LINE",
    }
)


def notes(ignored: Collection[str], settings: Collection[str], prefix: str) -> Iterator[str]:
    """Yield a note for each ignored variable whose name resembles a known one. Other names are no mistake, because
    other programs may use the prefix. `settings` are names without the prefix."""
    known = [*settings, *NOT_SETTINGS]
    for name in ignored:
        written = name.removeprefix(prefix)
        meant = None if written in NOT_SETTINGS else nearest(written.upper(), known)
        if meant is not None:
            yield f"{name} is not a setting; did you mean {prefix}{meant}?"
