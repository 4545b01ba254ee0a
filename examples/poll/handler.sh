#!/bin/sh
# A worker over HTTP in a shell: needs curl and jq, and no part of Stepwire. One step at a time.
set -u
url=${STEPWIRE_URL:-http://127.0.0.1:7410}
token=$(cat "${STEPWIRE_TOKEN_FILE:-.stepwire/token}")
worker=poll-sh:$(od -An -N8 -tx1 /dev/urandom | tr -d ' \n') # new for each process
dir=$(mktemp -d)
echo 0 >"$dir/n"
session=null

# post CALL JSON: store the answer in $dir/CALL and print the status, or 000 if there is no answer.
post() {
  printf 'Authorization: Bearer %s\n' "$token" | # not on the command line, which other users can read
    curl -s -m 40 -o "$dir/$1" -w '%{http_code}' -H @- -H 'Content-Type: application/json' \
      -d "$2" "$url/v1/worker/$1" || true
}

# post_until_answered CALL JSON: resend on errors; duplicates are harmless.
post_until_answered() {
  while :; do
    case $(post "$1" "$2") in
      200) return 0 ;;
      000 | 429 | 500 | 503) sleep 1 ;;
      *) return 1 ;;
    esac
  done
}

# count: print the next number, also from the background process.
count() {
  echo $(($(cat "$dir/n") + 1)) >"$dir/n"
  cat "$dir/n"
}

# lease HOLDING WAIT_MS MORE: steps missing from HOLDING are given back, so n must increase even if the call fails.
lease() {
  status=$(post lease "{\"worker\":\"$worker\",\"n\":$(count),\"session\":$session,\"handlers\":[\"order.*\"],
    \"slots\":1,\"lang\":\"sh\",\"pid\":$$,\"holding\":$1,\"wait_ms\":$2$3}")
  [ "$status" = 200 ] && session=$(jq .session "$dir/lease")
}

# beat STATE: return 1 when the broker has taken the step back, or cancels it.
beat() {
  status=$(post heartbeat "{\"worker\":\"$worker\",\"session\":$session,\"holding\":[[$item,\"$1\",0]]}")
  [ "$status" = 200 ] && [ "$(jq '.cancel | length' "$dir/heartbeat")" = 0 ]
}

# handle HANDLER_CLASS: the handlers. Read the step from stdin, write its output to stdout.
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
  beat queued || return # start only after the broker has confirmed that this worker has the step
  if [ "$(of_step -r .delivery_mode)" = at_most_once ]; then
    post_until_answered start "{\"worker\":\"$worker\",\"session\":$session,\"items\":[[$item]]}" || return
  fi
  (
    while sleep 2; do # on 409 the broker restarted, or declared this worker dead
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
  post_until_answered results "$(printf '%s' "$batch" | jq -c --arg worker "$worker" --argjson result "$result" \
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
post bye "{\"worker\":\"$worker\",\"n\":$(count),\"session\":$session}" >/dev/null
rm -r "$dir"
