"""Permissions of tokens."""

import enum


class Scope(enum.StrEnum):
    """A permission of a token. No scope includes another, except ADMIN, which includes all."""

    READ = "read"  # read tasks, steps, workflows, workers, events, metrics
    SUBMIT = "submit"  # submit tasks
    WORK = "work"  # lease steps over HTTP and report their results
    OPERATE = "operate"  # cancel, pause, resume, retry, resolve; drain workers; read the messages of the bus
    ADMIN = "admin"  # everything; the only scope that allows applying and activating workflows, and pruning
