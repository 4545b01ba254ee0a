"""Runners: the loop, threads and processes that run handlers. The thread that owns the sockets runs none.

`run_slots` keeps to the worker's slots and to the concurrency of each handler. `calls` is one call of a handler. `loop`
runs async handlers, `threads` plain handlers, `processes` handlers with `process=True`. `by_kind` starts the runners
that a worker's handlers need.
"""
