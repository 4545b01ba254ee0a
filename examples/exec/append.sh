#!/bin/sh
# Appends a line to a file, once. Its step is at_most_once: if this is killed, somebody has to look whether the line is
# there, and the step is held until he has said so.
set -eu

[ -w "$(dirname "$REPORT")" ] || {
    echo "the directory of $REPORT cannot be written" >&2  # nothing has happened yet: an ordinary failure
    exit 1
}

# Where JSON has to be read, a short call of any language does it. An exit code that the shell has not seen is kept.
line=$(python3 -c '
import json, sys
said = json.load(sys.stdin)["input"]
print("{words} words, disk {used} % full".format(**said))
') || exit 65

printf '%s %s\n' "$STEPWIRE_TASK_ID" "$line" >> "$REPORT" || exit 81  # written, half written, or not at all?
printf '{"line": "%s"}\n' "$line"
