#!/bin/sh
# Every check of the Node SDK: sh check.sh [setup | build | lint | test | vectors | all]
set -eu
cd "$(dirname "$0")"
python=${PYTHON:-$PWD/../../.venv/bin/python}
passed=0
failed=0

usage() {
  echo "usage: sh check.sh [setup | build | lint | test | vectors | all]"
}

# Run a command quietly; show its output if it fails.
quietly() {
  if ! output=$("$@" 2>&1); then
    printf '%s\n' "$output" >&2
    echo "node $part FAILED: $*" >&2
    exit 1
  fi
}

setup() {
  part=setup
  if ! command -v node >/dev/null; then
    as_root=
    [ "$(id -u)" = 0 ] || as_root=sudo
    quietly $as_root apt-get update -q
    quietly $as_root apt-get install -y --no-install-recommends nodejs npm
  fi
  quietly node src/node_version.js
  # No install script has to run: the binding comes with binaries.
  if [ ! -d node_modules ] || [ package-lock.json -nt node_modules/.package-lock.json ]; then
    quietly npm ci --ignore-scripts --no-audit --no-fund
  fi
  echo "node setup ok"
}

# There is nothing to compile: `build` proves that the package installs, loads and has its types.
build() {
  part=build
  [ -d node_modules ] || setup
  directory=$(mktemp -d)
  trap 'rm -rf "$directory"' EXIT
  quietly npm pack --pack-destination "$directory"
  quietly tar -xzf "$directory"/stepwire-*.tgz -C "$directory"
  mkdir -p "$directory/node_modules"
  mv "$directory/package" "$directory/node_modules/stepwire"
  ln -s "$PWD/node_modules/zeromq" "$PWD/node_modules/cmake-ts" "$PWD/node_modules/node-addon-api" "$directory/node_modules/"
  echo "import { Worker } from 'stepwire'; import { run } from 'stepwire/testing'; new Worker(); run" >"$directory/use.mjs"
  quietly node "$directory/use.mjs"
  echo "node build ok"
}

lint() {
  part=lint
  [ -d node_modules ] || setup
  quietly npx --no-install eslint .
  quietly npx --no-install prettier --check --log-level warn .
  quietly npx --no-install tsc -p .
  quietly npx --no-install tsc -p tests/types
  echo "node lint ok"
}

# Run test files, and add the counts of the lines `# pass 60` and `# fail 0`.
node_tests() {
  output=$(node --test --test-reporter=tap "$@" 2>&1) || failure=1
  passed=$((passed + $(printf '%s\n' "$output" | sed -n 's/^# pass //p')))
  failed=$((failed + $(printf '%s\n' "$output" | sed -n 's/^# fail //p')))
  if [ "${failure:-0}" = 1 ]; then
    printf '%s\n' "$output" | grep -v '^ *ok ' >&2
    echo "node $part FAILED" >&2
    total
    exit 1
  fi
}

unit() {
  part=test
  [ -d node_modules ] || setup
  node_tests tests/*.test.js
  echo "node test ok"
}

vectors() {
  part=vectors
  [ -d node_modules ] || setup
  [ "${1:-}" = again ] || node_tests tests/codec.test.js
  output=$(cd ../../protocol && "$python" -m conformance -- ../handlers_sdk/node/bin/driver 2>&1) || {
    printf '%s\n' "$output" >&2
    echo "node vectors FAILED" >&2
    exit 1
  }
  passed=$((passed + $(printf '%s\n' "$output" | sed -n 's/^\([0-9]*\) passed, 0 failed$/\1/p')))
  echo "node vectors ok"
}

total() {
  echo "$passed passed, $failed failed"
}

case ${1:-all} in
  setup | build | lint) "$1" ;;
  test) unit; total ;;
  vectors) vectors; total ;;
  all) setup; build; lint; unit; vectors again; total ;;
  -h | --help | help) usage ;;
  *) usage >&2; exit 2 ;;
esac
