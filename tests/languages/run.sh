#!/bin/sh
# Builds and checks the SDKs: `sh tests/languages/run.sh [go|java|node|python|ruby|rust] … [--case CASE,…]`.
set -eu
cd "$(dirname "$0")/../.."
extra=dev
. tests/venv.sh
exec .venv/bin/python -m tests.languages "$@"
