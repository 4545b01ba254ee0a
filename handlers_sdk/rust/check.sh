#!/bin/sh
# Every check of the Rust SDK. One part alone: `sh check.sh setup|build|lint|test|vectors`; `all` is the default.
# The parts `vectors` and `all` play the dialogues of the conformance kit, which needs the Python of the repository:
# PYTHON=…, otherwise ../../.venv/bin/python.
set -eu
cd "$(dirname "$0")"
folder=$PWD
export CARGO_TARGET_DIR="$folder/target"
PYTHON=${PYTHON:-../../.venv/bin/python}
case $PYTHON in /*) ;; */*) PYTHON=$folder/$PYTHON ;; esac

quietly() {
  log=$folder/target/check.log
  mkdir -p target
  if ! "$@" >"$log" 2>&1; then
    cat "$log"
    echo "rust: failed: $*" >&2
    exit 1
  fi
}

setup() {
  if ! command -v cargo >/dev/null; then
    echo "rust: there is no cargo: install Rust 1.63 or later (https://rustup.rs, or Debian's packages rustc and cargo)" >&2
    exit 1
  fi
  version=$(rustc --version | sed 's/^rustc \([0-9.]*\).*/\1/')
  case $version in
    0.* | 1.[0-9].* | 1.[1-5][0-9].* | 1.6[0-2].*)
      echo "Stepwire needs Rust 1.63 or newer, and this is Rust $version: install a newer Rust (https://rustup.rs)" >&2
      exit 1
      ;;
  esac
  if ! pkg-config --exists libzmq 2>/dev/null && ! ls /usr/lib/*/libzmq.so /usr/lib/libzmq.so >/dev/null 2>&1; then
    as_root=
    [ "$(id -u)" = 0 ] || as_root=sudo
    quietly $as_root apt-get update -q
    quietly $as_root apt-get install -y --no-install-recommends libzmq3-dev pkg-config
  fi
  echo "rust setup ok"
}

build() {
  quietly cargo build --release --locked --bins --features sealed
  echo "rust build ok"
}

lint() {
  quietly cargo fmt --check
  quietly cargo clippy --locked --all-targets -- -D warnings
  quietly cargo clippy --locked --all-targets --features sealed -- -D warnings
  quietly env RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps --features sealed
  echo "rust lint ok"
}

# Runs tests, and adds their numbers to `passed` and `failed`.
counted() {
  log=$folder/target/check.log
  mkdir -p target
  status=0
  "$@" >"$log" 2>&1 || status=$?
  add=$(sed -n 's/^test result: [a-zA-Z]*\. \([0-9]*\) passed; \([0-9]*\) failed.*/\1 \2/p; s/^\([0-9]*\) passed, \([0-9]*\) failed.*/\1 \2/p' "$log" |
    awk '{p += $1; f += $2} END {print p + 0, f + 0}')
  passed=$((passed + ${add% *}))
  failed=$((failed + ${add#* }))
  if [ "$status" -ne 0 ]; then
    cat "$log"
    echo "rust: failed: $*" >&2
    [ "${add#* }" -gt 0 ] || failed=$((failed + 1))
  fi
}

tests() {
  counted cargo test --locked --features sealed --lib --bins --test handlers --test panics
  counted cargo test --locked --lib edge:: # without the feature
  counted cargo test --locked --doc
  [ "$failed" -ne 0 ] || echo "rust test ok"
}

vectors() {
  counted cargo test --locked --test vectors
  if [ ! -x "$PYTHON" ]; then
    echo "rust: the dialogues need Python: $PYTHON does not exist (sh tests/run.sh setup, or PYTHON=…)" >&2
    failed=$((failed + 1))
    return
  fi
  cd ../../protocol
  counted "$PYTHON" -m conformance -- "$folder/bin/driver"
  cd "$folder"
  [ "$failed" -ne 0 ] || echo "rust vectors ok"
}

ended() {
  echo "$passed passed, $failed failed"
  [ "$failed" -eq 0 ]
}

passed=0
failed=0
case ${1:-all} in
  setup) setup ;;
  build) setup; build ;;
  lint) lint ;;
  test) tests; ended ;;
  vectors) build; vectors; ended ;;
  all) setup; build; lint; tests; vectors; ended ;;
  *) echo "usage: sh check.sh [setup|build|lint|test|vectors|all]" >&2; exit 2 ;;
esac
