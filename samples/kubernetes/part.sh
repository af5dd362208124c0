#!/bin/sh
# part.sh: runs one part of a load test, in a pod of an indexed Job.
#
#   part.sh URL [options of sluice load]
#
# Requires PARTS (the number of pods) and JOB_COMPLETION_INDEX (the number of this pod from 0, which Kubernetes sets).
# If SERVICE names a headless service over the pods, the script waits until all pods are running, so that they start
# together. Standard output receives only the part's report, which collect.sh reads. Human-readable messages go to
# MESSAGES.
set -eu
: "${PARTS:?how many parts the run has}" "${JOB_COMPLETION_INDEX:?set by an indexed Job}"
messages=${MESSAGES:-/dev/termination-log}
report=$(mktemp)
trap 'rm -f "$report"' EXIT

# Prints the number of pods to which the service's name resolves.
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

# The Job counts its pods from 0, but --part counts from 1.
code=0
sluice load "$@" --part "$((JOB_COMPLETION_INDEX + 1))/$PARTS" --progress none --json "$report" \
  >/dev/null 2>>"$messages" || code=$?
cat "$report"
exit "$code"
