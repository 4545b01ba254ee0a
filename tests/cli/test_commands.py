"""The commands against a real broker in another process: their output and their exit codes."""

import json
import re
import subprocess
import sys

import pytest
from stepwire_broker.cli.options import Options
from stepwire_broker.cli.task.submit import _print_states

from .a_place import STEPWIRE, Ended, Place

OK, FAILURE, USAGE, NOT_FOUND, WRONG_STATE, UNREACHABLE, DENIED = range(7)
TASK_FAILED, TASK_CANCELLED, TASK_RUNS, TASK_HELD = range(10, 14)


def submit(shop: Place, workflow: str = "shop::slow") -> str:
    done = shop.stepwire("task", "submit", workflow, "--json")
    assert done.code == OK, done
    return str(done.json["task_id"])


# -- tasks ------------------------------------------------------------------------------------------------------------


def test_a_task_is_submitted_and_shown(shop: Place) -> None:
    done = shop.stepwire("task", "submit", "slow", "--namespace", "shop", "--context", '{"a": 1.50}', "--priority", "3")
    assert done.code == OK
    number = done.out.split()[1]
    assert done.err.endswith(f"\nnext: stepwire task show {number}\n")
    task = shop.stepwire("task", "show", number, "-o", "json").json
    assert (task["workflow"], task["context"], task["priority"]) == ("slow", {"a": 1.5}, 3)
    shown = shop.stepwire("task", "show", number)
    assert shown.out.startswith(f"task {number}  shop::slow 1\nstate    running\n")
    assert "dream\t" in shown.out
    assert shown.err == ""


def test_a_context_comes_from_the_command_line_a_file_or_stdin(shop: Place) -> None:
    (shop.directory / "context.json").write_text('{"from": "file"}')
    for words, stdin, context in [
        (["--context", '{"from": "line"}'], "", {"from": "line"}),
        (["--context", "@context.json"], "", {"from": "file"}),
        (["--context", "-"], '{"from": "stdin"}', {"from": "stdin"}),
    ]:
        done = shop.stepwire("task", "submit", "shop::slow", *words, "--json", stdin=stdin)
        assert shop.stepwire("task", "show", str(done.json["task_id"]), "--json").json["context"] == context


def test_the_same_key_returns_the_same_task(shop: Place) -> None:
    first = shop.stepwire("task", "submit", "shop::slow", "--key", "k1", "--json")
    again = shop.stepwire("task", "submit", "shop::slow", "--key", "k1", "--json")
    assert (first.json["created"], again.json["created"]) == (True, False)
    assert first.json["task_id"] == again.json["task_id"]
    other = shop.stepwire("task", "submit", "shop::slow", "--key", "k1", "--context", '{"a":1}')
    assert other.code == WRONG_STATE
    assert "k1" in other.err


def test_n_tasks_are_submitted_at_once(shop: Place) -> None:
    done = shop.stepwire("task", "submit", "shop::slow", "-n", "1200", "--label", "of=many", "-o", "jsonl")
    ids = [json.loads(line)["task_id"] for line in done.out.splitlines()]
    assert len(set(ids)) == 1200
    assert done.err == "warning: `nobody.offers` is offered by no connected worker\n"
    page = shop.stepwire("task", "list", "--workflow", "slow", "--limit", "1", "-o", "jsonl")
    assert json.loads(page.out)["task_id"] == max(ids)


def test_the_ids_of_few_tasks_are_all_printed_and_of_many_the_first_and_the_last(shop: Place) -> None:
    few = shop.stepwire("task", "submit", "shop::slow", "-n", "3")
    ids = re.fullmatch(r"3 tasks: (\d+), (\d+), (\d+)\n", few.out)
    assert ids is not None, few.out
    assert len(set(ids.groups())) == 3
    many = shop.stepwire("task", "submit", "shop::slow", "-n", "11")
    assert re.fullmatch(r"11 tasks, the first \d+, the last \d+\n", many.out), many.out


def test_the_states_of_several_awaited_tasks_are_printed(shop: Place) -> None:
    words = ["task", "submit", "shop::order", "-n", "2", "--wait", "--context", '{"card":"broken"}']
    done = shop.stepwire(*words)
    assert (done.code, done.out.splitlines()[1]) == (TASK_FAILED, "2 failed")
    done = shop.stepwire(*words, "-o", "json")
    assert [(task["task_id"], task["state"]) for task in done.json["tasks"]] == [
        (task_id, "failed") for task_id in done.json["task_ids"]
    ]
    done = shop.stepwire(*words, "-o", "jsonl")
    assert [json.loads(line)["state"] for line in done.out.splitlines()] == ["failed", "failed"]


def test_tasks_of_several_states_are_named_unless_they_completed(capsys: pytest.CaptureFixture[str]) -> None:
    states = {5: ("completed", None), 6: ("failed", None), 7: ("running", "held"), 8: (None, None)}
    tasks = [{"task_id": n, "state": state, "attention": attention} for n, (state, attention) in states.items()]
    _print_states(Options(), tasks)
    assert capsys.readouterr().out == "1 completed; 1 failed: 6; 1 held: 7; 1 not waited for: 8\n"


def test_task_show_has_the_key_and_the_labels(shop: Place) -> None:
    words = ["--key", "order-7", "--label", "region=eu", "--label", "tier=gold", "--json"]
    number = str(shop.stepwire("task", "submit", "shop::slow", *words).json["task_id"])
    shown = shop.stepwire("task", "show", number).out.splitlines()
    assert {"key      order-7", "labels   region=eu, tier=gold"} <= set(shown)
    plain = shop.stepwire("task", "show", submit(shop)).out
    assert "\nkey " not in plain
    assert "\nlabels " not in plain


def test_the_id_of_a_step_is_not_taken_for_a_task_and_the_id_of_a_task_not_for_a_step(shop: Place) -> None:
    task = submit(shop)
    step = shop.stepwire("task", "show", task, "--json").json["steps"][0]["step_id"]
    for command in ("show", "events"):
        done = shop.stepwire("task", command, str(step))
        assert done.code == NOT_FOUND
        assert f"{step} is the step `dream` of task {task}\n  see: stepwire task show {task}\n" in done.err
    done = shop.stepwire("step", "show", task)
    assert done.code == NOT_FOUND
    assert f"{task} is a task\n  its steps: {task}/dream\n" in done.err


def test_the_result_of_a_task_that_has_ended_is_not_waited_for(shop: Place) -> None:
    task = submit(shop)
    assert f"task result {task} --wait" in shop.stepwire("task", "result", task).err
    shop.stepwire("task", "cancel", task)
    assert "--wait" not in shop.stepwire("task", "result", task).err


@pytest.mark.parametrize(
    ("context", "code", "state"),
    [
        ("{}", OK, "completed"),
        ('{"card":"broken"}', TASK_FAILED, "failed"),
        ('{"card":"unknown"}', TASK_HELD, "running"),
    ],
)
def test_the_exit_code_of_a_wait_tells_how_the_task_ended(shop: Place, context: str, code: int, state: str) -> None:
    done = shop.stepwire("task", "submit", "shop::order", "--context", context, "--wait", "--json")
    assert (done.code, done.json["state"]) == (code, state)


def test_the_exit_codes_of_a_running_and_a_cancelled_task(shop: Place) -> None:
    done = shop.stepwire("task", "submit", "shop::slow", "--key", "slow", "--wait", "--timeout", "10ms", "--json")
    assert (done.code, done.json["state"]) == (TASK_RUNS, "running")
    assert shop.stepwire("task", "cancel", str(done.json["task_id"]), "--reason", "too slow").code == OK
    done = shop.stepwire("task", "submit", "shop::slow", "--key", "slow", "--wait", "--json")
    assert (done.code, done.json["state"]) == (TASK_CANCELLED, "cancelled")


def test_commands_change_the_state_of_a_task(shop: Place) -> None:
    number = submit(shop)
    for command, state in [("pause", "paused"), ("resume", "running"), ("cancel", "cancelled"), ("retry", "running")]:
        done = shop.stepwire("task", command, number)
        assert (done.code, done.out) == (OK, f"task {number} is {state}\n")
    assert shop.stepwire("task", "cancel", number, "--json").json["state"] == "cancelled"
    done = shop.stepwire("task", "pause", number)
    assert (done.code, done.out) == (WRONG_STATE, "")
    assert done.err.startswith(f"stepwire: task {number} is cancelled")


# -- steps ------------------------------------------------------------------------------------------------------------


def test_a_held_step_is_found_and_resolved_by_its_name(shop: Place) -> None:
    held = shop.stepwire("task", "submit", "shop::order", "--context", '{"card":"unknown"}', "--wait")
    assert held.code == TASK_HELD
    assert "stepwire step resolve" in held.err
    number = held.out.split()[1]
    steps = [json.loads(line) for line in shop.stepwire("step", "list", "-o", "jsonl").out.splitlines()]
    (step,) = [step for step in steps if step["task_id"] == int(number)]
    assert shop.stepwire("step", "list", "--handler-class", "nobody.*").err == "no step is held\n"
    shown = shop.stepwire("step", "show", f"{number}/charge", "--json")
    assert (shown.json["step_id"], shown.json["state"]) == (step["step_id"], "held")

    without_outcome = shop.stepwire("step", "resolve", f"{number}/charge", "--reason", "r")
    assert (without_outcome.code, without_outcome.err) == (
        USAGE,
        "stepwire: choose one of --completed JSON, --failed TEXT and --retry\n",
    )
    assert shop.stepwire("step", "resolve", f"{number}/charge", "--retry").code == USAGE
    done = shop.stepwire(
        "step", "resolve", f"{number}/charge", "--completed", '{"total": 2}', "--reason", "asked the bank"
    )
    assert done.code == OK, done
    assert shop.stepwire("task", "show", number, "--json").json["steps"][0]["output"] == {"total": 2}
    again = shop.stepwire("step", "resolve", str(step["step_id"]), "--retry", "--reason", "r")
    assert again.code == WRONG_STATE


@pytest.mark.parametrize(
    ("reference", "code"), [("x", USAGE), ("1/", USAGE), ("999999", NOT_FOUND), ("999999/a", NOT_FOUND)]
)
def test_a_step_reference_is_an_id_or_a_task_and_a_name(shop: Place, reference: str, code: int) -> None:
    assert shop.stepwire("step", "show", reference).code == code


# -- workflows, workers, the wire -------------------------------------------------------------------------------------


def test_a_workflow_is_applied_once_and_never_changed(shop: Place) -> None:
    assert shop.stepwire("workflow", "apply", "order.yaml").out == "shop::order 1 is unchanged\n"
    changed = (shop.directory / "order.yaml").read_text().replace("charge, handler", "chargee, handler")
    (shop.directory / "changed.yaml").write_text(changed)
    done = shop.stepwire("workflow", "apply", "changed.yaml")
    assert done.code == WRONG_STATE
    assert done.err.startswith("stepwire: changed.yaml: ")
    names = [one["name"] for one in shop.stepwire("workflow", "list", "--json").json]
    assert {"order", "slow"} <= set(names)


def test_a_workflow_is_validated_without_a_broker(empty: Place) -> None:
    (empty.directory / "good.yaml").write_text("name: a\nsteps:\n  - {name: s, handler_class: h}\n")
    (empty.directory / "wrong.yaml").write_text("name: a\nsteps:\n  - {name: s, handler_clas: h}\n")
    assert empty.stepwire("workflow", "validate", "good.yaml") == Ended(OK, "good.yaml: valid\n", "")
    done = empty.stepwire("workflow", "validate", "good.yaml", "wrong.yaml")
    assert (done.code, done.out) == (USAGE, "good.yaml: valid\n")
    assert "wrong.yaml:3" in done.err
    assert "handler_class" in done.err
    results = empty.stepwire("workflow", "validate", "good.yaml", "wrong.yaml", "--json").json
    assert [one["valid"] for one in results] == [True, False]


def test_workers_are_listed(shop: Place) -> None:
    assert shop.stepwire("task", "submit", "shop::order", "--wait").code == OK  # so one is connected
    workers = shop.stepwire("worker", "list", "--json").json
    assert ["shop.charge"] in [worker["handlers"] for worker in workers]


def test_tap_prints_live_messages(shop: Place) -> None:
    tap = subprocess.Popen(
        [*STEPWIRE, "tap", "--topic", "@*", "-n", "1", "-o", "jsonl"],
        cwd=shop.directory,
        env=shop.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        # The broker answers a worker's heartbeat every two seconds, also when idle.
        out, err = tap.communicate(timeout=30)
    finally:
        tap.kill()
    assert (tap.returncode, err) == (OK, "")
    assert json.loads(out)["direction"] == "out"


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["task", "show", "999999"], NOT_FOUND, "there is no task 999999"),
        (["task", "show", "999999"], NOT_FOUND, "see: stepwire task list"),
        (["workflow", "show", "shop::nothing"], NOT_FOUND, "see: stepwire workflow list"),
        (["task", "submit", "shop::nothing"], NOT_FOUND, "nothing"),
        (["task", "submit", "shop::slow", "--context", "{"], USAGE, "--context is not JSON"),
        (["task", "submit", "shop::slow", "--context", "[1]"], USAGE, "is not a JSON object"),
        (["task", "submit", "shop::slow", "--context", "@nowhere"], USAGE, "cannot be read"),
        (["task", "submit", "shop::slow", "--priority", "101"], USAGE, "priority"),
        (["task", "submit", "shop::slow", "--label", "x"], USAGE, "region=eu"),
        (["task", "submit", "shop::slow", "--timeout", "soon"], USAGE, "30s or 5m"),
        (["task", "show", "x"], USAGE, "'x' is not the id of a task"),
        (["task", "show", "65/charge"], USAGE, "65/charge is a step: stepwire step show 65/charge"),
        (["task", "cancel", "65/charge"], USAGE, "65/charge is a step: stepwire step show 65/charge"),
        (["step", "show", "999999"], NOT_FOUND, "see: stepwire task list"),
        (["task", "list", "--state", "held"], USAGE, "held is a state of steps: stepwire step list --state held"),
        (["task", "submit", "shop::slow", "--context", "order.yaml"], USAGE, "to read a file: --context @order.yaml"),
        (["task", "submit", "shop::slow", "--context", "no.json"], USAGE, "to read a file: --context @no.json"),
        (["task", "submit", "shop::slow", "--context", "@."], USAGE, ". cannot be read: Is a directory"),
        (["task", "submit", "shop::slow", "--context", "@latin1"], USAGE, "latin1 is not UTF-8 text"),
        (["task", "submit", "shop::slow", "--context", "@deep"], USAGE, "deep: the nesting is deeper than 32"),
        (["workflow", "graph", "nowhere.yaml"], USAGE, "nowhere.yaml cannot be read"),
        (["route", "nothing"], USAGE, "nothing is not the path of a step: use a form like default::order::charge"),
        (["route", "a::b::c", "--selector", "x"], USAGE, "labels have a form like gpu=true"),
        (["task", "list", "--url", "http://127.0.0.1:1/v1/"], USAGE, "must not end in /v1: use http://127.0.0.1:1\n"),
        (["task", "nothing"], USAGE, "there is no command stepwire task nothing"),
        (["workflow", "apply", "nowhere.yaml"], USAGE, "nowhere.yaml cannot be read"),
        (["task", "show", "1", "--token-file", "wrong"], DENIED, "--token-file FILE"),
        (["task", "show", "1", "--token-file", "nowhere"], USAGE, "nowhere"),
        (["task", "show", "1", "--token-file", "worker.py"], USAGE, "chmod 600 worker.py"),
        (["task", "show", "1", "--url", "http://127.0.0.1:1"], UNREACHABLE, "stepwire serve"),
        (["task", "show", "1", "--url", "nonsense"], USAGE, "it needs a form like"),
    ],
)
def test_an_error_has_a_sentence_and_an_exit_code(shop: Place, words: list[str], code: int, text: str) -> None:
    (shop.directory / "wrong").write_text("x" * 43)
    (shop.directory / "wrong").chmod(0o600)
    (shop.directory / "latin1").write_bytes(b'{"a": "\xe9"}')
    (shop.directory / "deep").write_text('{"a": ' + "[" * 3000 + "]" * 3000 + "}")
    done = shop.stepwire(*words)
    assert (done.code, done.out) == (code, "")
    assert text in done.err
    assert "Traceback" not in done.err


def test_an_error_is_json_with_json_output(shop: Place) -> None:
    done = shop.stepwire("task", "show", "999999", "-o", "json")
    assert (done.code, done.out) == (NOT_FOUND, "")
    assert json.loads(done.err)["error"]["code"] == "not_found"


def test_https_to_a_broker_without_tls_names_the_url_to_use(shop: Place) -> None:
    url = shop.environ["STEPWIRE_HTTP__LISTEN"]
    done = shop.stepwire("task", "list", "--url", f"https://{url}")
    assert (done.code, done.err) == (
        UNREACHABLE,
        f"stepwire: the server at https://{url} speaks http, not https\n  use --url http://{url}\n",
    )


def test_global_options_may_come_before_or_after_the_command(shop: Place) -> None:
    number = submit(shop)
    first = shop.stepwire("-o", "json", "task", "show", number)
    assert first.json == shop.stepwire("task", "-o", "json", "show", number).json
    assert first.json == shop.stepwire("task", "show", number, "--json").json


def test_a_token_comes_from_a_file_or_the_environment(shop: Place, empty: Place) -> None:
    address = f"http://{shop.environ['STEPWIRE_HTTP__LISTEN']}"
    token_file = shop.directory / ".stepwire/token"
    listing = ["task", "list", "--url", address]
    assert empty.stepwire(*listing).code == DENIED
    (empty.directory / "tokens").write_text(f"# of the shop\nsha256:{'0' * 64}\n{token_file.read_text()}")
    (empty.directory / "tokens").chmod(0o600)
    assert empty.stepwire(*listing, "--token-file", "tokens").code == OK
    assert empty.stepwire(*listing, "--token-file", str(token_file)).code == OK
    assert empty.stepwire(*listing, STEPWIRE_TOKEN_FILE=str(token_file)).code == OK
    assert empty.stepwire(*listing, STEPWIRE_TOKEN=token_file.read_text().strip()).code == OK
    assert empty.stepwire("task", "list", STEPWIRE_URL=address, STEPWIRE_TOKEN_FILE=str(token_file)).code == OK


# -- without a broker -------------------------------------------------------------------------------------------------


def test_config_show_prints_the_origin_of_each_value(empty: Place) -> None:
    (empty.directory / "stepwire.yaml").write_text("bus: {lease: 5s}\n")
    rows = {row["key"]: row for row in empty.stepwire("config", "show", "--origin", "-o", "json").json}
    assert rows["bus.lease_ms"] == {"key": "bus.lease_ms", "value": 5000, "origin": "stepwire.yaml"}
    assert rows["http.listen"]["origin"] == "STEPWIRE_HTTP__LISTEN"
    assert rows["log_level"]["origin"] == "default"
    text = empty.stepwire("config", "show", "--origin").out.splitlines()
    assert text[0] == "KEY\tVALUE\tORIGIN"
    assert "bus.lease_ms\t5000\tstepwire.yaml" in text
    assert "\tdefault" not in empty.stepwire("config", "show").out


def test_a_workflow_is_validated_from_standard_input(empty: Place) -> None:
    text = "name: w\nsteps:\n  - name: a\n    handler_class: h\n"
    assert empty.stepwire("workflow", "validate", "-", stdin=text) == Ended(OK, "standard input: valid\n", "")
    assert "standard input:4: " in empty.stepwire("workflow", "validate", "-", stdin=text.replace("    h", "   h")).err


def test_config_validate_refuses_a_wrong_configuration(empty: Place) -> None:
    assert empty.stepwire("config", "validate").code == OK
    done = empty.stepwire("config", "validate", STEPWIRE_HTTP__LISTEN="0.0.0.0:7410")
    assert done.code == USAGE
    assert "http.allow_insecure: true" in done.err
    (empty.directory / "stepwire.yaml").write_text("bus: {lese: 5s}\n")
    done = empty.stepwire("config", "validate")
    assert done.code == USAGE
    assert "did you mean bus.lease?" in done.err


def test_version_prints_the_versions_of_the_libraries(empty: Place) -> None:
    assert empty.stepwire("version").out.startswith("stepwire  ")
    assert set(empty.stepwire("version", "--json").json) >= {"stepwire", "protocol", "python", "libzmq", "sqlite"}


def test_help_lists_the_commands_and_the_global_options(empty: Place) -> None:
    done = empty.stepwire("--help")
    assert done.code == OK
    for name in ("config", "serve", "step", "tap", "task", "version", "worker", "workflow"):
        assert f"\n  {name} " in done.out
    assert "Global options" in empty.stepwire("task", "submit", "--help").out


@pytest.mark.parametrize("heavy", ["sqlalchemy", "uvicorn", "starlette", "zmq", "rich.console", "structlog", "yaml"])
def test_help_imports_no_heavy_module(heavy: str) -> None:
    code = (
        "import sys; from click.testing import CliRunner; from stepwire_broker.cli.main import main;"
        f" CliRunner().invoke(main, ['--help']); print({heavy!r} in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "False\n", done.stderr
