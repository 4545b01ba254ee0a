"""The text format of Prometheus: the lines of one metric with its series."""

from collections.abc import Iterable
from typing import TypeAlias

from stepwire_broker.core.model.figures import Histogram

Labels: TypeAlias = tuple[str, ...]
Value: TypeAlias = int | float
Series: TypeAlias = Iterable[tuple[Labels, Value | Histogram]]


def metric_text(
    name: str, kind: str, about: str, label_names: Labels, value_or_series: Series | Value | Histogram | None
) -> bytes:
    """The metric's lines. A series has one value for each label name."""
    lines = [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
    if isinstance(value_or_series, Histogram):
        lines += _histogram(name, value_or_series)
    elif isinstance(value_or_series, int | float):
        lines.append(f"{name} {number(value_or_series)}")
    elif value_or_series is not None:
        for values, value in value_or_series:
            labels = ",".join(f'{label}="{_escaped(text)}"' for label, text in zip(label_names, values, strict=True))
            if isinstance(value, Histogram):
                lines += _histogram(name, value, labels)
            else:
                lines.append(f"{name}{{{labels}}} {number(value)}")
    return "".join(f"{line}\n" for line in lines).encode()


def _histogram(name: str, histogram: Histogram, labels: str = "") -> list[str]:
    """The lines of a histogram. The count of a bucket includes the lower buckets, as the format requires."""
    lines, below = [], 0
    before, whole = (f"{labels},", f"{{{labels}}}") if labels else ("", "")
    for bound, count in zip((*histogram.bounds, None), histogram.counts, strict=True):
        below += count
        lines.append(f'{name}_bucket{{{before}le="{"+Inf" if bound is None else number(bound)}"}} {below}')
    return [*lines, f"{name}_sum{whole} {number(histogram.total)}", f"{name}_count{whole} {below}"]


def number(value: Value) -> str:
    return str(value) if isinstance(value, int) else repr(value)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
