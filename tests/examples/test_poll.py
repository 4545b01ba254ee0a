"""The examples of workers over HTTP, each with a broker and without ZeroMQ or an SDK."""

import os
import shutil
import sys
from collections.abc import Iterator
from typing import Final

import pytest

from tests.system.harness import REPOSITORY, Program, Site, eventually

POLL: Final = REPOSITORY / "examples" / "poll"
ORDER: Final = {"items": [{"cents": 4500, "count": 2}, {"cents": 700, "count": 3}]}
LANGUAGES: Final = {"python": [sys.executable, str(POLL / "handler.py")], "sh": ["sh", str(POLL / "handler.sh")]}


@pytest.fixture
def site() -> Iterator[Site]:
    with Site(settings={"bus.lease_ms": 3_000, "bus.heartbeat_ms": 300, "execution.default_executor": "poll"}) as site:
        site.start_broker()
        applied = site.stepwire("workflow", "apply", str(POLL / "workflow.yaml"))
        assert applied.returncode == 0, applied.stderr
        yield site


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_example_alone_runs_a_task_to_its_end(language: str, site: Site) -> None:
    program = start(site, language)
    assert run(site, ORDER) == {"charged": 11_100, "by": language}
    bad = submit(site, {"items": "none"})
    eventually(lambda: site.task(bad)["steps"][0]["error"], "the handler's failure")
    program.ask_to_end()
    assert program.wait(40) == 0
    assert site.workers() == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_example_goes_on_after_a_restart_of_the_broker(language: str, site: Site) -> None:
    program = start(site, language)
    assert run(site, ORDER)
    assert site.broker is not None
    site.broker.kill9()
    site.start_broker()
    assert run(site, ORDER) == {"charged": 11_100, "by": language}
    assert program.is_running


def start(site: Site, language: str) -> Program:
    for needed in ("curl", "jq"):
        if language == "sh" and shutil.which(needed) is None:
            (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(f"there is no {needed}")
    program = site.start(f"poll-{language}", LANGUAGES[language], {"STEPWIRE_URL": site.url})

    def is_known() -> bool:
        assert program.is_running, f"the program ended:\n{program.stderr[-3_000:]}"
        return bool(site.workers())

    eventually(is_known, "the broker to know the program", 20)
    return program


def submit(site: Site, order: object) -> int:
    return site.client().submit("order", order, namespace="poll").task_id


def run(site: Site, order: object) -> object:
    task = site.client().wait(submit(site, order), 20)
    assert task["state"] == "completed", task
    return task["result"]["receipt"]
