"""A worker over HTTP in plain Python: no ZeroMQ, no SDK. One step at a time."""

import http.client
import json
import os
import secrets
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

URLS = os.environ.get("STEPWIRE_URL", "http://127.0.0.1:7410").split(",")  # one of each broker
TOKEN = Path(os.environ.get("STEPWIRE_TOKEN_FILE", ".stepwire/token")).read_text().strip()
ME = {"worker": f"poll-py:{secrets.token_hex(8)}"}  # new for each process
AGAIN = (
    0,
    421,
    429,
    500,
    503,
)  # no answer, or a temporary refusal: send the call again, because duplicates are harmless
at = {"n": 0, "session": None}
HANDLERS = {
    "order.price": lambda step: {"cents": sum(i["cents"] * i["count"] for i in step["task_context"]["items"])},
    "order.charge": lambda step: {"charged": step["previous_results"]["price"]["cents"], "by": "python"},
}


def call(name, **members):
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{URLS[0]}/v1/worker/{name}", json.dumps(ME | members).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=40) as answer:
            return 200, json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code in (421, 503):  # 421: the session is with another broker, which lives at this URL
            go_on_at(json.load(error).get("url"))
        return error.code, {}
    except (OSError, ValueError, http.client.HTTPException):
        go_on_at(None)
        return 0, {}


def go_on_at(url):
    """Send the next call to this URL, otherwise to the next one of the list."""
    first, *rest = URLS
    URLS[:] = [url, *(each for each in URLS if each != url)] if url else [*rest, first]


def call_until_answered(name, **members):
    while (answer := call(name, **members))[0] in AGAIN:
        time.sleep(1)
    return answer[0]


def lease(**members):
    """Request steps. Steps missing from `holding` are given back, so `n` must increase even if the call fails."""
    at["n"] += 1
    status, answer = call("lease", **at, handlers=list(HANDLERS), slots=1, lang="python", pid=os.getpid(), **members)
    at["session"] = answer.get("session", at["session"])
    return status, answer


def heartbeat(step, state, since):
    held = [[step["step_id"], step["delivery"], state, int((time.monotonic() - since) * 1000)]]
    status, answer = call("heartbeat", session=at["session"], holding=held)
    if status == 409 and state == "running":  # the broker restarted, or declared this worker dead
        lease(holding=held, free=0, wait_ms=0)
    return status == 200 and not answer["cancel"]  # a handler that can be interrupted would be stopped here


def keep_alive(step, over, every_s):
    since = time.monotonic()
    while not over.wait(every_s):
        heartbeat(step, "running", since)


def outcome_of(step):
    try:
        output = HANDLERS[step["handler_class"]](step)
        json.dumps(output, allow_nan=False)  # an output that is not JSON is the handler's failure
        return {"status": "completed", "output": output}
    except Exception as error:
        return {"status": "failed", "error": {"message": f"{type(error).__name__}: {error}"}}


def run(step, answer):
    """Run a step after the broker has confirmed that this worker has it; an at_most_once step also needs a `go`."""
    if not heartbeat(step, "queued", time.monotonic()):
        return
    items = [[step["step_id"], step["delivery"]]]
    needs_go = step["delivery_mode"] == "at_most_once"
    if needs_go and call_until_answered("start", session=at["session"], items=items) != 200:
        return
    over = threading.Event()
    beats = threading.Thread(target=keep_alive, args=(step, over, answer["heartbeat_ms"] / 1000))
    beats.start()
    result = {"step_id": step["step_id"], "delivery": step["delivery"], **outcome_of(step)}
    same = {key: answer[key] for key in ("session", "deployment", "batch_id")}
    call_until_answered("results", **same, results=[result])  # 409: the result is no longer needed
    over.set()
    beats.join()


signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
try:
    while True:
        status, answer = lease()
        if status != 200:
            time.sleep(1)
        for step in answer.get("steps", ()):
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # finish a step that has begun
            run(step, answer)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
finally:
    if at["session"]:
        call("bye", n=at["n"] + 1, session=at["session"])
