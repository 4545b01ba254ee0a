#!/bin/sh
# Builds the wheel and the sdist, checks them, and installs and uses them as users do: `sh tests/packages/run.sh`.
set -eu
cd "$(dirname "$0")/../.."
extra=dev
. tests/venv.sh
exec .venv/bin/python -m tests.packages "$@"
