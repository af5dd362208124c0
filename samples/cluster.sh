#!/bin/sh
# cluster.sh: shows that servers and brokers may die, on this machine, in about twenty seconds.
#
# Three brokers keep three replicas of each message. Three `sluice serve` processes use them behind HAProxy, which
# distributes connections to the servers by rotation. The script streams a virtual microphone, which plays a known
# melody. In the middle it kills a broker and a server (SIGKILL). Then it reads the stream from the brokers and compares
# every sample. Set SLUICE to the path of the command.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
sluice=${SLUICE:-$here/../.build/release/sluice}
broker=$(command -v nats-server || echo /usr/sbin/nats-server)
proxy=$(command -v haproxy || echo /usr/sbin/haproxy)
scratch=$(mktemp -d)
processes= microphone=
stop() {
  trap - EXIT INT TERM
  for process in $processes; do kill -KILL "$process" 2>/dev/null || true; done
  exec 9>&- # the virtual microphone ends with its standard input
  [ -z "$microphone" ] || wait "$microphone" 2>/dev/null || true
  rm -rf "$scratch"
}
trap stop EXIT
trap 'exit 130' INT TERM
say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
fail() { echo "cluster.sh: $*" >&2; exit 1; }
# Waits until a file contains a matching line, or the process has ended.
await() { # PROCESS FILE PATTERN
  until grep -q "$3" "$2" 2>/dev/null; do
    kill -0 "$1" 2>/dev/null || { cat "$2" >&2; exit 69; }
    sleep 0.1
  done
}

mkfifo "$scratch/stdin"
"$here/virtual-microphone.sh" "$scratch/microphone" <"$scratch/stdin" >"$scratch/ready" 2>"$scratch/microphone.log" &
microphone=$!
exec 9>"$scratch/stdin"
await "$microphone" "$scratch/ready" ALSA_CONFIG_PATH
ALSA_CONFIG_PATH=$(sed -n 's/^ALSA_CONFIG_PATH=//p' "$scratch/ready")
export ALSA_CONFIG_PATH

say "Three brokers, with three replicas of each message"
ports=$(python3 -c 'import socket
sockets = [socket.socket() for _ in range(7)]
for one in sockets: one.bind(("127.0.0.1", 0))
print(*[one.getsockname()[1] for one in sockets])')
set -- $ports
urls="nats://127.0.0.1:$1,nats://127.0.0.1:$2,nats://127.0.0.1:$3"
routes="nats://127.0.0.1:$4,nats://127.0.0.1:$5,nats://127.0.0.1:$6"
entrance=$7
start_broker() { # NUMBER CLIENT-PORT ROUTE-PORT
  printf 'server_name: n%s\nlisten: "127.0.0.1:%s"\njetstream { store_dir: "%s/n%s" }\ncluster { name: c, listen: "127.0.0.1:%s", routes: [%s] }\n' \
    "$1" "$2" "$scratch" "$1" "$3" "$routes" >"$scratch/n$1.conf"
  "$broker" -c "$scratch/n$1.conf" >"$scratch/n$1.log" 2>&1 9>&- &
  started=$!
  processes="$processes $started"
}
start_broker 1 "$1" "$4"; first_broker=$started
start_broker 2 "$2" "$5"
start_broker 3 "$3" "$6"; last_broker=$3
until grep -q 'JetStream cluster new metadata leader' "$scratch"/n?.log 2>/dev/null; do
  for number in $processes; do
    kill -0 "$number" 2>/dev/null || { cat "$scratch"/n?.log >&2; fail "a broker has ended"; }
  done
  sleep 0.1
done

say "\$ sluice serve --store $urls --replicas 3        (three times)"
servers=
for number in 1 2 3; do
  # The brokers need a moment until all of them have joined the cluster.
  for attempt in 1 2 3 4 5 6 7 8 9 10; do
    "$sluice" serve --listen 127.0.0.1:0 --store "$urls" --replicas 3 >"$scratch/s$number.jsonl" 2>"$scratch/s$number.log" 9>&- &
    server=$!
    until grep -q 'listening on' "$scratch/s$number.log" || ! kill -0 "$server" 2>/dev/null; do sleep 0.1; done
    kill -0 "$server" 2>/dev/null && break
    [ "$attempt" != 10 ] || { cat "$scratch/s$number.log" >&2; exit 69; }
    sleep 0.5
  done
  processes="$processes $server"
  [ "$number" != 1 ] || first_server=$server
  servers="$servers $(sed -n 's/.*listening on //p' "$scratch/s$number.log")"
done

{
  printf 'defaults\n mode http\n timeout connect 1s\n timeout client 1h\n timeout server 1h\n retries 3\n option redispatch\n'
  printf 'listen ingest\n bind 127.0.0.1:%s\n balance roundrobin\n option http-server-close\n' "$entrance"
  number=0
  for address in $servers; do
    number=$((number + 1))
    printf ' server s%s %s check inter 500ms\n' "$number" "$address"
  done
} >"$scratch/haproxy.cfg"
# haproxy returns when it listens.
"$proxy" -D -p "$scratch/haproxy.pid" -f "$scratch/haproxy.cfg" >"$scratch/haproxy.log" 2>&1 9>&- ||
  fail "haproxy: $(cat "$scratch/haproxy.log")"
processes="$processes $(cat "$scratch/haproxy.pid")"

say "\$ sluice mic http://127.0.0.1:$entrance/demo --duration 10s        (through HAProxy, which rotates between the servers)"
"$sluice" mic "http://127.0.0.1:$entrance/demo" --device virtual --stream-id demo --duration 10s --roll-over-after 1s \
  --retry-ceiling 500ms 9>&- &
client=$!
sleep 3
say "(a broker is killed: kill -9)"
kill -KILL "$first_broker"
sleep 3
say "(a server is killed: kill -9)"
kill -KILL "$first_server"
wait "$client" || fail "sluice mic ended with $?"

say "Events of the servers:"
cat "$scratch"/s?.jsonl
for number in 2 3; do
  grep -q '"event"' "$scratch/s$number.jsonl" || fail "server $number has served nothing"
done
"$here/jetstream/read-stream.py" "127.0.0.1:$last_broker" demo >"$scratch/demo.wav"
say "The stream, as read from the brokers:"
python3 "$here/check-recording.py" "$scratch/demo.wav" virtual
