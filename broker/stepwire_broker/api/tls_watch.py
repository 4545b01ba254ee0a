"""Applies replaced files of `http.tls` to a running broker."""

import asyncio
import time
from typing import Final

import structlog

from stepwire_broker.timestamps import rfc3339

from .tls_files import CertificateReading, Certificates, TlsError

CHECK_S: Final = 60.0
DAY_MS: Final = 24 * 3600 * 1000
EXPIRES_SOON_MS: Final = 14 * DAY_MS
WARN_EVERY_S: Final = 24 * 3600.0

log: Final = structlog.get_logger("stepwire.api")


async def watch(certificates: Certificates) -> None:
    """Until cancelled: read changed files again, in a thread, and warn daily of a certificate that expires soon."""
    warned_s = -WARN_EVERY_S
    while True:
        if ends_soon(certificates.current, _now_ms()) and time.monotonic() - warned_s >= WARN_EVERY_S:
            warned_s = time.monotonic()
            log.warning("certificate_expires", at=rfc3339(certificates.current.expires_ms))
        await asyncio.sleep(CHECK_S)
        try:
            if await asyncio.to_thread(certificates.check):
                warned_s = -WARN_EVERY_S
                log.info("certificate_changed", expires=rfc3339(certificates.current.expires_ms))
        except TlsError as error:
            log.error("certificate_refused", error=str(error))


def ends_soon(reading: CertificateReading, now_ms: int) -> bool:
    return reading.expires_ms - now_ms <= EXPIRES_SOON_MS


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
