"""`stepwire serve --with-handlers`: the module's worker next to the broker, from start to end."""

import json
import os
import signal
from pathlib import Path

import pytest

from tests.system.harness import eventually

from .a_place import Place, stop

OK, USAGE, TASK_FAILED = 0, 2, 10
MODULE = """
import os, pathlib, time
from stepwire import Context, Worker

worker = Worker.from_env()

@worker.handler("shop.charge")
def charge(context: Context, order: dict) -> dict:
    pathlib.Path("started").write_text(str(os.getpid()))
    while order.get("waits") and not pathlib.Path("gate").exists():
        time.sleep(0.01)
    return {"total": 1.5}
"""
WORKFLOW = "name: w\nsteps:\n  - {name: charge, handler_class: shop.charge}\n"


@pytest.fixture
def shop_place(empty: Place) -> Place:
    (empty.directory / "shop_handlers.py").write_text(MODULE)
    (empty.directory / "w.yaml").write_text(WORKFLOW)
    return empty


def handler_pid(place: Place, other_than: int = 0) -> int:
    """The process id of the handlers, once they run a step."""

    def started_pid() -> int | None:
        try:
            pid = int((place.directory / "started").read_text() or 0)
        except FileNotFoundError:
            return None
        return pid if pid not in (0, other_than) else None

    return eventually(started_pid, "a step to run", 30)


def submitted(place: Place, context: str = "{}", *words: str) -> str:
    done = place.stepwire("task", "submit", "w", "--context", context, "--json", *words)
    assert done.code == OK, done
    return str(done.json["task_id"])


def serve(place: Place, *words: str) -> "tuple[object, Place]":
    broker = place.serve("-o", "json", *words)
    place.environ["STEPWIRE_URL"] = json.loads(broker.ready)["http"]
    return broker, place


def test_a_drain_lets_the_handler_finish_and_stores_its_result(shop_place: Place) -> None:
    broker, place = serve(shop_place, "--with-handlers", "shop_handlers")
    try:
        assert place.stepwire("workflow", "apply", "w.yaml").code == OK
        number = submitted(place, '{"waits": true}')
        worker = handler_pid(place)
        (shown,) = place.stepwire("worker", "list", "--json").json
        assert (shown["worker"].partition(":")[0], shown["pid"]) == ("shop_handlers", worker)
        broker.process.send_signal(signal.SIGTERM)
        eventually(
            lambda: "stopping" in place.stepwire("task", "submit", "w", "--outage", "0s").err or None,
            "the drain to begin",
            30,
        )
        (place.directory / "gate").touch()
        ended = broker.end()
    finally:
        stop(broker.process)
    assert ended.code == OK, ended
    assert not Path(f"/proc/{worker}").exists()
    again, place = serve(shop_place)
    try:
        assert place.stepwire("task", "show", number, "--json").json["state"] == "completed"
    finally:
        stop(again.process)


def test_killed_handlers_are_restarted_and_their_step_runs_again(shop_place: Place) -> None:
    broker, place = serve(shop_place, "--with-handlers", "shop_handlers:worker")
    try:
        assert place.stepwire("workflow", "apply", "w.yaml").code == OK
        number = submitted(place, '{"waits": true}')
        first = handler_pid(place)
        os.kill(first, signal.SIGKILL)
        second = handler_pid(place, other_than=first)
        (place.directory / "gate").touch()
        shown = place.stepwire("task", "watch", number, "--json")
        assert shown.code == OK, shown
        os.kill(broker.process.pid, signal.SIGKILL)  # the handlers end with the broker
        eventually(lambda: not Path(f"/proc/{second}").exists() or None, "the handlers to end too", 30)
    finally:
        stop(broker.process)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("nowhere_at_all", "there is no module nowhere_at_all"),
        ("json", "json has no Worker(s), and needs one Worker"),
        ("shop_handlers:other", "needs a Worker called other"),
    ],
)
def test_an_unusable_module_is_refused_with_a_sentence(shop_place: Place, module: str, message: str) -> None:
    done = shop_place.stepwire("serve", "--with-handlers", module)
    assert done.code == USAGE
    assert message in done.err
    assert f"--with-handlers {module} cannot be used" in done.err
    assert "Traceback" not in done.err


def test_inproc_endpoints_are_refused(shop_place: Place) -> None:
    words = ["--set", "bus.steps=inproc://steps", "--set", "bus.results=inproc://results"]
    done = shop_place.stepwire("serve", "--with-handlers", "shop_handlers", *words)
    assert done.code == USAGE
    assert "which only this process can reach" in done.err


NOISY = """
from stepwire import Context, Worker

worker = Worker.from_env()

@worker.handler("shop.charge")
def charge(context: Context, order: dict) -> dict:
    context.log.info("charging %d", 5)
    return {"total": order["nope"]}
"""


@pytest.mark.parametrize("way", ["--local", "--with-handlers"])
def test_handlers_of_a_broker_log_json_lines_with_the_ids_of_the_step(shop_place: Place, way: str) -> None:
    (shop_place.directory / "noisy.py").write_text(NOISY)
    (shop_place.directory / "w.yaml").write_text(WORKFLOW.replace("charge}", "charge, retry_limit: 0}"))
    executor = "local" if way == "--local" else "bus"
    broker, place = serve(shop_place, way, "noisy", "--set", f"execution.default_executor={executor}")
    try:
        assert place.stepwire("workflow", "apply", "w.yaml").code == OK
        assert place.stepwire("task", "submit", "w", "--wait").code == TASK_FAILED
        broker.process.send_signal(signal.SIGTERM)
        ended = broker.end()
    finally:
        stop(broker.process)
    lines = [json.loads(line) for line in ended.err.splitlines()]
    ids = {"task_id": 1, "step_id": 2, "step_name": "charge", "attempt": 0}
    (charging,) = [line for line in lines if line["event"] == "charging 5"]
    (failed,) = [line for line in lines if line["event"].startswith("task 1 step 2 charge attempt 1 of 1 failed")]
    assert (charging["level"], failed["level"]) == ("info", "error")
    assert ids.items() <= charging.items()
    assert ids.items() <= failed.items()
    (exception,) = failed["exception"]
    assert (exception["exc_type"], exception["frames"][0]["name"]) == ("KeyError", "charge")


HELD_BACK = {
    "STEPWIRE_TOKEN": "t" * 43,
    "STEPWIRE_TOKEN_FILE": "/elsewhere",
    "STEPWIRE_LOG_LEVEL": "info",
    "DATABASE_URL": "",
    "AWS_SECRET_ACCESS_KEY": "secret",
}
PRINTS_ENVIRON = """
import json, os, pathlib
from stepwire import Worker

pathlib.Path("environ").write_text(json.dumps(dict(os.environ)))
worker = Worker.from_env()
worker.handler("h")(lambda context: {})
"""


def environ_of_handlers(place: Place, *words: str) -> dict[str, str]:
    (place.directory / "printing.py").write_text(PRINTS_ENVIRON)
    given = {"STEPWIRE_LABELS": "region=eu", "TZ": "UTC", "PYTHONPATH": "src", **HELD_BACK}
    broker = Place(place.directory, {**place.environ, **given}).serve("--with-handlers", "printing", *words)
    try:
        file = place.directory / "environ"
        text = eventually(lambda: file.exists() and file.read_text(), "the handlers to start", 30)
    finally:
        stop(broker.process)
    environ: dict[str, str] = json.loads(text)
    return environ


def test_handlers_get_no_variable_that_is_not_meant_for_them(empty: Place) -> None:
    environ = environ_of_handlers(empty)
    assert HELD_BACK.keys() & environ.keys() == set()
    for name in ("STEPWIRE_STEPS", "STEPWIRE_RESULTS", "STEPWIRE_URL", "PATH", "HOME"):
        assert environ[name]
    shown = {name: environ[name] for name in ("STEPWIRE_LABELS", "STEPWIRE_NAME", "TZ", "PYTHONPATH")}
    assert shown == {"STEPWIRE_LABELS": "region=eu", "STEPWIRE_NAME": "printing", "TZ": "UTC", "PYTHONPATH": "src"}


def test_handlers_get_the_variables_and_the_token_that_the_configuration_passes(empty: Place) -> None:
    environ = environ_of_handlers(empty, "--set", "handlers.pass_env=AWS_*, STEPWIRE_TOKEN_FILE")
    assert environ["AWS_SECRET_ACCESS_KEY"] == "secret"
    assert environ["STEPWIRE_TOKEN_FILE"] == str(empty.directory / ".stepwire/token")
    assert {"STEPWIRE_TOKEN", "DATABASE_URL", "PYTHONPATH"} & environ.keys() == set()
