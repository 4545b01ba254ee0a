"""A small HTTP client of the broker: submit tasks, look at them, operate them. Standard library and msgspec only."""

import os
import random
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

import msgspec
from msgspec import Struct

from .connection import Connection
from .errors import ConfigurationError

if TYPE_CHECKING:
    from .workflow import Workflow

URL_DEFAULT: Final = "http://127.0.0.1:7410"
TOKEN_FILE_DEFAULT: Final = ".stepwire/token"
TIMEOUT_S: Final = 30.0
TRIES_MAX: Final = 3
BACKOFF_BASE_S: Final = 0.1
RECONNECT_S: Final = 60.0  # how long a client that follows waits for a broker that has gone away
BACKOFF_MAX_S: Final = 20.0
WAIT_ROUND_MS: Final = 20_000  # one long poll; a wait is as many as it takes
TERMINAL: Final = frozenset({"completed", "failed", "cancelled"})
_RETRIED: Final = frozenset({429, 503})

_encode: Final = msgspec.json.Encoder().encode


class ClientError(Exception):
    """The broker said no, or could not be asked. `status` is 0 when there was no answer.

    `code` and `hint` are the broker's own words for what is wrong and what to do next; `next` is the hint for programs.
    """

    def __init__(
        self, message: str, *, status: int = 0, code: str = "", hint: str = "", next: dict[str, Any] | None = None
    ) -> None:
        super().__init__(f"{message} {hint}".strip())
        self.message = message
        self.status = status
        self.code = code
        self.hint = hint
        self.next = next


class Unreachable(ClientError):
    """No answer. Unless the call was safe to repeat, it may have been carried out all the same."""


class NotFound(ClientError):
    pass


class Denied(ClientError):
    pass


class WrongState(ClientError):
    """409: the task or step is not in a state that allows it, or the key or version stands for something else."""


class Overloaded(ClientError):
    """429 or 503, also after the retries: nothing was accepted."""


class WaitTimeout(ClientError):
    """The task still runs, and goes on."""

    def __init__(self, task_id: int, state: str) -> None:
        super().__init__(f"task {task_id} is still {state}", code="still_running")
        self.task_id = task_id


class Submitted(NamedTuple):
    task_id: int
    created: bool  # False: the same key had been submitted before, and this is that task
    key: str


class Client:
    """One keep-alive connection, safe to share between threads (calls then take turns).

    The address is `url`, else $STEPWIRE_URL, else http://127.0.0.1:7410. The token is `token`, else what `token_file`
    holds, else $STEPWIRE_TOKEN, else what $STEPWIRE_TOKEN_FILE holds, else `.stepwire/token` here.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        token: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        url = url or os.environ.get("STEPWIRE_URL") or URL_DEFAULT
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError(f"url {url!r}: it needs a form like {URL_DEFAULT}")
        self._host, self._port = parts.hostname, parts.port
        self._is_tls = parts.scheme == "https"
        self._prefix = parts.path.rstrip("/")
        self._url = url
        self._token = _find_token(token, token_file)
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._connection: Connection | None = None

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    # -- tasks --------------------------------------------------------------------------------------------------------

    def submit(
        self,
        workflow: str,
        context: Any = None,
        *,
        key: str | None = None,
        namespace: str | None = None,
        version: str | None = None,
        priority: int | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> Submitted:
        """Start a task. Without a `key` one is made up, so that a lost answer never makes two tasks of this call."""
        key = key or secrets.token_hex(16)
        task = _task(workflow, context, key, namespace, version, priority, labels)
        answer = self._call("POST", "/v1/tasks", task, is_safe=True)
        return Submitted(answer["task_id"], answer.get("created", True), key)

    def run(
        self,
        workflow: str,
        context: Any = None,
        *,
        timeout: float | None = None,
        key: str | None = None,
        namespace: str | None = None,
        version: str | None = None,
        priority: int | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """`submit` and `wait`, in one request as long as the task does not take long."""
        until_s = None if timeout is None else time.monotonic() + timeout
        task = _task(workflow, context, key or secrets.token_hex(16), namespace, version, priority, labels)
        answer = self._call("POST", f"/v1/tasks?wait_ms={self._round_ms(until_s)}", task, is_safe=True)
        return self._until_settled(answer["task_id"], answer["task"], until_s)

    def submit_many(self, tasks: Sequence[Mapping[str, Any]]) -> list[int]:
        """Start all of them or none. Each is a mapping of `submit`'s arguments: workflow, context, key, …"""
        documents = [_task_of(task) for task in tasks]
        answer = self._call("POST", "/v1/tasks/batch", {"tasks": documents}, is_safe=True)
        return list(answer["task_ids"])

    def task(self, task_id: int) -> dict[str, Any]:
        return self._get(f"/v1/tasks/{_id(task_id)}")

    def tasks(self, **filters: Any) -> dict[str, Any]:
        """A page of tasks. Filters: state, workflow, label, since, limit, cursor."""
        return self._get("/v1/tasks", filters)

    def wait(self, task_id: int, timeout: float | None = None) -> dict[str, Any]:
        """The task once it is completed, failed or cancelled, or waits on a held step (`attention`).

        Raises WaitTimeout when `timeout` seconds have passed before that.
        """
        until_s = None if timeout is None else time.monotonic() + timeout
        return self._until_settled(task_id, self._look(task_id, until_s), until_s)

    def cancel(self, task_id: int, reason: str = "") -> dict[str, Any]:
        return self._operate(task_id, "cancel", {"reason": reason}, is_safe=True)

    def pause(self, task_id: int) -> dict[str, Any]:
        return self._operate(task_id, "pause", {}, is_safe=True)

    def resume(self, task_id: int) -> dict[str, Any]:
        return self._operate(task_id, "resume", {}, is_safe=True)

    def retry(
        self,
        task_id: int,
        *,
        from_step: str | None = None,
        again: bool = False,
        new_key: bool = False,
        reason: str = "",
    ) -> dict[str, Any]:
        """Run failed, cancelled and skipped steps again; with `from_step`, that one and all after it."""
        body = {"from_step": from_step, "again": again, "new_key": new_key, "reason": reason}
        return self._operate(task_id, "retry", {name: value for name, value in body.items() if value})

    # -- steps, workflows ---------------------------------------------------------------------------------------------

    def steps(self, **filters: Any) -> dict[str, Any]:
        """A page of steps. Filters: state, handler_class, limit, cursor."""
        return self._get("/v1/steps", filters)

    def step(self, step_id: int) -> dict[str, Any]:
        return self._get(f"/v1/steps/{_id(step_id)}")

    def why(self, task_id: int, step: str | None = None) -> dict[str, Any]:
        """Why the task, or its step of this name, is not running: `message` is one sentence, `code` its kind."""
        of_step = "" if step is None else f"/steps/{quote(step, safe='')}"
        return self._get(f"/v1/tasks/{_id(task_id)}{of_step}/why")

    def resolve(
        self,
        step_id: int,
        outcome: Literal["completed", "failed", "retry"],
        *,
        reason: str,
        output: Any = None,
        message: str | None = None,
        new_key: bool = False,
    ) -> dict[str, Any]:
        """Say what became of a held step. `reason` is kept with it."""
        body: dict[str, Any] = {"outcome": outcome, "reason": reason}
        if output is not None:
            body["output"] = output
        if message is not None:
            body["message"] = message
        if new_key:
            body["new_key"] = True
        answer: dict[str, Any] = self._call("POST", f"/v1/steps/{_id(step_id)}/resolve", body, is_safe=False)
        return answer

    def apply_workflow(self, document: "Mapping[str, Any] | Workflow") -> dict[str, Any]:
        """Store a workflow: what its file would say, or one that is written in Python.

        The same version with the same content again is fine; with other content it is refused."""
        if not isinstance(document, Mapping):
            document = document.document()
        answer: dict[str, Any] = self._call("POST", "/v1/workflows", document, is_safe=True)
        return answer

    def apply_workflow_text(self, text: bytes, content_type: str, *, activate: bool = True) -> dict[str, Any]:
        """Store a workflow as it is written in a file: `application/yaml` or `application/json`."""
        path = "/v1/workflows" if activate else "/v1/workflows?activate=false"
        answer: dict[str, Any] = self._call("POST", path, text, is_safe=True, content_type=content_type)
        return answer

    def workflows(self) -> dict[str, Any]:
        return self._get("/v1/workflows")

    def workflow(self, name: str, *, namespace: str | None = None, version: str | None = None) -> dict[str, Any]:
        """One workflow with its document: the active version, or the one that is named."""
        return self._get(f"/v1/workflows/{quote(name, safe='')}", {"namespace": namespace, "version": version})

    def activate_workflow(self, name: str, version: str, *, namespace: str | None = None) -> dict[str, Any]:
        """Tasks that name no version go with this one from now on."""
        query = urlencode({"version": version, **({} if namespace is None else {"namespace": namespace})})
        path = f"/v1/workflows/{quote(name, safe='')}/activate?{query}"
        answer: dict[str, Any] = self._call("POST", path, {}, is_safe=True)
        return answer

    def workers(self) -> dict[str, Any]:
        return self._get("/v1/workers")

    def drain_worker(self, worker: str, *, quit: bool = False) -> dict[str, Any]:
        """Give this worker nothing new; with `quit`, it ends once it holds nothing."""
        path = f"/v1/workers/{quote(worker, safe='')}/drain"
        answer: dict[str, Any] = self._call("POST", path, {"quit": quit}, is_safe=True)
        return answer

    def executors(self) -> dict[str, Any]:
        return self._get("/v1/executors")

    def executor(self, key: str) -> dict[str, Any]:
        return self._get(f"/v1/executors/{quote(key, safe='')}")

    def route(self, path: str, worker_selector: str | None = None) -> dict[str, Any]:
        """Where a step of this path (`namespace::workflow::step`) goes, and which rule says so."""
        members = {"path": path} | ({} if worker_selector is None else {"worker_selector": worker_selector})
        return self._get(f"/v1/route?{urlencode(members)}")

    def rules(self) -> dict[str, Any]:
        return self._get("/v1/rules")

    def shadows(self) -> dict[str, Any]:
        """How the shadows of steps compared with the steps."""
        return self._get("/v1/shadows")

    def set_rule(self, rule: dict[str, Any]) -> dict[str, Any]:
        """Route by this from now on, and after restarts; a rule with the same `match` is replaced."""
        answer: dict[str, Any] = self._call("POST", "/v1/rules", rule, is_safe=True)
        return answer

    def remove_rule(self, match: str) -> dict[str, Any]:
        """Forget what was set at run time for this `match`."""
        answer: dict[str, Any] = self._call("POST", "/v1/rules/remove", {"match": match}, is_safe=True)
        return answer

    def pause_executor(self, key: str) -> dict[str, Any]:
        """Hand it nothing new until it is resumed, or the broker restarts."""
        answer: dict[str, Any] = self._call("POST", f"/v1/executors/{quote(key, safe='')}/pause", {}, is_safe=True)
        return answer

    def resume_executor(self, key: str) -> dict[str, Any]:
        answer: dict[str, Any] = self._call("POST", f"/v1/executors/{quote(key, safe='')}/resume", {}, is_safe=True)
        return answer

    def breakers(self) -> dict[str, Any]:
        """Handlers that failed lately, and what is handed out of them."""
        return self._get("/v1/breakers")

    def set_breaker(self, handler_class: str, state: str, *, reason: str = "") -> dict[str, Any]:
        """`open`: hand out nothing of this handler; `closed`: everything; `auto`: its breaker decides again."""
        path = f"/v1/breakers/{quote(handler_class, safe='')}"
        answer: dict[str, Any] = self._call("POST", path, {"state": state, "reason": reason}, is_safe=True)
        return answer

    def is_alive(self) -> bool:
        """Does a broker answer at this address at all? Asked once, and without a token."""
        try:
            return self._ask("GET", "/livez", None, is_safe=True).status == 200
        except OSError:
            return False

    def prune(self) -> dict[str, Any]:
        """Have what is over, and older than it is kept for, removed now: `{"now_ms", "completed_ms", "failed_ms"}` say
        what that is."""
        document: dict[str, Any] = self._call("POST", "/v1/database/prune", None, is_safe=True)
        return document

    def readiness(self) -> dict[str, Any]:
        """`{"ready": true, "reasons": []}`, or why the broker accepts no work now. Asked once."""
        try:
            answer = self._ask("GET", "/readyz", None, is_safe=True)
        except OSError as error:
            raise self._unreachable(error) from error
        if answer.status not in (200, 503):
            raise _problem(answer)
        document: dict[str, Any] = msgspec.json.decode(answer.body)
        return document

    def tap(self, topic: str | None = None, task: int | None = None) -> Iterator[dict[str, Any]]:
        """The messages of the bus as they pass, for ever; `{"dropped": n}` says that n were too many to be shown."""
        query = urlencode({name: value for name, value in (("topic", topic), ("task", task)) if value is not None})
        try:
            with closing(self._connect()) as connection:
                status, lines = connection.follow(
                    "GET", f"{self._prefix}/v1/tap?{query}", self._headers("text/event-stream")
                )
                if status >= 400:
                    raise _problem(_Answer(status, b"".join(lines), 0.0))
                for line in lines:
                    if line.startswith(b"data: "):
                        yield msgspec.json.decode(line[6:])
        except OSError as error:
            raise self._unreachable(error) from error

    def task_events(self, task_id: int, **page: Any) -> dict[str, Any]:
        """A page of what happened to a task, from its beginning: `events` and `next_cursor`. Page: limit, cursor."""
        return self._get(f"/v1/tasks/{_id(task_id)}/events", page)

    def events(
        self,
        *,
        after: str | None = None,
        task_id: int | None = None,
        workflow: str | None = None,
        namespace: str | None = None,
        kinds: Sequence[str] | None = None,
    ) -> Iterator[dict[str, Any]]:
        """What happens to tasks and steps, as it is committed, for ever. `after` is the `id` of the last event one has,
        or "0" for the first there is; without it, it begins now. A broker that goes away is waited for: nothing is
        missed and nothing comes twice. Raises Unreachable when it stays away for a minute."""
        asked = {"task_id": task_id, "workflow": workflow, "namespace": namespace, "after": after}
        if kinds is not None:
            asked["kind"] = ",".join(kinds)
        path = f"{self._prefix}/v1/events?" + urlencode({k: v for k, v in asked.items() if v is not None})
        last_id: str | None = None
        heard_s = time.monotonic()
        while True:
            headers = self._headers("text/event-stream") | ({"Last-Event-ID": last_id} if last_id else {})
            try:
                with closing(self._connect()) as connection:
                    status, lines = connection.follow("GET", path, headers)
                    if status >= 400 and not (last_id and status in _RETRIED):
                        raise _problem(_Answer(status, b"".join(lines), 0.0))
                    for line in lines if status < 400 else ():
                        heard_s = time.monotonic()
                        if line.startswith(b"id: "):
                            told_id = line[4:].strip().decode()
                        elif line.startswith(b"data: ") and line.endswith(b"\n"):  # whole: it may break off anywhere
                            last_id = told_id
                            yield msgspec.json.decode(line[6:])
                        elif line == b"\n":
                            last_id = told_id
            except OSError as error:
                if last_id is None or time.monotonic() - heard_s > RECONNECT_S:
                    raise self._unreachable(error) from error
            time.sleep(random.uniform(0, BACKOFF_BASE_S * 4))

    # -- one call -----------------------------------------------------------------------------------------------------

    def _get(self, path: str, query: Mapping[str, Any] | None = None) -> dict[str, Any]:
        if query:
            path += "?" + urlencode({name: value for name, value in query.items() if value is not None})
        answer: dict[str, Any] = self._call("GET", path, None, is_safe=True)
        return answer

    def _until_settled(self, task_id: int, task: dict[str, Any], until_s: float | None) -> dict[str, Any]:
        while not (task["state"] in TERMINAL or task.get("attention")):
            if until_s is not None and time.monotonic() >= until_s:
                raise WaitTimeout(task_id, task["state"])
            task = self._look(task_id, until_s)
        return task

    def _look(self, task_id: int, until_s: float | None) -> dict[str, Any]:
        return self._get(f"/v1/tasks/{_id(task_id)}", {"wait_ms": self._round_ms(until_s)})

    def _round_ms(self, until_s: float | None) -> int:
        """How long to wait in one request: it ends well before the connection calls it silence."""
        round_ms = min(WAIT_ROUND_MS, int(self._timeout_s * 500))
        return round_ms if until_s is None else max(0, min(round_ms, int((until_s - time.monotonic()) * 1000)))

    def _operate(self, task_id: int, verb: str, body: Mapping[str, Any], *, is_safe: bool = False) -> dict[str, Any]:
        answer: dict[str, Any] = self._call("POST", f"/v1/tasks/{_id(task_id)}/{verb}", body, is_safe=is_safe)
        return answer

    def _call(self, method: str, path: str, body: Any, *, is_safe: bool, content_type: str = "application/json") -> Any:
        """Ask, and ask again where that cannot do a thing twice. A refusal for load has done nothing, so it is safe."""
        data = body if body is None or isinstance(body, bytes) else _encode(body)
        tries = 0
        while True:
            tries += 1
            wait_s = random.uniform(0, min(BACKOFF_MAX_S, BACKOFF_BASE_S * 2**tries))
            try:
                answer = self._ask(method, path, data, is_safe, content_type)
            except OSError as error:
                if tries < TRIES_MAX and is_safe:
                    time.sleep(wait_s)
                    continue
                raise self._unreachable(error) from error
            if answer.status in _RETRIED and tries < TRIES_MAX:
                time.sleep(max(wait_s, min(BACKOFF_MAX_S, answer.retry_after_s)))
                continue
            if answer.status >= 400:
                raise _problem(answer)
            return msgspec.json.decode(answer.body) if answer.body else {}

    def _ask(
        self, method: str, path: str, data: bytes | None, is_safe: bool, content_type: str = "application/json"
    ) -> "_Answer":
        headers = {"Accept": "application/json"}
        if data is not None:
            headers["Content-Type"] = content_type
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        with self._lock:
            if not is_safe:
                self._disconnect()  # an idle connection may have been closed by now: then we would not know
            if self._connection is None:
                self._connection = self._connect()
            try:
                answer = self._connection.ask(method, self._prefix + path, headers, data)
            except BaseException:
                self._disconnect()  # half an answer may be on its way: this connection is of no use any more
                raise
            if not self._connection.is_reusable:
                self._disconnect()
        return _Answer(answer.status, answer.body, _seconds(answer.headers.get("retry-after")))

    def _headers(self, accept: str) -> dict[str, str]:
        headers = {"Accept": accept}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        return headers

    def _unreachable(self, error: Exception) -> Unreachable:
        return Unreachable(
            f"no answer from {self._url}: {type(error).__name__}: {error}.",
            code="unreachable",
            hint="Is the broker running (stepwire serve)?",
        )

    def _connect(self) -> Connection:
        return Connection(self._host, self._port, is_tls=self._is_tls, timeout_s=self._timeout_s)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _Answer(NamedTuple):
    status: int
    body: bytes
    retry_after_s: float


class _Problem(Struct):
    """application/problem+json, as far as it is needed."""

    title: str = ""
    detail: str = ""
    code: str = ""
    hint: str = ""
    next: dict[str, Any] | None = None


_ERROR_OF: Final[dict[int, type[ClientError]]] = {
    401: Denied,
    403: Denied,
    404: NotFound,
    409: WrongState,
    429: Overloaded,
    503: Overloaded,
}


def _problem(answer: _Answer) -> ClientError:
    try:
        said = msgspec.json.decode(answer.body, type=_Problem)
    except (msgspec.DecodeError, UnicodeDecodeError):
        said = _Problem()
    message = said.detail or said.title or f"HTTP {answer.status}"
    error = _ERROR_OF.get(answer.status, ClientError)
    return error(message, status=answer.status, code=said.code, hint=said.hint, next=said.next)


def _find_token(token: str | None, token_file: str | os.PathLike[str] | None) -> str | None:
    if token is not None:
        return token
    if token_file is None:
        if os.environ.get("STEPWIRE_TOKEN"):
            return os.environ["STEPWIRE_TOKEN"]
        token_file = os.environ.get("STEPWIRE_TOKEN_FILE")
    if not token_file:
        if not Path(TOKEN_FILE_DEFAULT).exists():
            return None
        token_file = TOKEN_FILE_DEFAULT
    try:
        return Path(token_file).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the token file {os.fspath(token_file)!r} cannot be read: {error}") from None


def _task_of(task: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return _task(**{**task, "key": task.get("key") or secrets.token_hex(16)})
    except TypeError as error:
        raise ConfigurationError(f"submit_many: {error}") from None


def _task(
    workflow: str,
    context: Any = None,
    key: str | None = None,
    namespace: str | None = None,
    version: str | None = None,
    priority: int | None = None,
    labels: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    document = {
        "workflow": workflow,
        "namespace": namespace,
        "version": version,
        "context": {} if context is None else context,
        "idempotency_key": key,
        "priority": priority,
        "labels": labels,
    }
    return {name: value for name, value in document.items() if value is not None}


def _id(number: int) -> str:
    return quote(str(int(number)))


def _seconds(text: str | None) -> float:
    """Retry-After, in its form as a number of seconds."""
    return float(text) if text is not None and text.isdigit() and len(text) < 6 else 0.0
