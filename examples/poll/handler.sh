#!/bin/sh
# A worker over HTTP in a shell: curl and jq, and nothing of Stepwire. One step at a time.
set -u
url=${STEPWIRE_URL:-http://127.0.0.1:7410}
token=$(cat "${STEPWIRE_TOKEN_FILE:-.stepwire/token}")
worker=poll-sh:$(od -An -N8 -tx1 /dev/urandom | tr -d ' \n') # new for each process
dir=$(mktemp -d)
echo 0 >"$dir/n"
session=null

# say CALL JSON: the answer is in $dir/CALL; prints the status, 000 where there was none.
say() {
  printf 'Authorization: Bearer %s\n' "$token" | # not on the command line, where everybody could read it
    curl -s -m 40 -o "$dir/$1" -w '%{http_code}' -H @- -H 'Content-Type: application/json' \
      -d "$2" "$url/v1/worker/$1" || true
}

# insist CALL JSON: until it is answered. Everything may be said twice.
insist() {
  while :; do
    case $(say "$1" "$2") in
      200) return 0 ;;
      000 | 429 | 500 | 503) sleep 1 ;;
      *) return 1 ;;
    esac
  done
}

# count: one more than the last time, in the background too.
count() {
  echo $(($(cat "$dir/n") + 1)) >"$dir/n"
  cat "$dir/n"
}

# lease HOLDING WAIT_MS MORE: what is not in HOLDING is given back. So n counts up, whatever becomes of the call.
lease() {
  status=$(say lease "{\"worker\":\"$worker\",\"n\":$(count),\"session\":$session,\"handlers\":[\"order.*\"],
    \"slots\":1,\"lang\":\"sh\",\"pid\":$$,\"holding\":$1,\"wait_ms\":$2$3}")
  [ "$status" = 200 ] && session=$(jq .session "$dir/lease")
}

# beat STATE: 1 when the step is not ours any more, or is to stop.
beat() {
  status=$(say heartbeat "{\"worker\":\"$worker\",\"session\":$session,\"holding\":[[$item,\"$1\",0]]}")
  [ "$status" = 200 ] && [ "$(jq '.cancel | length' "$dir/heartbeat")" = 0 ]
}

# The work itself: the step is on stdin, its output goes to stdout.
handle() {
  case $1 in
    order.price) jq -c '{cents: ([.task_context.items[] | .cents * .count] | add)}' ;;
    order.charge) jq -c '{charged: .previous_results.price.cents, by: "sh"}' ;;
    *) return 1 ;;
  esac
}

of_step() {
  printf '%s' "$step" | jq "$@"
}

run() {
  step=$(jq -c '.steps[0]' "$dir/lease")
  batch=$(jq -c '{session, deployment, batch_id}' "$dir/lease")
  item=$(of_step -r '"\(.step_id),\(.delivery)"')
  beat queued || return # nothing starts before the broker has said that the step is still ours
  if [ "$(of_step -r .delivery_mode)" = at_most_once ]; then
    insist start "{\"worker\":\"$worker\",\"session\":$session,\"items\":[[$item]]}" || return
  fi
  (
    while sleep 2; do # the broker is new, or thought us dead: it hears of what still runs here
      beat running || [ "$status" != 409 ] || lease "[[$item,\"running\",0]]" 0 ',"free":0'
    done
  ) &
  beats=$!
  if output=$(of_step -c . | handle "$(of_step -r .handler_class)") && [ -n "$output" ]; then
    outcome="{\"status\":\"completed\",\"output\":$output}"
  else
    outcome='{"status":"failed","error":{"message":"the handler failed"}}'
  fi
  result=$(of_step -c --argjson outcome "$outcome" '{step_id, delivery} + $outcome')
  insist results "$(printf '%s' "$batch" | jq -c --arg worker "$worker" --argjson result "$result" \
    '. + {worker: $worker, results: [$result]}')"
  kill "$beats" && wait "$beats"
}

trap 'stop=yes' TERM INT
stop=
while [ -z "$stop" ]; do
  if ! lease '[]' 5000 ''; then
    sleep 1
  elif [ "$(jq '.steps | length' "$dir/lease")" != 0 ]; then
    run
  fi
done
say bye "{\"worker\":\"$worker\",\"n\":$(count),\"session\":$session}" >/dev/null
rm -r "$dir"
