"""`stepwire bench --langs`: a loop without SDK, the SDK and the product are measured, and wrong programs are named."""

import sys

import pytest
from stepwire_broker.bench import languages
from stepwire_broker.bench.languages import LanguagesLoad
from stepwire_broker.bench.load import BenchFailed
from stepwire_broker.bench.without_storage import BareEcho, BrokerWithoutStorage, V, bound
from stepwire_protocol.messages import Refuse, RefuseCode

from .a_place import Place

USAGE = 2
TINY = LanguagesLoad(rounds=1, batches=40, lone_steps=5, tasks=100, warm_up_batches=10)


@pytest.fixture(scope="module")
def figures() -> dict[str, float]:
    (round_of,) = languages.run(TINY, ["python"], lambda done: None)
    return round_of["python"]


def test_a_run_measures_the_loop_the_sdk_and_the_product(figures: dict[str, float]) -> None:
    rates = {name for name, value in figures.items() if name.endswith("_steps_per_s") and value > 0}
    assert rates == {f"{kind}_{size}_steps_per_s" for kind in ("bare", "sdk") for size in (1, 10)} | {
        "product_steps_per_s"
    }
    assert 0 < figures["sdk_p50_ms"] <= figures["sdk_p99_ms"]
    assert figures["rss_mb"] > 1


def test_the_ratios_are_medians_of_the_ratios_within_a_round(figures: dict[str, float]) -> None:
    slow = {name: value / 10 for name, value in figures.items()}
    rounds = [{"python": one, "go": one} for one in (figures, slow, figures)]
    medians = languages.medians(rounds)
    ratio = figures["sdk_10_steps_per_s"] / figures["bare_10_steps_per_s"]
    assert medians["go"]["sdk_of_bare_10"] == pytest.approx(ratio)
    assert medians["go"]["product_of_python"] == 1.0


def test_a_language_that_was_not_built_is_refused_with_the_command_that_builds_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(languages, "SDKS", languages.SDKS / "missing")
    with pytest.raises(BenchFailed, match=r"sh handlers_sdk/go/check\.sh build"):
        languages.programs("go")


def test_loop_and_sdk_of_ruby_run_with_the_same_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(languages.os, "access", lambda path, mode: True)
    monkeypatch.setattr(languages, "environ_words", {"ruby": ("env", "RUBYOPT=--yjit"), "go": ()}.__getitem__)
    echo, worker = languages.programs("ruby")
    assert echo[:2] == worker[:2] == ("env", "RUBYOPT=--yjit")
    assert len(languages.programs("go")[0]) == 1


def test_steps_that_a_worker_returns_because_it_is_busy_are_sent_again() -> None:
    with bound() as sockets:
        broker = BrokerWithoutStorage(sockets)
        broker._send(10)
        broker._on_message(refuse("busy"))
        assert (broker._unsent, broker._free, broker._unanswered) == (2, 5, {})
        with pytest.raises(BenchFailed, match="unknown_handler"):
            broker._on_message(refuse("unknown_handler"))


def refuse(code: RefuseCode) -> Refuse:
    items = [(9, 1), (10, 1)]
    return Refuse(
        v=V, worker="w:0123456789abcdef", session="1.1", batch_id="batch_bench_1", items=items, code=code, free=5
    )


@pytest.mark.parametrize(
    "words",
    [
        ("--langs", "cobol"),
        ("--langs", "python", "--routes"),
        ("--langs", "python", "--window", "5"),
    ],
)
def test_options_that_make_no_sense_with_languages_are_refused(empty: Place, words: tuple[str, ...]) -> None:
    refused = empty.stepwire("bench", *words)
    assert refused.code == USAGE
    assert "--langs" in refused.err or "--routes" in refused.err


def test_a_program_that_never_connects_ends_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwire_broker.bench.without_storage.CONNECT_S", 0.3)
    with bound() as sockets:
        with pytest.raises(BenchFailed, match="did not answer"):
            BareEcho(sockets).connect()
        with pytest.raises(BenchFailed, match="no worker opened a session"):
            BrokerWithoutStorage(sockets).connect()


def test_the_output_of_a_failing_program_is_part_of_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwire_broker.bench.without_storage.CONNECT_S", 2.0)
    command = (sys.executable, "-c", "raise SystemExit('no such binding')")
    with pytest.raises(BenchFailed, match="no such binding"):
        languages._bare(TINY, command)
