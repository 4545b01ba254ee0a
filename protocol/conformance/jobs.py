"""Divides seeds among processes, and collects the outcomes as they come."""

import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

Play = Callable[[Sequence[int]], Iterable[T]]


def outcomes(play: "Play[T]", seeds: Sequence[int], jobs: int) -> Iterator[T]:
    """The outcome of every seed. With several jobs, in no order. All processes end with the iterator."""
    if jobs == 1:
        yield from play(seeds)
        return
    context = multiprocessing.get_context("fork")
    queue: Any = context.SimpleQueue()
    processes = [context.Process(target=_job, args=(play, seeds[i::jobs], queue), daemon=True) for i in range(jobs)]
    for process in processes:
        process.start()
    try:
        ended = 0
        while ended < jobs:
            outcome = queue.get()
            if outcome is None:
                ended += 1
            else:
                yield outcome
        for process in processes:
            process.join()
            if process.exitcode != 0:  # its remaining seeds were not played, so the totals would be wrong
                raise RuntimeError(f"a process that played seeds ended with exit code {process.exitcode}")
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _job(play: "Play[T]", seeds: Sequence[int], queue: Any) -> None:
    """Play the seeds of one process. None marks its end, also if it fails."""
    try:
        for outcome in play(seeds):
            queue.put(outcome)
    finally:
        queue.put(None)
