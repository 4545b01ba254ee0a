"""The brokers that the tests of the API send requests to."""

from collections.abc import Iterator

import pytest
from stepwire import Context, OutcomeUnknown, Permanent, Worker

from .running_api import WORKFLOW, Api, endpoints, running, settings_in


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """One broker for the tests of a module. It has no workers, so tasks stay as they are submitted."""
    directory = tmp_path_factory.mktemp("api", numbered=True)
    directory.chmod(0o700)
    with running(directory, settings_in(directory)) as found:
        assert found.call("POST", "/v1/workflows", WORKFLOW).status == 201
        yield found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A broker with a worker. The context of a task decides how `charge` ends."""
    directory = tmp_path_factory.mktemp("served", numbered=True)
    directory.chmod(0o700)
    settings = settings_in(directory)
    with running(directory, settings) as found:
        assert found.call("POST", "/v1/workflows", WORKFLOW).status == 201
        steps, results = endpoints(settings)
        worker = Worker(steps=steps, results=results, name="w")

        @worker.handler("shop.reserve")
        def reserve(context: Context) -> dict[str, int]:
            return {"seats": 2}

        @worker.handler("shop.charge")
        def charge(context: Context, order: dict[str, str]) -> dict[str, float]:
            if order.get("network") == "down":
                raise OutcomeUnknown("the gateway did not answer")
            if order.get("card") == "declined":
                raise Permanent("no money", code="card_declined")
            return {"total": 1.5}

        worker.start()
        try:
            yield found
        finally:
            worker.stop()
