"""The faults of `loop_at_level0`, with the case that names each."""

from typing import Final

_CASES: Final = {
    "split_everywhere": "loop.spaces",
    "takes_every_topic": "loop.other_topics",
    "dies_of_malformed": "loop.malformed_json",
    "dies_of_a_failure": "loop.failure",
    "answers_twice": "loop.once",
    "forgets_the_batch_id": "loop.batch_id",
    "runs_everything": "loop.unknown_handler",
    "writes_nan": "loop.nan",
    "two_frames": "loop.answers",
    "no_space": "loop.answers",
    "ascii_only": "loop.unicode",
    "answers_the_first_step": "loop.several",
    "writes_a_type": "loop.members",
    "wrong_topic": "loop.answers",
    "subscribes_everything": "arrival:subscribes everything",
    "small_messages": "loop.large",
    "forgets_the_version": "loop.members",
    "never_reconnects": "loop.restart",
    "first_broker_only": "loop.brokers",
    "answers_the_first_broker_only": "loop.brokers",
}

LEVEL0_FAULTS: Final = {f"level0_{fault}": case for fault, case in _CASES.items()}
