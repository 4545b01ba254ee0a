#!/bin/sh
# Checks of the Go SDK: installs what is missing, then builds, lints and tests.
#
#   sh check.sh [setup | build | lint | test | vectors | all]
#
# `vectors` plays the dialogues of protocol/ and needs Python with the repository's development environment: the variable
# PYTHON, or ../../.venv/bin/python. GO names another Go, for example /usr/lib/go-1.19/bin/go.
set -eu
started_in=$PWD
cd "$(dirname "$(readlink -f "$0")")"

go=${GO:-go}
python=${PYTHON:-$(cd ../.. && pwd)/.venv/bin/python}
case $python in
  /*) ;;
  */*) python=$started_in/$python ;;
  *) python=$(command -v "$python" || echo "$python") ;;
esac
tools=$PWD/.build
log=$(mktemp)
trap 'rm -f "$log"' EXIT
passed=0 failed=0

quietly() {
  if ! "$@" >"$log" 2>&1; then
    cat "$log"
    echo "go: failed: $*"
    exit 1
  fi
}

setup() {
  packages=
  command -v "$go" >/dev/null || packages="golang-go"
  command -v cc >/dev/null || packages="$packages gcc libc6-dev"
  command -v pkg-config >/dev/null || packages="$packages pkg-config"
  pkg-config --exists libzmq 2>/dev/null || packages="$packages libzmq3-dev"
  if [ -n "$packages" ]; then
    sudo=
    [ "$(id -u)" = 0 ] || sudo=sudo
    quietly $sudo apt-get update
    # shellcheck disable=SC2086
    quietly $sudo apt-get install --yes --no-install-recommends $packages
  fi
  version=$("$go" env GOVERSION)
  case $version in
    go1.[0-9] | go1.[0-9].* | go1.1[0-8] | go1.1[0-8].*)
      echo "Stepwire needs Go 1.19 or newer, and this is Go ${version#go}: install a newer Go, or name it in GO"
      exit 1
      ;;
  esac
  quietly "$go" mod download
}

build() {
  setup
  quietly "$go" build -o .build/ ./cmd/... ./bench/...
}

lint() {
  setup
  unformatted=$("$("$go" env GOROOT)/bin/gofmt" -l .)
  [ -z "$unformatted" ] || { echo "go: not formatted (gofmt -w): $unformatted"; exit 1; }
  quietly "$go" vet ./...
  quietly "$go" mod verify
  if [ ! -x "$tools/staticcheck" ]; then
    # An old toolchain cannot build today's staticcheck; `go vet` has to do there.
    GOBIN=$tools "$go" install honnef.co/go/tools/cmd/staticcheck@latest >"$log" 2>&1 || :
  fi
  if [ -x "$tools/staticcheck" ]; then
    quietly "$tools/staticcheck" ./...
  else
    echo "go: staticcheck cannot be built with $("$go" env GOVERSION), left out"
  fi
}

# Runs tests, and counts them.
count() {
  code=0
  GOROOT=$("$go" env GOROOT) "$go" test -race -count=1 -v "$@" >"$log" 2>&1 || code=$?
  passed=$((passed + $(grep -c '^--- PASS' "$log" || :)))
  failed=$((failed + $(grep -c '^--- FAIL' "$log" || :)))
  if [ "$code" != 0 ]; then
    grep -v -e '^=== ' -e '^--- PASS' -e '^PASS' "$log" || :
    [ "$failed" -gt 0 ] || failed=1
  fi
}

tests() {
  setup
  count ./...
}

vectors() {
  build
  [ "${1:-}" = dialogues ] || count -run 'Accepted|Refused|Refuse|Patterns' ./internal/codec
  # Without Python there is no kit, and nothing to say about the dialogues.
  [ -x "$python" ] || { echo "go: no Python at $python: run sh tests/run.sh setup in the repository"; exit 1; }
  code=0
  (cd ../../protocol && "$python" -m conformance -- ../handlers_sdk/go/bin/driver) >"$log" 2>&1 || code=$?
  [ "$code" = 0 ] || grep -v '^pass' "$log" || :
  summary=$(grep -E '^[0-9]+ passed, [0-9]+ failed' "$log" | tail -n 1)
  [ -n "$summary" ] || { echo "go: the conformance kit did not finish"; failed=$((failed + 1)); summary="0 passed, 0 failed"; }
  passed=$((passed + ${summary%% passed*}))
  rest=${summary#*, }
  failed=$((failed + ${rest%% failed*}))
}

finish() {
  [ "$failed" != 0 ] || echo "go $1 ok"
  echo "$passed passed, $failed failed"
  [ "$failed" = 0 ]
}

case ${1:-all} in
  setup) setup; echo "go setup ok" ;;
  build) build; echo "go build ok" ;;
  lint) lint; echo "go lint ok" ;;
  test) tests; finish test ;;
  vectors) vectors; finish vectors ;;
  all)
    lint
    echo "go lint ok"
    tests
    vectors dialogues
    finish all
    ;;
  *)
    sed -n '2,7s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
