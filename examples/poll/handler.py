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

URL = os.environ.get("STEPWIRE_URL", "http://127.0.0.1:7410")
TOKEN = Path(os.environ.get("STEPWIRE_TOKEN_FILE", ".stepwire/token")).read_text().strip()
ME = {"worker": f"poll-py:{secrets.token_hex(8)}"}  # new for each process
AGAIN = (0, 429, 500, 503)  # no answer, or none yet: everything may be said twice
at = {"n": 0, "session": None}
HANDLERS = {
    "order.price": lambda step: {"cents": sum(i["cents"] * i["count"] for i in step["task_context"]["items"])},
    "order.charge": lambda step: {"charged": step["previous_results"]["price"]["cents"], "by": "python"},
}


def call(what, **said):
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{URL}/v1/worker/{what}", json.dumps(ME | said).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=40) as answer:
            return 200, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, {}
    except (OSError, ValueError, http.client.HTTPException):
        return 0, {}


def call_until_answered(what, **said):
    while (answer := call(what, **said))[0] in AGAIN:
        time.sleep(1)
    return answer[0]


def lease(**said):
    """`holding` is the whole truth: what is not in it is given back. So `n` counts up, whatever becomes of the call."""
    at["n"] += 1
    status, answer = call("lease", **at, handlers=list(HANDLERS), slots=1, lang="python", pid=os.getpid(), **said)
    at["session"] = answer.get("session", at["session"])
    return status, answer


def heartbeat(step, state, since):
    held = [[step["step_id"], step["delivery"], state, int((time.monotonic() - since) * 1000)]]
    status, answer = call("heartbeat", session=at["session"], holding=held)
    if status == 409 and state == "running":  # the broker is new, or thought us dead: it hears of what still runs here
        lease(holding=held, free=0, wait_ms=0)
    return status == 200 and not answer["cancel"]  # a handler that can stop would be told to here


def keep_alive(step, over, every_s):
    since = time.monotonic()
    while not over.wait(every_s):
        heartbeat(step, "running", since)


def outcome_of(step):
    try:
        output = HANDLERS[step["handler_class"]](step)
        json.dumps(output, allow_nan=False)  # an output that is no JSON is the handler's failure
        return {"status": "completed", "output": output}
    except Exception as error:
        return {"status": "failed", "error": {"message": f"{type(error).__name__}: {error}"}}


def run(step, answer):
    """Nothing starts before the broker has said that the step is still ours; at_most_once not without its go."""
    if not heartbeat(step, "queued", time.monotonic()):
        return
    items = [[step["step_id"], step["delivery"]]]
    asks = step["delivery_mode"] == "at_most_once"
    if asks and call_until_answered("start", session=at["session"], items=items) != 200:
        return
    over = threading.Event()
    beats = threading.Thread(target=keep_alive, args=(step, over, answer["heartbeat_ms"] / 1000))
    beats.start()
    result = {"step_id": step["step_id"], "delivery": step["delivery"], **outcome_of(step)}
    same = {key: answer[key] for key in ("session", "deployment", "batch_id")}
    call_until_answered("results", **same, results=[result])  # 409: of no use any more
    over.set()
    beats.join()


signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
try:
    while True:
        status, answer = lease()
        if status != 200:
            time.sleep(1)
        for step in answer.get("steps", ()):
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # what has begun is ended
            run(step, answer)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
finally:
    if at["session"]:
        call("bye", n=at["n"] + 1, session=at["session"])
