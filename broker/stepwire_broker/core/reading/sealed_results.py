"""Results of steps of a sealed workflow: only what is sealed is stored.

A worker without keys, a program or a level-0 handler may answer in the clear. Its output is not stored, and its step
fails; the text of its error is dropped.
"""

from typing import Final

from msgspec import structs
from stepwire_protocol import sealed_payloads
from stepwire_protocol.messages import NULL, ErrorDetail, Result

NOT_SEALED: Final = "output_not_sealed"


def checked(result: Result, *, at_most_once: bool) -> Result:
    """The result without any text or output that is not sealed."""
    if result.metadata is not None and result.metadata.stderr is not None:
        result = structs.replace(result, metadata=structs.replace(result.metadata, stderr=None))
    if result.status == "completed":
        fault = sealed_payloads.output_fault(bytes(result.output))
        return result if fault is None else _refused(result, fault, at_most_once)
    if result.error is None or sealed_payloads.is_sealed_error(result.error.message, result.error.backtrace):
        return result
    error = structs.replace(
        result.error,
        message=sealed_payloads.ERROR_NOT_SEALED,
        code=sealed_payloads.plain_word(result.error.code),
        category=sealed_payloads.plain_word(result.error.category),
        backtrace=None,
    )
    return structs.replace(result, error=error)


def _refused(result: Result, fault: str, at_most_once: bool) -> Result:
    """The failure of a step that ran, and whose output is not stored. The outcome of at_most_once is unknown."""
    text = f"the output was dropped: the workflow's payloads are sealed, and {fault}"
    if at_most_once:
        detail = ErrorDetail(message=f"{NOT_SEALED}: {text}", code="outcome_unknown")
    else:
        detail = ErrorDetail(message=text, code=NOT_SEALED, retryable=False)
    return structs.replace(result, status="error", output=NULL, error=detail)
