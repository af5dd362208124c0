#!/bin/sh
# collect.sh: waits for a load test in a cluster, collects its parts, and merges them.
#
#   collect.sh JOB [options of sluice report]
#   collect.sh sluice-load --html report.html --json report.json --fail-if 'ack.p99 > 500ms'
#
# Exits with the code of sluice report, for example 3 if a threshold is exceeded. The parts stay in ./JOB-parts.
set -eu
job=${1:?usage: collect.sh JOB [options of sluice report]}
shift
directory=$job-parts
mkdir -p "$directory"

until kubectl get job "$job" -o 'jsonpath={.status.conditions[?(@.status=="True")].type}' | grep -Eq 'Complete|Failed'; do
  sleep 5
done

parts=$(kubectl get job "$job" -o 'jsonpath={.spec.completions}')
index=0
while [ "$index" -lt "$parts" ]; do
  file=$directory/part-$((index + 1)).json
  pod=$(kubectl get pods -o name -l "batch.kubernetes.io/job-name=$job,batch.kubernetes.io/job-completion-index=$index" |
    tail -n 1)
  # A pod that failed early has no report. The table lists the missing parts.
  if [ -z "$pod" ] || ! kubectl logs "$pod" >"$file" || [ ! -s "$file" ]; then
    rm -f "$file"
    echo "part $((index + 1)) of $parts has left no report: see kubectl describe ${pod:-job/$job}" >&2
  fi
  index=$((index + 1))
done

exec sluice report --merge "$directory"/part-*.json "$@"
