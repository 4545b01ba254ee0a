# Sourced by the scripts of README: makes .venv with this project and the extra named in $extra, once per change of
# pyproject.toml. The system's own Python is left as it is.
python=${PYTHON:-python3}
stamp=.venv/.stepwire-$extra
if [ ! -f "$stamp" ] || [ pyproject.toml -nt "$stamp" ]; then
  if ! "$python" -m venv .venv >/dev/null 2>&1; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
      apt-get update -q >/dev/null && apt-get install -qy python3-venv >/dev/null
      "$python" -m venv .venv
    else
      echo "this needs Python 3.11 or newer with venv (Debian: apt-get install python3-venv)" >&2
      exit 1
    fi
  fi
  .venv/bin/python -m pip install --quiet --disable-pip-version-check -e ".[$extra]"
  touch "$stamp"
fi
