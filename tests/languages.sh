# Sourced by tests/run.sh: what the examples in other languages and the completion in other shells need, where it is
# missing and we may install it. Debian's packages as root, npm's in a folder that git ignores. What is still missing then,
# the tests say.
missing=
command -v cc >/dev/null || missing="$missing gcc libc6-dev"
command -v pkg-config >/dev/null || missing="$missing pkg-config"
for header in zmq.h:libzmq3-dev cjson/cJSON.h:libcjson-dev; do
  echo "#include <${header%:*}>" | cc -E - >/dev/null 2>&1 || missing="$missing ${header#*:}"
done
ruby -e 'require "ffi-rzmq"' >/dev/null 2>&1 || missing="$missing ruby ruby-ffi-rzmq"
command -v node >/dev/null || missing="$missing nodejs"
command -v npm >/dev/null || missing="$missing npm"
command -v curl >/dev/null || missing="$missing curl"
command -v jq >/dev/null || missing="$missing jq"
command -v go >/dev/null || missing="$missing golang-go"
for shell in zsh fish; do
  command -v "$shell" >/dev/null || missing="$missing $shell"
done
if [ -n "$missing" ]; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update -q && apt-get install -qy --no-install-recommends $missing; } >/dev/null ||
      echo "these could not be installed:$missing" >&2
  else
    echo "Left out are the examples in other languages that miss one of:$missing" >&2
    echo "As root, on Debian: apt-get update && apt-get install --no-install-recommends$missing" >&2
  fi
fi
if command -v npm >/dev/null && [ ! -d examples/level0/node_modules/zeromq ]; then
  npm ci --prefix examples/level0 --no-audit --no-fund --loglevel=error >/dev/null ||
    echo "npm ci --prefix examples/level0 did not work, so the example in Node is left out" >&2
fi
