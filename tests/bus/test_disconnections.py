"""The disconnections of the last ten minutes, by principal and reason."""

from stepwire_broker.bus.counters import WireCounters
from stepwire_broker.bus.disconnections import KEPT_S, Disconnections


def test_disconnections_are_kept_by_principal_and_reason_for_ten_minutes() -> None:
    counters = WireCounters()
    kept = Disconnections(counters, lambda *_: None)
    for second in range(30):
        kept.add("rate", "shop", float(second))
    kept.add("subscriptions", "", 29.0)
    assert kept.recent(30.0) == {"shop": {"rate": 30}, "": {"subscriptions": 1}}
    assert kept.recent(KEPT_S + 15)["shop"]["rate"] < 30
    assert kept.recent(KEPT_S + 60) == {}
    assert counters.disconnected["rate"] == 30


def test_a_principal_is_reported_once_in_ten_seconds_with_the_number_since_then() -> None:
    reports: list[tuple[str, str, int]] = []
    kept = Disconnections(WireCounters(), lambda *report: reports.append(report))
    for second in range(21):
        kept.add("rate", "shop", 100.0 + second)
    assert reports == [("rate", "shop", 1), ("rate", "shop", 10), ("rate", "shop", 10)]


def test_the_names_of_one_part_are_limited() -> None:
    kept = Disconnections(WireCounters(), lambda *_: None)
    for number in range(5_000):
        kept.add("rate", f"p{number}", 0.0)
    assert len(kept.recent(1.0)) == 1_000
