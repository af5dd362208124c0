# What a machine sees of the package, from its installation to its purge. Run as root of a root that is thrown away.
# Waits are for what the programs do, and bounded.
set -eu

cd /test
old=$(ls ./*-1_*.deb)
new=$(ls ./*-2_*.deb)
recordings=/var/lib/sluice
step=

say() { step=$*; echo "- $step"; }
fail() { echo "FAILED: $step: $*"; exit 1; }
trap '[ $? = 0 ] || { echo "FAILED: $step"; tail -n 20 /test/*.log; }' EXIT

# Tries a command again and again, for at most half a minute.
await() {
  for _ in $(seq 1500); do
    if "$@"; then return; fi
    sleep 0.02
  done
  fail "it never came about: $*"
}

has_line() { grep -q "$1" "$2" 2>/dev/null; }
# Whether the stream has this number of bytes.
has_stored() { [ "$(cat "$recordings"/live-l.part 2>/dev/null | wc -c)" = "$1" ]; }

# Starts a server; its address is in $address, its process in $server.
serve() {
  : >server.log
  # No function of the shell's: $! would be a shell in between. Nor the feed's end, which would never be closed.
  setpriv --reuid sluice --regid sluice --clear-groups \
    sluice serve --listen "$1" --directory "$recordings" >events.log 2>server.log 9>&- &
  server=$!
  await has_line '^listening on' server.log
  address=$(sed -n 's/^listening on //p' server.log)
}

# Ends it as systemd does, and checks with which code it ends.
stop() {
  kill -TERM "$server"
  wait "$server" || fail "the server ended with $?"
}

say "the package needs the libraries that it names"
dpkg -i "$old" >dpkg.log 2>&1 || { cat dpkg.log; fail "dpkg -i"; }
ldd /usr/bin/sluice | grep 'not found' && fail "a library is missing"
sluice --version | grep -q '^sluice [0-9]' || fail "no version"

say "manual pages, completions, units and settings are there"
for file in /usr/share/man/man1/sluice-serve.1.gz /usr/share/bash-completion/completions/sluice \
  /usr/share/zsh/vendor-completions/_sluice /usr/share/fish/vendor_completions.d/sluice.fish \
  /usr/lib/systemd/system/sluice-serve.service /usr/lib/systemd/system/sluice-mic.service \
  /etc/default/sluice-serve /etc/default/sluice-mic; do
  # mmdebstrap's roots keep documentation; some containers do not.
  [ -s "$file" ] || [ "${file#/usr/share/man}" != "$file" ] || fail "$file"
done
[ "$(stat -c %U:%a "$recordings")" = sluice:750 ] || fail "the directory of the recordings"
# Each command of a unit is one that the command understands.
for unit in serve mic; do
  sed -n 's/^ExecStart=//p' "/usr/lib/systemd/system/sluice-$unit.service" | grep -o -- ' --[a-z-]*' | sort -u |
    while read -r option; do sluice "$unit" --help | grep -q -e "$option" || fail "$unit has no $option"; done
done

say "what is piped into the installed server is stored, byte for byte"
serve 127.0.0.1:0
head -c 5000000 /dev/urandom >input
sluice pipe "http://$address/whole.bin" --stream-id w <input >client.log 2>&1 || fail "sluice pipe ended with $?"
cmp input "$recordings/whole-w.bin" || fail "other bytes are stored"
sluice verify "$recordings" >verify.log 2>&1 || fail "sluice verify ended with $?"

# systemd does not run here. The package's requests to it are recorded, regardless of a container's policy.
rm -f /usr/sbin/policy-rc.d
mkdir -p /run/systemd/system /test/bin
printf '#!/bin/sh\necho "$*" >>/test/systemctl.log\n' >/test/bin/systemctl
chmod +x /test/bin/systemctl
PATH=/test/bin:$PATH
asked() { grep -q -e "$1" /test/systemctl.log; }

say "an upgrade keeps the server and the stream running"
mkfifo feed
sluice pipe "http://$address/live.bin" --stream-id l --progress json <feed >client.log 2>&1 &
client=$!
exec 9>feed
head -c 1000000 input >&9
await has_stored 1000000
dpkg -i "$new" >dpkg.log 2>&1 || { cat dpkg.log; fail "dpkg -i"; }
kill -0 "$server" || fail "the server is gone"
asked '^try-restart sluice-serve.service$' || fail "systemd is not asked to restart the server, if it runs"
if asked 'restart.*sluice-mic'; then fail "systemd is asked to restart the microphone"; fi
grep -q 'systemctl restart sluice-mic' dpkg.log || fail "nothing is reported about the microphone"
tail -c +1000001 input | head -c 1000000 >&9
await has_stored 2000000

say "the old server drains, and the new one continues the stream at the same offset"
stop
serve "$address"
tail -c +2000001 input >&9
exec 9>&-
wait "$client" || fail "sluice pipe ended with $?"
cmp input "$recordings/live-l.bin" || fail "other bytes are stored"
stop
(cd "$recordings" && sha256sum ./*.bin) >sums

say "removal keeps recordings and settings"
echo 'SLUICE_LISTEN=127.0.0.1:9' >/etc/default/sluice-serve
echo 0000 >/etc/sluice/tokens
dpkg -r sluice >dpkg.log 2>&1 || { cat dpkg.log; fail "dpkg -r"; }
[ ! -e /usr/bin/sluice ] || fail "the command is still there"
asked '^stop sluice-mic.service sluice-serve.service$' || fail "systemd is not asked to stop the services"
grep -q 127.0.0.1:9 /etc/default/sluice-serve || fail "the settings are gone"
(cd "$recordings" && sha256sum --quiet -c /test/sums) || fail "recordings have changed"

say "purging removes the settings, and reports what it leaves"
dpkg -P sluice >dpkg.log 2>&1 || { cat dpkg.log; fail "dpkg -P"; }
[ ! -e /etc/default/sluice-serve ] || fail "the settings are still there"
for word in /var/lib/sluice /etc/sluice 'the user sluice'; do
  grep -q "$word" dpkg.log || { cat dpkg.log; fail "nothing is reported about $word"; }
done
(cd "$recordings" && sha256sum --quiet -c /test/sums) || fail "recordings have changed"

say "without recordings nothing stays"
dpkg -i "$old" >dpkg.log 2>&1 || { cat dpkg.log; fail "dpkg -i"; }
rm -r "$recordings" /etc/sluice/tokens
dpkg -P sluice >dpkg.log 2>&1 || { cat dpkg.log; fail "dpkg -P"; }
[ ! -e "$recordings" ] && [ ! -e /etc/sluice ] || fail "a directory is still there"
if getent passwd sluice >/dev/null; then fail "the user is still there"; fi
