#!/bin/sh
# Generates, compiles and runs clients of the HTTP API: `sh tests/clients/run.sh [python|typescript|go|java] …`.
set -eu
cd "$(dirname "$0")/../.."
extra=dev
. tests/venv.sh
exec .venv/bin/python -m tests.clients "$@"
