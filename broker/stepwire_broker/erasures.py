"""Erasures around the core: what is recorded outside the database, and the search that ends a run of erasures.

An erasure is answered when the payloads are gone from the rows and the hash of the task is synced into
`security.erasures_file`. Bytes of replaced rows may still be in the write-ahead log and in unused parts of the file.
`finish` moves the log into the file, searches both for words of the erased payloads, and rewrites the file if it finds
any.
"""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog
from msgspec import Struct

from .core.answers.answers import Answer
from .core.definitions.settings import SecuritySettings
from .core.intake.erasure import ErasedTask
from .erasures_file import ErasuresFile
from .security_key import ensure
from .store import Store, needles
from .store.sqlite import remains

log = structlog.get_logger("stepwire.broker")

WORDS_MAX: Final = 20_000
KEYS_MAX: Final = 64
SEARCH_S_MAX: Final = 60.0
CHECKPOINT_TRIES: Final = 40
CHECKPOINT_PAUSE_S: Final = 0.25
COMPACT_BYTES_MAX: Final = 256 * 1024 * 1024  # the writer rewrites a file of this size in a few seconds


class Finished(Struct, frozen=True, kw_only=True):
    """The end of a run of erasures. `is_clean`: the search was complete and found nothing. `in_rows`: words that tasks
    which are not erased hold too. `skipped`: values without a word long enough to search for. `unsearched`: tasks that
    an earlier process erased, whose words are unknown now. `compacted`: the file was rewritten, so that its unused
    parts hold nothing. `log_is_empty`: the whole log is in the file."""

    is_clean: bool
    tasks: int
    words: int
    skipped: int
    bytes: int
    places: int
    in_rows: int
    unsearched: int
    compacted: bool
    log_is_empty: bool
    hint: str | None


class Erasures:
    """The erasures of one broker. Used on the loop; its file and its search do not block the loop."""

    def __init__(self, settings: SecuritySettings, store: Store, path: Path | None) -> None:
        self._settings = settings
        self._store = store
        self._path = path  # of the database file; None: the database has none
        self._file: ErasuresFile | None = None
        self._words: set[bytes] = set()
        self._keys: set[bytes] = set()
        self._skipped = 0
        self._tasks: set[int] = set()
        self._lock = asyncio.Lock()

    async def erase(self, task_id: int, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """Let the core erase a task, and record the erasure outside the database. `ask` sends the command. Raises
        SecurityKeyError before anything is erased if the key or the file cannot be used."""
        await self._opened()
        found = await asyncio.wrap_future(self._store.read(needles.of_task, task_id))
        answer = await ask()
        if isinstance(answer, ErasedTask):
            await self._record([(answer.uid, answer.erased_ms)])
            if found is not None:
                self._remember(found)
                self._tasks.add(task_id)
        return answer

    async def finish(self) -> Finished:
        """Search the file for what was erased since the last call, and record erasures that an interruption left
        unrecorded. Raises SecurityKeyError."""
        await self._opened()
        await self._record(await asyncio.wrap_future(self._store.scan(_erased_tasks)))
        words, keys, skipped, tasks = self._words, self._keys, self._skipped, self._tasks
        self._words, self._keys, self._skipped, self._tasks = set(), set(), 0, set()
        noted = await asyncio.wrap_future(self._store.clean(lambda file: file.unverified()))
        unsearched = max(0, noted - len(tasks))
        is_empty = await self._checkpoint()
        found = await self._search(words, keys)
        is_small = self._path is not None and self._path.stat().st_size <= COMPACT_BYTES_MAX
        compacted = False
        if is_small and (found.places or unsearched):
            await asyncio.wrap_future(self._store.clean(lambda file: file.compact()))
            compacted = True
            is_empty = await self._checkpoint()
            found = await self._search(words, keys)
        is_clean = is_empty and found.is_complete and not found.places and (compacted or not unsearched)
        if is_clean:
            await asyncio.wrap_future(self._store.clean(lambda file: file.are_verified(noted)))
        else:
            self._words |= words
            self._keys |= keys
            self._skipped += skipped
            self._tasks |= tasks
        finished = Finished(
            is_clean=is_clean,
            tasks=len(tasks),
            words=len(words) + len(keys),
            skipped=skipped,
            bytes=found.bytes,
            places=found.places,
            in_rows=found.in_rows,
            unsearched=0 if compacted else unsearched,
            compacted=compacted,
            log_is_empty=is_empty,
            hint=None if is_clean else _hint(found, is_log_empty=is_empty),
        )
        log.info(
            "erasures_finished",
            tasks=finished.tasks,
            words=finished.words,
            bytes=finished.bytes,
            places=finished.places,
            compacted=compacted,
            is_clean=is_clean,
        )
        return finished

    async def _opened(self) -> ErasuresFile:
        async with self._lock:
            if self._file is None:
                self._file = await asyncio.to_thread(self._open)
            return self._file

    def _open(self) -> ErasuresFile:
        return ErasuresFile(Path(self._settings.erasures_file), ensure(self._settings))

    async def _record(self, erased: list[tuple[str, int]]) -> None:
        file = await self._opened()
        async with self._lock:
            await asyncio.to_thread(file.add, erased)

    def _remember(self, found: needles.Needles) -> None:
        room = WORDS_MAX - len(self._words)
        self._words.update(sorted(found.words)[:room])
        self._keys.update(sorted(found.keys)[: KEYS_MAX - len(self._keys)])
        self._skipped += found.skipped + max(0, len(found.words) - room)

    async def _checkpoint(self) -> bool:
        """Move the log into the file. A reader with an old snapshot, such as a backup, delays this."""
        for _ in range(CHECKPOINT_TRIES):
            if await asyncio.wrap_future(self._store.clean(lambda file: file.checkpoint())):
                return True
            await asyncio.sleep(CHECKPOINT_PAUSE_S)
        return False

    async def _search(self, words: set[bytes], keys: set[bytes]) -> remains.Found:
        if self._path is None or not (words or keys):
            return remains.Found(0, 0, 0, is_complete=True)
        order = remains.SearchOrder(str(self._path), sorted(words), sorted(keys), SEARCH_S_MAX)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", remains.__name__),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LANG") if name in os.environ},
        )
        try:
            async with asyncio.timeout(2 * SEARCH_S_MAX):
                output, _ = await process.communicate(msgspec.json.encode(order))
            return msgspec.json.decode(output, type=remains.Found)
        except (TimeoutError, msgspec.DecodeError):
            return remains.Found(0, 0, 0, is_complete=False)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


def _hint(found: remains.Found, *, is_log_empty: bool) -> str:
    if not is_log_empty:
        return "a reader, such as a backup, keeps the write-ahead log from being emptied: run the command again later"
    if not found.is_complete:
        return "the search was not finished in its time: stop the broker and run `stepwire db prune --compact`"
    return "stop the broker and run `stepwire db prune --compact`, which rewrites the file"


def _erased_tasks(queries: Any) -> list[tuple[str, int]]:
    return list(queries.erased_tasks())
