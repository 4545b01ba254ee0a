"""Applies changes of the token files to a running broker, also to requests that are open."""

import asyncio
from typing import Final

import structlog

from stepwire_broker.core.answers.via import Via

from .audit_notes import AuditNotes
from .jwt_tokens import JwtTokens
from .shares import Shares
from .token import TokenError, Tokens

CHECK_S: Final = 2.0

log: Final = structlog.get_logger("stepwire.api")


async def watch(tokens: Tokens, shares: Shares, notes: AuditNotes, jwt: JwtTokens | None = None) -> None:
    """Until cancelled: read changed token files again, and end the waits and streams of tokens that are not valid."""
    while True:
        await asyncio.sleep(CHECK_S)
        try:
            if tokens.refresh():
                log.info("tokens_changed")
        except TokenError as error:
            log.warning("tokens_refused", error=str(error))
        try:
            tokens.uses.write()
        except OSError as error:
            log.warning("token_uses_unwritten", error=str(error))
        if changes := tokens.take_changes():
            notes.tokens_changed(changes)
        shares.end_revoked(
            lambda grant: (
                tokens.is_valid(grant) if grant.via is not Via.JWT else jwt is not None and jwt.is_valid(grant)
            )
        )
