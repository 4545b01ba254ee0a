# Sourced by tests/run.sh: the server and the pooler of the PostgreSQL store's tests, where they are missing and we may
# install them. Debian's package of the server would start one of its own: that is switched off. What is still missing
# then, the tests name.
missing=
ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || command -v postgres >/dev/null || missing="$missing postgresql"
[ -x /usr/sbin/pgbouncer ] || command -v pgbouncer >/dev/null || missing="$missing pgbouncer"
if [ -n "$missing" ]; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    mkdir -p /etc/postgresql-common
    [ -e /etc/postgresql-common/createcluster.conf ] ||
      echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf
    { apt-get update -q && apt-get install -qy --no-install-recommends $missing; } >/dev/null ||
      echo "these could not be installed:$missing" >&2
  else
    echo "The tests of the PostgreSQL store miss one of:$missing" >&2
    echo "As root, on Debian: apt-get update && apt-get install --no-install-recommends$missing" >&2
  fi
fi
