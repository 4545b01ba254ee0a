#!/bin/sh
# Append a line to a file, once. The step is at_most_once: if this program is killed, the step is held until an operator
# has checked whether the line is in the file, and has resolved the step.
set -eu

[ -w "$(dirname "$REPORT")" ] || {
    echo "the directory of $REPORT cannot be written" >&2  # no effect yet: an ordinary failure
    exit 1
}

# Any language can read the JSON. Invalid input: exit with 65, because a retry cannot help.
line=$(python3 -c '
import json, sys
request = json.load(sys.stdin)["input"]
print("{words} words, disk {used} % full".format(**request))
') || exit 65

# 81, the outcome is unknown: the line may be written, half written, or missing.
printf '%s %s\n' "$STEPWIRE_TASK_ID" "$line" >> "$REPORT" || exit 81
printf '{"line": "%s"}\n' "$line"
