# Sourced by the scripts of README: makes .venv with this project and the extra named in $extra, once per change of
# pyproject.toml or of the lock. Every package has the version and the hash of tests/requirements/$extra.lock. The system's own Python is left as it is. $PYTHON names another Python than the newest suitable one.

is_suitable() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

version_of() { "$1" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null || echo "not a Python"; }

refuse() {
  echo "Stepwire needs Python 3.11 or newer: $1" >&2
  exit 1
}

if [ -n "${PYTHON:-}" ]; then
  python=$PYTHON
  is_suitable "$python" || refuse "PYTHON=$PYTHON is $(version_of "$python")"
else
  python=
  for candidate in python3 python3.14 python3.13 python3.12 python3.11; do
    if [ -z "$python" ] && is_suitable "$candidate"; then python=$candidate; fi
  done
  [ -n "$python" ] || refuse "python3 is $(version_of python3); install a newer one, or name it: PYTHON=/path/to/python3"
  [ "$python" = python3 ] || echo "python3 is $(version_of python3), which is too old: $python is used" >&2
fi

# A .venv of another Python is made again: one that is too old, one whose Python is gone, or not the one of $PYTHON.
clear=
if [ -d .venv ]; then
  if ! is_suitable .venv/bin/python; then
    clear=--clear
  elif [ -n "${PYTHON:-}" ] && [ "$(version_of .venv/bin/python)" != "$(version_of "$python")" ]; then
    clear=--clear
  fi
  [ -z "$clear" ] || echo "its Python is $(version_of .venv/bin/python): .venv is made again" >&2
fi

stamp=.venv/.stepwire-$extra
lock=tests/requirements/$extra.lock
if [ -n "$clear" ] || [ ! -f "$stamp" ] || [ pyproject.toml -nt "$stamp" ] || [ "$lock" -nt "$stamp" ]; then
  if [ -n "$clear" ] || [ ! -x .venv/bin/python ]; then
    if ! "$python" -m venv $clear .venv >/dev/null 2>&1; then
      rm -rf .venv
      if [ "$python" = python3 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get update -q >/dev/null && apt-get install -qy python3-venv >/dev/null
        "$python" -m venv .venv
      else
        refuse "$python has no venv (Debian: apt-get install python3-venv)"
      fi
    fi
  fi
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r "$lock"
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
  touch "$stamp"
fi
