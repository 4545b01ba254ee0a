#!/bin/sh
# Writes the locks: `sh tests/requirements/lock.sh`, after a change of pyproject.toml, and to update dependencies.
# A version is taken only seven days after it was published. UV names another uv than the one of tests/packages.
set -eu
cd "$(dirname "$0")/../.."
here=tests/requirements
uv=${UV:-}
if [ -z "$uv" ]; then
  tools=$(mktemp -d)
  trap 'rm -rf "$tools"' EXIT
  python3 -m venv "$tools"
  "$tools/bin/pip" install --quiet "$(sed -n 's/^uv==/uv==/p' tests/packages/requirements.txt)"
  uv=$tools/bin/uv
fi
before=$(python3 -c 'import datetime as d; print((d.datetime.now(d.UTC) - d.timedelta(days=7)).strftime("%Y-%m-%dT00:00:00Z"))')

lock() {
  name=$1
  shift
  "$uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
    --no-emit-index-url --no-emit-find-links --exclude-newer "${EXCLUDE_NEWER-$before}" \
    --output-file "$here/$name.lock" "$@"
}

lock broker pyproject.toml "$here/also.in" --extra broker
lock dev pyproject.toml "$here/also.in" --extra dev
lock audit "$here/audit.in"
