"""Where handlers run, never on the thread that owns the sockets.

`calls` is one call of a handler; `loop` runs async handlers, `threads` plain ones, `processes` those with
`process=True`; `by_kind` starts the runners that a worker's handlers need.
"""
