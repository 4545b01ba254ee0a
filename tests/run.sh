#!/bin/sh
# Every check that a change has to pass, from a fresh clone: sets up .venv, then style, types, layers and tests.
# One check alone: `sh tests/run.sh CHECK`; `sh tests/run.sh help` lists the checks.
set -eu
cd "$(dirname "$0")/.."

usage() {
  cat <<'TEXT'
usage: sh tests/run.sh [CHECK [ARGUMENT …]]

  all       every check below (the default)
  setup     create .venv with the development tools, and do nothing else
  lint      ruff: format and rules
  types     mypy, strict
  layers    import-linter: which room may import which
  tests     pytest, all rooms; with arguments: those rooms, files or options
            sh tests/run.sh tests core          the tests of tests/core
            sh tests/run.sh tests tests/core/test_timers.py -x
  format    let ruff rewrite the files (changes them)
TEXT
}

lint() {
  ruff format --check --quiet .
  ruff check --quiet .
}

types() { mypy; }

layers() { lint-imports; }

tests() {
  # An argument that names a folder or a file of tests/ means that one.
  count=$#
  while [ "$count" -gt 0 ]; do
    argument=$1
    shift
    [ ! -e "tests/$argument" ] || argument=tests/$argument
    set -- "$@" "$argument"
    count=$((count - 1))
  done
  # More processes than cores: much of their time they wait, for real processes and real clocks.
  pytest -n 5 --dist loadscope "$@"
}

check=${1:-all}
[ $# -eq 0 ] || shift
case $check in
  all | setup | lint | types | layers | tests | format) ;;
  help | -h | --help) usage; exit 0 ;;
  *) usage >&2; exit 2 ;;
esac

extra=dev
. tests/venv.sh
export PATH="$PWD/.venv/bin:$PATH"
unset PYTHONDONTWRITEBYTECODE  # the tests start processes by the hundred: each module is compiled once

case $check in
  setup) ;;
  format) ruff format . && ruff check --fix . ;;
  tests) . tests/languages.sh; . tests/postgresql.sh; tests "$@" ;;
  all)
    . tests/languages.sh
    . tests/postgresql.sh
    lint
    # mypy uses one processor. Meanwhile the other one checks the layers, and compiles the tests for all test processes,
    # which would each compile all of them.
    failed=
    types &
    layers || failed=layers
    pytest --collect-only --quiet >/dev/null 2>&1 || true  # the tests report what is wrong
    wait "$!" || failed=types
    [ -z "$failed" ]
    tests
    ;;
  *) "$check" ;;
esac
