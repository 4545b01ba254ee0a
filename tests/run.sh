#!/bin/sh
# Everything a change has to pass, from a fresh clone: sets up .venv, then style, types, layers and tests.
set -eu
cd "$(dirname "$0")/.."
extra=dev
. tests/venv.sh
. tests/languages.sh
export PATH="$PWD/.venv/bin:$PATH"
unset PYTHONDONTWRITEBYTECODE  # the tests start processes by the hundred: each module is compiled once

ruff format --check --quiet .
ruff check --quiet .
mypy
lint-imports
# More processes than cores: much of their time they wait, for real processes and real clocks.
pytest -n 4 --dist loadscope "$@"
