#!/bin/sh
# Every check of the Java SDK: sh check.sh [setup | build | lint | test | vectors | all]
# Needs JDK 17 and Maven; Maven keeps what it fetches in ~/.m2. PYTHON: the Python of the conformance kit.
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
    echo "java $part FAILED: $*" >&2
    exit 1
  fi
}

maven() {
  mvn -B -ntp -q -Dstyle.color=never "$@"
}

setup() {
  part=setup
  if ! command -v javac >/dev/null || ! command -v mvn >/dev/null; then
    as_root=
    [ "$(id -u)" = 0 ] || as_root=sudo
    quietly $as_root apt-get update -q
    quietly $as_root apt-get install -y --no-install-recommends openjdk-17-jdk-headless maven
  fi
  major=$(javac -version 2>&1 | sed 's/^javac \(1\.\)\{0,1\}\([0-9]*\).*/\2/')
  if [ "$major" -lt 17 ]; then
    echo "Stepwire needs Java 17 or newer, and this is Java $major: install a newer Java (openjdk-17-jdk)" >&2
    exit 1
  fi
  echo "java setup ok"
}

build() {
  part=build
  quietly maven package -DskipTests
  quietly maven -f bench/pom.xml process-classes
  echo "java build ok"
}

lint() {
  part=lint
  quietly maven process-test-classes fmt:check # the compiler runs with -Xlint:all -Werror
  echo "java lint ok"
}

# Add the counts of Maven's last line, "Tests run: 60, Failures: 1, Errors: 0, Skipped: 0".
count() {
  line=$(printf '%s\n' "$1" | grep -E 'Tests run: [0-9]+, Failures: [0-9]+, Errors: [0-9]+, Skipped: [0-9]+$' | tail -1)
  numbers=$(printf '%s\n' "${line:-1 1 0 0}" | tr -c '0-9\n' ' ')
  # shellcheck disable=SC2086 -- the numbers of the line
  set -- $numbers
  failed=$((failed + $2 + $3))
  passed=$((passed + $1 - $2 - $3 - $4))
}

# Show the output of a failed part, and end.
fail() {
  printf '%s\n' "$1" >&2
  echo "java $part FAILED" >&2
  count "$1"
  total
  exit 1
}

unit() {
  part=test
  output=$(mvn -B -ntp -Dstyle.color=never test 2>&1) || fail "$output"
  count "$output"
  echo "java test ok"
}

vectors() {
  part=vectors
  output=$(mvn -B -ntp -Dstyle.color=never process-classes test -Dtest=VectorsTest 2>&1) || fail "$output"
  [ "${1:-}" = counted ] || count "$output"
  output=$(cd ../../protocol && "$python" -m conformance -- ../handlers_sdk/java/bin/driver 2>&1) || fail "$output"
  passed=$((passed + $(printf '%s\n' "$output" | sed -n 's/^\([0-9]*\) passed, 0 failed$/\1/p')))
  echo "java vectors ok"
}

total() {
  echo "$passed passed, $failed failed"
}

case ${1:-all} in
  setup) setup ;;
  build) setup && build ;;
  lint) lint ;;
  test) unit && total ;;
  vectors) vectors && total ;;
  all)
    setup
    build
    lint
    unit
    vectors counted
    total
    ;;
  -h | --help | help) usage ;;
  *)
    usage >&2
    exit 2
    ;;
esac
