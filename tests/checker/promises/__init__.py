"""The promises as rules over a database and its ledgers: one module for each group of promises.

A rule is a function that yields every breach of its promise. Names and order are those of tests/simulation/checks. What
the history alone shows is judged in tests/checker/language.py; here it meets its rows, and both meet the witnesses.
"""

from typing import Final

from . import (
    at_most_once,
    commands,
    commits,
    deliveries,
    dependencies,
    history,
    recovery,
    results,
    retries,
    submissions,
)
from .common import CaseRule, WholeRule

CASE_RULES: Final[tuple[CaseRule, ...]] = (
    submissions.a_task_is_stored_whole,
    submissions.a_task_has_its_key,
    submissions.every_task_was_submitted,
    submissions.an_observed_end_is_kept,
    dependencies.only_a_dispatched_delivery_runs,
    dependencies.no_step_starts_before_its_dependencies,
    dependencies.a_step_receives_the_committed_outputs,
    results.an_outcome_is_what_its_handler_returned,
    results.an_acknowledged_result_is_applied,
    deliveries.a_delivery_runs_once,
    deliveries.runs_overlap_only_with_a_cause,
    deliveries.an_idempotency_key_belongs_to_one_step,
    at_most_once.an_at_most_once_step_starts_once,
    at_most_once.an_at_most_once_step_starts_on_a_go,
    at_most_once.a_held_step_has_a_cause,
    at_most_once.attention_is_for_a_held_step,
    retries.no_step_runs_again_without_a_cause,
    retries.attempts_never_decrease,
    retries.a_step_receives_its_attempt,
    retries.a_run_ends_by_its_deadline,
    commits.nothing_is_sent_before_its_commit,
    commits.causes_come_before_effects,
    history.the_rows_match_the_history,
    history.an_output_is_the_one_that_was_applied,
    history.the_history_replays,
    commands.every_command_was_sent,
)
WHOLE_RULES: Final[tuple[WholeRule, ...]] = (
    submissions.nothing_acknowledged_is_lost,
    submissions.a_key_makes_one_task,
    dependencies.every_run_has_a_step,
    history.no_commit_is_undone,
    history.the_history_has_no_gap,
    history.the_database_is_sound,
    history.nothing_is_parked,
)
# Only when every task has had the time that it needs.
AT_THE_END: Final[tuple[CaseRule, ...]] = (recovery.every_acknowledged_task_ends,)
