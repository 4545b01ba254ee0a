"""The starts of the programs that the kit grades."""

import os
import tempfile
import threading
import time
from pathlib import Path

from stepwire_conform.broker import PlayedBroker
from stepwire_conform.endpoints import PrivateEndpoints
from stepwire_conform.setting import STARTS_MAX, Setting
from stepwire_conform.stage import Stage

from tests.conform.planted import PYTHON_WORKER

PROGRAMS = STARTS_MAX + 2


class NotedStage(Stage):
    """A stage that notes when its program had a session."""

    ready_s = 0.0

    def until_session(
        self, broker: PlayedBroker | None = None, *, number: int | None = None, within_s: float = 60.0
    ) -> None:
        super().until_session(broker, number=number, within_s=within_s)
        self.ready_s = time.monotonic()


def test_only_a_few_programs_start_at_a_time_so_that_slow_runtimes_do_not_delay_each_other() -> None:
    with tempfile.TemporaryDirectory() as directory:
        setting = Setting(PYTHON_WORKER, dict(os.environ), PrivateEndpoints(Path(directory)), "starts")
        stages = [NotedStage(setting, "ipc") for _ in range(PROGRAMS)]
        threads = [threading.Thread(target=stage.open_session) for stage in stages]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for stage in stages:
            stage.close()
    starting = [sum(other.started_s <= stage.started_s < other.ready_s for other in stages) for stage in stages]
    assert all(stage.ready_s for stage in stages)
    assert max(starting) <= STARTS_MAX
