"""Configuration of a worker: environment, endpoints, registration of handlers, imports."""

import subprocess
import sys

import pytest
from stepwire import ConfigurationError, Worker


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"STEPWIRE_STEPS": "tcp://127.0.0.1", "STEPWIRE_RESULTS": "tcp://127.0.0.1:2"}, "has no port"),
        ({"STEPWIRE_STEPS": "tcp//:1", "STEPWIRE_RESULTS": "tcp://127.0.0.1:2"}, "needs a form like"),
        ({"STEPWIRE_STEPS": "tcp://*:1", "STEPWIRE_RESULTS": "tcp://127.0.0.1:2"}, "names no host"),
        ({"STEPWIRE_STEPS": "udp://h:1", "STEPWIRE_RESULTS": "tcp://127.0.0.1:2"}, "udp:// is not supported"),
        ({"STEPWIRE_STEPS": "ipc://" + "x" * 108}, "108 bytes"),
        ({"STEPWIRE_STEPS": "inproc://steps", "STEPWIRE_RESULTS": "inproc://results"}, "pass its context"),
        ({"STEPWIRE_STEPS": "ipc://a,ipc://b"}, "2 endpoints for steps and 1 for results"),
        ({"STEPWIRE_NAME": "a b"}, "STEPWIRE_NAME"),
        ({"STEPWIRE_SLOTS": "many"}, "STEPWIRE_SLOTS"),
        ({"STEPWIRE_SLOTS": "0"}, "at least 1|1 to"),
        ({"STEPWIRE_LABELS": "gpu"}, "region=eu"),
        ({"STEPWIRE_HANDLER_VERSION": "x" * 65}, "at most 64"),
    ],
)
def test_an_invalid_environment_is_refused_with_an_explanation(monkeypatch, environ, says):
    for name in ("STEPS", "RESULTS", "NAME", "SLOTS", "LABELS", "HANDLER_VERSION"):
        monkeypatch.delenv(f"STEPWIRE_{name}", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=says):
        Worker.from_env()


def test_the_environment_names_several_brokers_and_labels(monkeypatch):
    monkeypatch.setenv("STEPWIRE_STEPS", "tcp://h:1, tcp://i:1")
    monkeypatch.setenv("STEPWIRE_RESULTS", "tcp://h:2,tcp://i:2")
    monkeypatch.setenv("STEPWIRE_LABELS", "region=eu, gpu=")
    worker = Worker.from_env(slots=3)
    assert [tuple(link) for link in worker._links] == [("tcp://h:1", "tcp://h:2"), ("tcp://i:1", "tcp://i:2")]
    assert worker._labels == {"region": "eu", "gpu": ""}


def _two(ctx, one, two):
    return None


def _none():
    return None


async def _async(ctx):
    return None


@pytest.mark.parametrize(
    ("function", "options", "says"),
    [
        (_none, {}, "handler _none takes no parameter"),
        (_two, {}, "handler _two: it can have at most two parameters"),
        (_async, {"process": True}, "async"),
        (lambda ctx: None, {"process": True}, "top of a module"),
        (_async, {"concurrency": 0}, "at least 1"),
        (_async, {"timeout_ms": 0}, "at least 1"),
    ],
)
def test_a_handler_that_could_only_fail_later_is_refused_when_it_is_registered(function, options, says):
    worker = Worker()
    with pytest.raises(ConfigurationError, match=says):
        worker.handler("h", **options)(function)


def test_a_handler_decorator_without_a_name_is_refused():
    with pytest.raises(ConfigurationError, match=r'write @worker\.handler\("_async"\): the handler\'s name is missing'):
        Worker().handler(_async)


def test_registering_a_name_twice_is_refused() -> None:
    worker = Worker()
    worker.handler("h")(_async)
    with pytest.raises(ConfigurationError, match="registered twice"):
        worker.handler("h")(_async)


def test_registering_a_handler_after_the_start_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    worker = Worker(steps="ipc://s", results="ipc://r")
    worker.handler("h")(_async)
    worker.start()
    try:
        with pytest.raises(ConfigurationError, match="too late: register handlers before the worker starts"):
            worker.handler("g")(_async)
    finally:
        worker.stop(drain_ms=100)


def test_importing_stepwire_loads_neither_zeromq_nor_the_broker():
    code = "import sys, stepwire; print([m for m in ('zmq', 'stepwire_broker', 'asyncio') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_command_of_a_light_install_explains_how_to_install_the_broker():
    code = (
        "import sys; sys.modules['stepwire_broker.cli.main'] = None\n"
        "from stepwire.__main__ import main; sys.argv = ['stepwire']; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install '.[broker]'" in done.stderr
