"""The demo's shop: its workflow, the handlers of it in several languages, and the processes and books it is made of.

`stepwire demo` (cli/demo.py) tells the story; nothing here prints.
"""
