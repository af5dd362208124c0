#!/bin/sh
# virtual-microphone.sh [DIRECTORY]: a microphone for a machine that has none.
#
# Starts a separate PulseAudio server that has only a silent sink, and repeatedly plays a melody of four tones into it.
# ALSA captures the sink's input in real time, as the device `virtual`. Prints how to use the device. Runs until it is
# interrupted, its standard input is closed, or its parent ends. Removes all files that it creates.
#
# Needs the Debian packages pulseaudio, pulseaudio-utils, libasound2-plugins and python3.
set -eu

say() { printf '%s\n' "$*" >&2; }
for need in pulseaudio:pulseaudio paplay:pulseaudio-utils python3:python3 setpriv:util-linux; do
  command -v "${need%%:*}" >/dev/null || { say "${need%%:*} is missing: apt-get install ${need##*:}"; exit 69; }
done
ls /usr/lib/*/alsa-lib/libasound_module_pcm_pulse.so >/dev/null 2>&1 ||
  { say "ALSA's pulse plugin is missing: apt-get install libasound2-plugins"; exit 69; }

made=
if [ $# -gt 0 ]; then directory=$1; mkdir -p "$directory"; else directory=$(mktemp -d); made=yes; fi
directory=$(cd "$directory" && pwd)
server= player=
stop() {
  trap - EXIT INT TERM HUP
  [ -z "$player" ] || kill "$player" 2>/dev/null || true
  [ -z "$server" ] || kill "$server" 2>/dev/null || true
  wait
  if [ -n "$made" ]; then rm -rf "$directory"
  else rm -rf "$directory/native" "$directory/pulse" "$directory/melody.raw" "$directory/asound.conf" "$directory/.config"
  fi
}
trap stop EXIT
trap 'exit 0' INT TERM HUP

# The server neither reads the user's PulseAudio configuration nor connects to the user's server.
export HOME="$directory" XDG_CONFIG_HOME="$directory/.config" XDG_RUNTIME_DIR="$directory"
export PULSE_RUNTIME_PATH="$directory/pulse" PULSE_STATE_PATH="$directory/pulse"
# The kernel ends both programs when this shell dies, however it dies.
setpriv --pdeathsig TERM pulseaudio -n --daemonize=no --exit-idle-time=-1 --use-pid-file=no --log-level=error \
  -L "module-native-protocol-unix socket=$directory/native auth-anonymous=1" \
  -L "module-null-sink sink_name=mic format=s16le rate=48000 channels=1" >"$directory/pulseaudio.log" 2>&1 &
server=$!

cat >"$directory/asound.conf" <<END
</usr/share/alsa/alsa.conf>
pcm.virtual {
  type pulse
  server "unix:$directory/native"
  device "mic.monitor"
  hint { show on description "A virtual microphone: the input of a silent PulseAudio sink" }
}
END

# A minute of four tones, one second each, at -12 dBFS. Each tone has whole periods, so the melody repeats without a
# click.
python3 - "$directory/melody.raw" <<'END'
import array, math, sys
tones = (262, 330, 392, 523)
second = [array.array("h", (round(8192 * math.sin(2 * math.pi * tone * n / 48000)) for n in range(48000))) for tone in tones]
with open(sys.argv[1], "wb") as file:
    for number in range(60):
        second[number % 4].tofile(file)
END

tries=0
until paplay --server="unix:$directory/native" --device=mic --raw --format=s16le --rate=48000 --channels=1 \
  /dev/null 2>/dev/null; do
  kill -0 "$server" 2>/dev/null || { say "PulseAudio did not start:"; cat "$directory/pulseaudio.log" >&2; exit 69; }
  tries=$((tries + 1))
  [ "$tries" -lt 100 ] || { say "PulseAudio does not answer at $directory/native"; exit 69; }
  sleep 0.1
done

# Use one endless stream, because a new player for each repetition would leave a gap.
setpriv --pdeathsig TERM sh -c 'while cat "$1"; do :; done' melody "$directory/melody.raw" |
  setpriv --pdeathsig TERM paplay --server="unix:$directory/native" --device=mic --raw --format=s16le --rate=48000 \
    --channels=1 &
player=$!

say "A virtual microphone is playing. In another shell:"
say ""
say "  export ALSA_CONFIG_PATH=$directory/asound.conf"
say "  sluice mic http://localhost:8080/kitchen --device virtual"
say ""
# For programs: one line on standard output when it is ready.
printf 'ALSA_CONFIG_PATH=%s\n' "$directory/asound.conf"

# Until the parent closes our standard input, or forever on a terminal or /dev/null.
if [ -p /dev/stdin ]; then cat >/dev/null; else wait "$player"; fi
