#!/bin/sh
# Builds the documentation site into build/site/html. Fails on a broken link, a page without a place in the navigation,
# and anything that a reader's browser would load from another host.
set -eu
cd "$(dirname "$0")/../.."

python=${PYTHON:-python3}
venv=build/site/venv
wanted=$(cksum docs/site/requirements.txt)
if [ "$(cat "$venv/.installed" 2>/dev/null || true)" != "$wanted" ]; then
  rm -rf "$venv"
  mkdir -p build/site
  "$python" -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r docs/site/requirements.txt
  echo "$wanted" > "$venv/.installed"
fi
exec "$venv/bin/python" docs/site/build.py
