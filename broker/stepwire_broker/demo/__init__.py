"""The demo's shop: its workflow, its handlers in several languages, its processes and its ledgers.

`stepwire demo` (cli/demo.py) runs the story and prints it; nothing here prints.
"""
