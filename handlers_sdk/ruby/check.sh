#!/bin/sh
# Every check of the Ruby SDK: sh check.sh [setup | build | lint | test | vectors | all]
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
    echo "ruby $part FAILED: $*" >&2
    exit 1
  fi
}

setup() {
  part=setup
  missing=
  command -v ruby >/dev/null || missing="ruby"
  ruby -e 'require "ffi-rzmq"' 2>/dev/null || missing="$missing ruby-ffi-rzmq"
  command -v rubocop >/dev/null || missing="$missing rubocop"
  if [ -n "$missing" ]; then
    as_root=
    [ "$(id -u)" = 0 ] || as_root=sudo
    quietly $as_root apt-get update -q
    # shellcheck disable=SC2086 -- a list of packages
    quietly $as_root apt-get install -y --no-install-recommends $missing
  fi
  quietly ruby -e 'exit((RUBY_VERSION.split(".").map(&:to_i) <=> [3, 1]) >= 0)'
  echo "ruby setup ok"
}

build() {
  setup
  part=build
  quietly gem build --output "${TMPDIR:-/tmp}/stepwire-$$.gem" stepwire.gemspec
  rm -f "${TMPDIR:-/tmp}/stepwire-$$.gem"
  echo "ruby build ok"
}

lint() {
  part=lint
  quietly rubocop --cache false
  echo "ruby lint ok"
}

# Add the counts of a line like "60 runs, 400 assertions, 1 failures, 0 errors, 0 skips".
count() {
  line=$(printf '%s\n' "$1" | grep -E '^[0-9]+ runs, ' || echo "1 runs, 0 assertions, 1 failures, 0 errors, 0 skips")
  # shellcheck disable=SC2086 -- the words of the line
  set -- $line
  failed=$((failed + $5 + $7))
  passed=$((passed + $1 - $5 - $7))
}

unit() {
  part=test
  output=$(ruby -e 'Dir["./test/*_test.rb"].sort.each { |file| require file }' 2>&1) || fail "$output"
  count "$output"
  echo "ruby test ok"
}

# Show the output of a failed part, and end.
fail() {
  printf '%s\n' "$1" >&2
  echo "ruby $part FAILED" >&2
  count "$1"
  total
  exit 1
}

vectors() {
  part=vectors
  output=$(ruby test/codec_test.rb 2>&1) || fail "$output"
  output=$(cd ../../protocol && "$python" -m conformance -- ../handlers_sdk/ruby/bin/driver 2>&1) || fail "$output"
  passed=$((passed + $(printf '%s\n' "$output" | sed -n 's/^\([0-9]*\) passed, 0 failed$/\1/p')))
  echo "ruby vectors ok"
}

total() {
  echo "$passed passed, $failed failed"
}

case ${1:-all} in
  setup | build | lint) "$1" ;;
  test) unit; total ;;
  vectors) vectors; total ;;
  all) build; lint; unit; vectors; total ;;
  -h | --help | help) usage ;;
  *) usage >&2; exit 2 ;;
esac
