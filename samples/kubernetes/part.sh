#!/bin/sh
# part.sh: one part of a load test, as one pod of an indexed Job runs it.
#
#   part.sh URL [options of sluice load]
#
# Wants PARTS (how many pods there are) and JOB_COMPLETION_INDEX (which one this is, from 0: Kubernetes sets it). With SERVICE, a
# headless service over the pods, it waits until all of them are there, so that they start together. Writes the part's report, and
# nothing else, to standard output, where collect.sh finds it; people's text goes to MESSAGES.
set -eu
: "${PARTS:?how many parts the run has}" "${JOB_COMPLETION_INDEX:?set by an indexed Job}"
messages=${MESSAGES:-/dev/termination-log}
report=$(mktemp)
trap 'rm -f "$report"' EXIT

# How many pods the service's name stands for.
present() { getent ahostsv4 "$SERVICE" | awk '{ addresses[$1] } END { print length(addresses) }'; }

if [ -n "${SERVICE:-}" ]; then
  waited=0
  until [ "$(present)" -ge "$PARTS" ]; do
    if [ "$waited" -ge "${WAIT_SECONDS:-300}" ]; then
      echo "only $(present) of $PARTS pods are there after $waited s: is the cluster large enough?" >>"$messages"
      exit 69
    fi
    sleep 1
    waited=$((waited + 1))
  done
fi

# The Job counts its pods from 0, --part from 1.
code=0
sluice load "$@" --part "$((JOB_COMPLETION_INDEX + 1))/$PARTS" --progress none --json "$report" \
  >/dev/null 2>>"$messages" || code=$?
cat "$report"
exit "$code"
