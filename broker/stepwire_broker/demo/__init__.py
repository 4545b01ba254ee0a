"""The demo's shop: its workflow, its handlers in several languages, its processes and its ledgers.

`stepwire demo` (cli/demo.py) runs the demo and prints its progress. The modules in this package print nothing.
"""
