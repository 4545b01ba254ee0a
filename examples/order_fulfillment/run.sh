#!/bin/sh
# Runs the orders of this directory: a broker, a worker in each language that is installed, four orders, and an end.
#
#   sh examples/order_fulfillment/run.sh [LANGUAGE …]
#
# With LANGUAGEs, only these (go, java, node, ruby, rust). Python's worker runs the steps of all others.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
clone=$(cd "$here/../.." && pwd)
sdk=$clone/handlers_sdk
if [ ! -x "$clone/.venv/bin/stepwire" ]; then
  cd "$clone"
  extra=broker
  . tests/venv.sh
fi
export PATH="$clone/.venv/bin:$PATH"

unset STEPWIRE_URL STEPWIRE_TOKEN STEPWIRE_TOKEN_FILE STEPWIRE_CONFIG STEPWIRE_STEPS STEPWIRE_RESULTS
languages=${*:-go java node ruby rust}
state=$(mktemp -d)
dev=
end() {
  if [ -n "$dev" ] && kill -TERM "$dev" 2>/dev/null; then wait "$dev" || :; fi
  rm -rf "$state"
}
trap end EXIT
trap 'exit 130' INT TERM

# need PROGRAM: ends this language's build if the program is missing.
need() { command -v "$1" >/dev/null || { echo "there is no $1"; return 1; }; }

# Each build leaves a program or what its worker needs; it prints why it cannot.

build_go() {
  need go && need cc && cd "$here/go" && go build -o "$state/go-worker" .
}

build_java() {
  need javac && need mvn || return 1
  jar=$sdk/java/target/classpath
  if [ ! -f "$jar" ] || [ -n "$(find "$sdk/java/src/main" -newer "$jar" -name '*.java')" ]; then
    mvn -q -B -f "$sdk/java/pom.xml" process-classes || return 1
  fi
  javac -cp "$sdk/java/target/classes" -d "$state/java" "$here/java/Charge.java"
}

build_node() {
  need node && need npm && cd "$here/node" && npm install --no-audit --no-fund --loglevel=error
}

build_ruby() {
  need ruby && ruby -e 'require "ffi-rzmq"'
}

build_rust() {
  need cargo && cd "$here/rust" && cargo build --quiet --locked
}

command_of() {
  case $1 in
    go) echo "$state/go-worker" ;;
    java) echo "java -cp '$state/java:$sdk/java/target/classes:$(cat "$sdk/java/target/classpath")' Charge" ;;
    node) echo "node '$here/node/worker.js'" ;;
    ruby) echo "ruby -I '$sdk/ruby/lib' '$here/ruby/worker.rb'" ;;
    rust) echo "'$here/rust/target/debug/worker'" ;;
  esac
}

handler_of() {
  case $1 in
    go) echo orders.reserve ;;
    java) echo orders.charge ;;
    node) echo orders.ship ;;
    ruby) echo orders.pack ;;
    rust) echo orders.screen ;;
  esac
}

install_of() {
  case $1 in
    go) echo "apt-get install golang-go gcc pkg-config libzmq3-dev" ;;
    java) echo "apt-get install openjdk-17-jdk-headless maven" ;;
    node) echo "apt-get install nodejs npm" ;;
    ruby) echo "apt-get install ruby ruby-ffi-rzmq" ;;
    rust) echo "apt-get install libzmq3-dev pkg-config, and Rust 1.63 or newer from https://rustup.rs" ;;
  esac
}

of_python=orders.validate
for language in go java node ruby rust; do
  case " $languages " in
    *" $language "*) ;;
    *)
      of_python="$of_python $(handler_of "$language")"
      continue
      ;;
  esac
  if (build_"$language") >"$state/build.log" 2>&1 </dev/null; then
    echo "$language: $(handler_of "$language")"
    echo "$language: $(command_of "$language")" >>"$state/Procfile"
  else
    sed 's/^/    /' "$state/build.log" | tail -n 5
    echo "$language: cannot be built here, so Python runs $(handler_of "$language"); Debian: $(install_of "$language")"
    of_python="$of_python $(handler_of "$language")"
  fi
done
echo "python: $of_python"
echo "python: python '$here/python/worker.py' $of_python" >>"$state/Procfile"

# Java's worker needs tcp; port 0 is any free port.
cd "$state"
STEPWIRE_BUS__STEPS=tcp://127.0.0.1:0 STEPWIRE_BUS__RESULTS=tcp://127.0.0.1:0 STEPWIRE_HTTP__LISTEN=127.0.0.1:0 \
  stepwire dev >dev.log 2>&1 &
dev=$!
seconds=0
until grep -q '| ready: ' dev.log; do
  if [ "$seconds" -ge 30 ] || ! kill -0 "$dev" 2>/dev/null; then
    cat dev.log
    echo "the broker did not start"
    exit 1
  fi
  sleep 1
  seconds=$((seconds + 1))
done
stepwire workflow apply --quiet "$here/workflow.yaml"
python "$here/submit.py" || {
  cat dev.log
  exit 1
}
kill -TERM "$dev"
wait "$dev"
dev=
echo "the broker and all workers have ended"
