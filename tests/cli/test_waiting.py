"""Commands that wait: Ctrl-C, the reason why a task does not move, warnings, and a broker that does not answer."""

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.system.harness import free_ports

from .a_place import STEPWIRE, Place, place, stop

OK, USAGE, UNREACHABLE, TASK_RUNS, INTERRUPTED = 0, 2, 5, 12, 130
WHY = "no worker offers `nobody.offers`"

TYPO = """
name: typo
namespace: shop
steps:
  - {name: charge, handler_class: shop.charg}
  - {name: other, handler_class: entirely.different}
"""
MEANT = "`shop.charg` is offered by no connected worker; did you mean `shop.charge`?"


def begin(place: Place, *words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [*STEPWIRE, *words],
        cwd=place.directory,
        env=place.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def submit(shop: Place) -> str:
    return str(shop.stepwire("task", "submit", "shop::slow", "--json").json["task_id"])


@pytest.mark.parametrize(
    ("words", "stream", "printed"),
    [
        (("task", "submit", "shop::slow", "--wait"), "stderr", "task "),
        (("task", "submit", "shop::slow", "--wait", "--json"), "stderr", "task "),
        (("task", "submit", "shop::slow", "--follow"), "stdout", "task "),
        (("task", "submit", "shop::slow", "-n", "2", "--wait"), "stderr", WHY),
        (("task", "watch", "{number}"), "stdout", "task "),
        (("task", "result", "{number}", "--wait"), "stderr", WHY),
        (("task", "events", "{number}", "--follow"), "stdout", "submitted"),
    ],
)
def test_an_interrupt_ends_the_wait_and_not_the_task(
    shop: Place, words: tuple[str, ...], stream: str, printed: str
) -> None:
    number = submit(shop)
    waiting = begin(shop, *(word.format(number=number) for word in words))
    output = getattr(waiting, stream)
    before = ""
    while printed not in before.replace("warning: ", ""):
        line = output.readline()
        assert line, waiting.communicate()
        before += line
    waiting.send_signal(signal.SIGINT)
    out, err = waiting.communicate(timeout=30)
    assert waiting.returncode == INTERRUPTED
    assert "Aborted" not in out + err
    last = err.splitlines()[-1]
    if "-n" in words:
        assert last == "the tasks go on: stepwire task list"
        return
    if "submit" in words:
        number = next(line for line in (before + out + err).splitlines() if line.startswith("task ")).split()[1]
    assert last == f"task {number} goes on: stepwire task watch {number}"
    assert shop.stepwire("task", "show", number, "--json").json["state"] == "running"


def test_a_wait_explains_once_why_the_task_does_not_move(shop: Place) -> None:
    done = shop.stepwire("task", "result", submit(shop), "--wait", "--timeout", "7s")
    assert done.code == TASK_RUNS
    assert done.err.count(WHY) == 1
    watched = shop.stepwire("task", "watch", submit(shop), "--timeout", "4s")
    assert (watched.code, watched.err.count(WHY)) == (TASK_RUNS, 1)
    assert WHY not in watched.out
    assert shop.stepwire("task", "watch", submit(shop), "--timeout", "4s", "-q").err == ""


def test_the_tree_explains_why_the_task_does_not_move(shop: Place) -> None:
    drawn = shop.on_terminal("task", "watch", submit(shop), "--timeout", "4s", NO_COLOR="1")
    assert f"why: `dream`: {WHY}" in drawn.out


def test_a_handler_that_is_not_offered_is_a_warning_with_the_nearest_name(shop: Place) -> None:
    (shop.directory / "typo.yaml").write_text(TYPO)
    applied = shop.stepwire("workflow", "apply", "typo.yaml")
    assert (applied.code, applied.out) == (OK, "shop::typo 1 applied\n")
    assert applied.err.splitlines()[:2] == [
        f"warning: typo.yaml: {MEANT}",
        "warning: typo.yaml: `entirely.different` is offered by no connected worker",
    ]
    done = shop.stepwire("task", "submit", "shop::typo")
    assert done.code == OK
    assert f"warning: {MEANT}\n" in done.err
    for words in (
        ("workflow", "apply", "typo.yaml"),
        ("task", "submit", "shop::typo"),
        ("workflow", "show", "shop::typo"),
    ):
        shown = shop.stepwire(*words, "--json").json
        (first, _) = (shown[0] if isinstance(shown, list) else shown)["warnings"]
        assert first == {
            "code": "not_offered",
            "message": MEANT,
            "path": None,
            "handlers": ["shop.charg"],
            "nearest": "shop.charge",
        }
    ((why,),) = [shop.stepwire("why", done.out.split()[1]).out.splitlines()]
    assert "no worker offers `shop.charg` (did you mean `shop.charge`? 1 worker connected" in why


def test_a_submission_of_offered_handlers_warns_of_nothing(shop: Place) -> None:
    done = shop.stepwire("task", "submit", "shop::order", "--json")
    assert (done.json["warnings"], done.err.count("warning")) == ([], 0)


def test_a_check_of_a_file_asks_no_broker(empty: Place) -> None:
    (empty.directory / "typo.yaml").write_text(TYPO)
    done = empty.stepwire("workflow", "validate", "typo.yaml", "--json")
    assert (done.code, done.json[0]["warnings"]) == (OK, [])


def test_only_commands_that_submit_or_wait_wait_for_a_broker_that_never_answered(empty: Place) -> None:
    url = ("--url", "http://127.0.0.1:1")
    listed = empty.stepwire("task", "list", *url)
    assert (listed.code, "trying again" in listed.err) == (UNREACHABLE, False)
    for words in (("task", "submit", "w"), ("task", "watch", "1"), ("task", "result", "1", "--wait"), ("task", "list")):
        done = empty.stepwire(*words, *url, "--outage", "500ms")
        assert (done.code, done.err.count("trying again for up to 0.5 s (Ctrl-C gives up)")) == (UNREACHABLE, 1), words
        assert "stepwire serve" in done.err
    assert "trying" not in empty.stepwire("task", "submit", "w", *url, STEPWIRE_OUTAGE_S="0").err
    assert empty.stepwire("task", "list", *url, "--outage", "soon").code == USAGE


def test_a_list_shows_only_the_keys_that_were_given(shop: Place) -> None:
    shop.stepwire("task", "submit", "shop::slow", "--key", "mine", "--label", "of=keys")
    shop.stepwire("task", "submit", "shop::slow", "--label", "of=keys")
    listed = shop.stepwire("task", "list", "--label", "of=keys", "--columns", "idempotency_key")
    assert listed.out.splitlines()[1:] == ["-", "mine"]
    keys = [task["idempotency_key"] for task in shop.stepwire("task", "list", "--label", "of=keys", "--json").json]
    assert keys[0].startswith("auto-")


def test_an_interrupted_submission_names_the_key_that_repeats_it(empty: Place) -> None:
    submitting = begin(empty, "task", "submit", "w", "--url", "http://127.0.0.1:1")
    assert submitting.stderr is not None
    assert "trying again" in submitting.stderr.readline()
    submitting.send_signal(signal.SIGINT)
    _, err = submitting.communicate(timeout=30)
    assert submitting.returncode == INTERRUPTED
    assert "add --key auto-" in err


def test_a_restart_between_two_commands_is_waited_for(tmp_path: Path) -> None:
    """The submission begins while no broker runs, and ends when one does."""
    tmp_path.chmod(0o700)
    here = place(tmp_path, free_ports(1)[0])
    broker = here.serve()
    try:
        (tmp_path / "w.yaml").write_text("name: w\nsteps: [{name: a, handler_class: h}]\n")
        assert here.stepwire("workflow", "apply", "w.yaml").code == OK
        broker.end(signal.SIGKILL)
        submitting = begin(here, "task", "submit", "w", "--json")
        assert submitting.stderr is not None
        assert "trying again for up to 30 s" in submitting.stderr.readline()
        broker = here.serve()
        out, err = submitting.communicate(timeout=40)
        assert (submitting.returncode, json.loads(out)["created"]) == (OK, True)
        assert "the broker answers again" in err
    finally:
        stop(broker.process)
