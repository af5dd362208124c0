#!/bin/sh
# demo.sh: shows the purpose of Sluice on this machine, in about twelve seconds.
#
# Streams a microphone to `sluice serve`, kills the server in the middle (SIGKILL), starts it again, and checks the
# recording. On a machine with a sound card, the microphone is the default device. Otherwise it is a virtual microphone
# that plays a known melody. Set SLUICE to the path of the command. The recording stays in ./recordings.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
sluice=${SLUICE:-$here/../.build/release/sluice}
recordings=$PWD/recordings
scratch=$(mktemp -d)
mkdir -p "$recordings"
server= microphone=
stop() {
  trap - EXIT INT TERM
  [ -z "$server" ] || kill "$server" 2>/dev/null || true
  exec 9>&- # the virtual microphone ends with its standard input
  [ -z "$microphone" ] || wait "$microphone" 2>/dev/null || true
  rm -rf "$scratch"
}
trap stop EXIT
trap 'exit 130' INT TERM
say() { printf '\n\033[1m%s\033[0m\n' "$*"; }

if [ -e /proc/asound/cards ] && arecord -l 2>/dev/null | grep -q '^card'; then
  device=default
  say "Microphone: the sound card's default device."
else
  say "No sound card here: a private virtual microphone plays a melody."
  mkfifo "$scratch/stdin"
  "$here/virtual-microphone.sh" "$scratch/microphone" <"$scratch/stdin" >"$scratch/ready" 2>"$scratch/microphone.log" &
  microphone=$!
  exec 9>"$scratch/stdin"
  until grep -q ALSA_CONFIG_PATH "$scratch/ready"; do
    kill -0 "$microphone" 2>/dev/null || { cat "$scratch/microphone.log" >&2; exit 69; }
    sleep 0.1
  done
  ALSA_CONFIG_PATH=$(sed -n 's/^ALSA_CONFIG_PATH=//p' "$scratch/ready")
  export ALSA_CONFIG_PATH
  device=virtual
fi

serve() { # the kernel chooses the port at first; later starts use the same port
  "$sluice" serve --listen "127.0.0.1:$1" --directory "$recordings" >>"$scratch/server.jsonl" 2>"$scratch/server.log" 9>&- &
  server=$!
  until grep -q 'listening on' "$scratch/server.log"; do
    kill -0 "$server" 2>/dev/null || { cat "$scratch/server.log" >&2; exit 69; }
    sleep 0.05
  done
}

serve 0
port=$(sed -n 's/.*listening on .*:\([0-9]*\)$/\1/p' "$scratch/server.log")
say "\$ sluice serve --listen 127.0.0.1:$port --directory recordings"
say "\$ sluice mic http://127.0.0.1:$port/demo --device $device --duration 10s"
(
  sleep 4
  say "(the server is killed: kill -9)" >&2
) &
"$sluice" mic "http://127.0.0.1:$port/demo" --device "$device" --duration 10s --retry-ceiling 1s 9>&- &
client=$!
sleep 4
kill -KILL "$server"
wait "$server" 2>/dev/null || true
sleep 1
say "(the server is started again)"
serve "$port"
wait "$client"

say "Events of the server:"
cat "$scratch/server.jsonl"
file=$recordings/$(sed -n 's/.*"event":"ended".*"file":"\([^"]*\)".*/\1/p' "$scratch/server.jsonl" | tail -n 1)
say "Recording: $file"
python3 "$here/check-recording.py" "$file" "$device"
