"""Generates docs/reference/metrics.md from the table of metrics."""

from typing import Final

from stepwire_broker.core.model.figures import DURATION_S
from stepwire_broker.loop_measures import COMMIT_S, GROUP_ROWS, LOOP_LAG_S

from .metric_text import number
from .metrics import METRICS


def page() -> str:
    """docs/reference/metrics.md"""
    lines = [
        "# Metrics",
        "",
        "`GET /metrics`, with a token like every route, in the text format of Prometheus. Generated from the table in",
        "`stepwire_broker/api/metrics.py` by `python -m stepwire_broker.api.reference`.",
        "",
        "Counters begin at 0 with each start of the broker. A series appears when it has something to count.",
        "",
        "| name | kind | labels | meaning |",
        "|---|---|---|---|",
    ]
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    bounds = [
        "",
        "| histogram | upper bounds |",
        "|---|---|",
        *(f"| `{name}` | {', '.join(map(number, bounds))} |" for name, bounds in _BOUNDS.items()),
    ]
    return "\n".join([*lines, *bounds, ""])


_BOUNDS: Final = {
    "stepwire_commit_duration_seconds": COMMIT_S,
    "stepwire_group_rows": GROUP_ROWS,
    "stepwire_loop_lag_seconds": LOOP_LAG_S,
    "stepwire_executor_duration_seconds": DURATION_S,
}
