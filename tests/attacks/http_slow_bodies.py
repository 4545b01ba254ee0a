"""Two tokens with the scopes `submit` and `work` announce bodies on 1,024 connections, and never send them."""

from stepwire_broker.core.answers.scopes import Scope

from .clients import keep_open, submission
from .target import Target


def attack(target: Target, seconds: float) -> dict[str, int]:
    tokens = [target.token("slow-submit", Scope.SUBMIT), target.token("slow-work", Scope.WORK)]
    work = submission(tokens[1], 1_000).replace(b"/v1/tasks/batch", b"/v1/worker/results")
    return keep_open(target, 1_024, [submission(tokens[0], 1_000), work], seconds)
