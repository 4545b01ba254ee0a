#!/bin/sh
# From a fresh clone to the demo: sets up .venv, and runs `stepwire demo` in this directory.
set -eu
cd "$(dirname "$0")/.."
extra=broker
. tests/venv.sh
exec .venv/bin/stepwire demo "$@"
