#!/bin/sh
# Set up .venv in a fresh clone, and run `stepwire demo` in the root directory of the clone.
set -eu
cd "$(dirname "$0")/.."
extra=broker
. tests/venv.sh
exec .venv/bin/stepwire demo "$@"
