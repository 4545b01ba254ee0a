"""The planted faults at the edge of the worker: references to secrets, and sealed payloads."""

import os
from collections.abc import Callable
from typing import Any, Final

import stepwire.context
import stepwire.handler
from msgspec import structs
from stepwire import edge, redaction, sealed_steps, sealing, secret_files, secret_values, tracebacks
from stepwire.edge import Edge
from stepwire.runners import run_log
from stepwire.sealing import SealKeys
from stepwire_protocol import secret_references

from .patches import Patch, both, edit, put

PLAIN_INPUT: Final = "step.task_context if step.input is UNSET else step.input"


def _uncleaned(text: str, chars_max: int = 2000) -> str:
    return text[:chars_max]


def _not_opened(change: Callable[[str], str], *, is_retryable: bool = True) -> Patch:
    """Results of steps that were not opened, with another message or no retry."""
    original = edge.not_opened

    def changed(step: Any, code: str, message: str, **more: Any) -> Any:
        result = original(step, code, change(message), **more)
        assert result.error is not None
        return structs.replace(result, error=structs.replace(result.error, retryable=is_retryable))

    return put(edge, "not_opened", changed)


def _kept_values() -> Patch:
    values: dict[str, str] = {}
    original = secret_values._value_of

    def value_of(name: str, resolver: Any) -> str:
        return values.setdefault(name, values.get(name) or original(name, resolver))

    return put(secret_values, "_value_of", value_of)


def _random_nonce() -> Patch:
    return edit(
        SealKeys,
        "seal",
        "hmac.digest(nonce_key, aad + plaintext, hashlib.sha256)[:NONCE_BYTES]",
        "os.urandom(NONCE_BYTES)",
    )


def _sealed(change: Callable[..., Any]) -> Patch:
    original = sealed_steps.sealed

    def changed(step: Any, task: Any, keys: Any, result: Any) -> Any:
        return change(result, original(step, task, keys, result))

    return put(sealed_steps, "sealed", changed)


def _last_key_seals() -> Patch:
    original = SealKeys.__init__

    def init(self: SealKeys, keys: Any) -> None:
        original(self, keys)
        self.kid = list(keys)[-1]

    return put(SealKeys, "__init__", init)


EDGE_FAULTS: Final[dict[str, tuple[str, Patch]]] = {
    # -- references to secrets
    "secret_left_in_an_error": ("secrets.error", put(stepwire.handler, "clean", _uncleaned)),
    "secret_left_in_a_backtrace": (
        "secrets.error",
        both(put(tracebacks, "redact", str), put(tracebacks, "clean", _uncleaned)),
    ),
    "secret_left_in_the_log": (
        "secrets.error",
        put(redaction._RecordFilter, "filter", lambda self, record: True),
    ),
    "secret_left_in_a_note": ("secrets.progress", put(stepwire.context, "shortened", _uncleaned)),
    "secret_left_in_an_output": ("secrets.output", edit(Edge, "close", "if opened.values and", "if False and")),
    "secrets_of_the_configuration_only": (
        "secrets.resolved",
        edit(secret_values, "resolved", "_replaced(_input_of(step), value_of)", "_input_of(step)"),
    ),
    "secrets_by_their_plain_key_only": (
        "secrets.resolved",
        put(secret_references, "may_hold", lambda raw: b"$secret" in raw),
    ),
    "secrets_in_results_of_other_steps": (
        "secrets.data",
        edit(
            secret_values,
            "resolved",
            "step = structs.replace(step, **changes)",
            "step = structs.replace(step, **changes, previous_results=_replaced(step.previous_results, value_of))",
        ),
    ),
    "secrets_of_the_unused_context": (
        "secrets.data",
        put(secret_values, "_input_of", lambda step: step.task_context),
    ),
    "secret_read_once": ("secrets.rotated", _kept_values()),
    "secret_without_its_name": ("secrets.unavailable", _not_opened(lambda message: "a secret is not available")),
    "missing_secret_is_final": ("secrets.unavailable", _not_opened(str, is_retryable=False)),
    "secret_files_of_any_mode": ("secrets.files", put(secret_files, "_check_file", lambda *_: None)),
    "secret_links_anywhere": (
        "secrets.files",
        edit(secret_files, "read_secret", 'if not path.startswith(root.rstrip("/") + "/"):', "if False:"),
    ),
    "reference_with_other_members": ("secrets.unavailable", put(secret_references, "faults", lambda value: ())),
    "references_reach_handlers_without_their_name": (
        "secrets.none",
        put(secret_values, "_no_source", lambda name: "invented"),
    ),
    # -- sealed payloads
    "output_not_sealed": (
        "sealed.output",
        _sealed(lambda result, sealed: result if result.status == "completed" else sealed),
    ),
    "wrong_aad": ("sealed.output", edit(sealing, "associated_data", "task.workflow,", "")),
    "aad_without_the_step": (
        "sealed.output",
        edit(sealing, "associated_data", "*([] if step is None else [step]),", ""),
    ),
    "key_not_derived": ("sealed.output", put(sealing, "derived", lambda key, purpose: key)),
    "random_nonce": ("sealed.output", both(put(sealing, "os", os), _random_nonce())),
    "last_key_seals": ("sealed.output", _last_key_seals()),
    "clear_left_out": ("sealed.output", put(sealing, "clear_part", lambda plaintext: {})),
    "results_left_sealed": (
        "sealed.results",
        edit(
            sealed_steps, "unsealed", "previous_results=Raw(_encode(outputs))", "previous_results=step.previous_results"
        ),
    ),
    "error_not_sealed": (
        "sealed.error",
        _sealed(lambda result, sealed: result if result.status != "completed" else sealed),
    ),
    "error_sealed_and_logged": (
        "sealed.error",
        edit(run_log, "raised", "if is_sealed:", "if False:"),
    ),
    "note_of_a_sealed_step": (
        "sealed.progress",
        edit(stepwire.context.Context, "progress", "note is None or self._is_sealed", "note is None"),
    ),
    "foreign_payload_opened": (
        "sealed.refused",
        edit(
            sealed_steps,
            "unsealed",
            "if sealed_payloads.is_sealed(output)",
            "if sealed_payloads.is_sealed(output) and False",
        ),
    ),
    "not_unsealed_is_final": ("sealed.refused", _not_opened(str, is_retryable=False)),
    "secret_in_a_sealed_output": ("sealed.secret", edit(Edge, "close", "if opened.values and", "if False and")),
    "sealed_step_run_without_keys": (
        "sealed.no_keys",
        edit(
            Edge, "open", "plain = step if task is None else", "plain = step if task is None or self._keys is None else"
        ),
    ),
    "key_file_of_any_mode": ("sealed.key_file", put(sealing, "_check_file", lambda *_: None)),
}
