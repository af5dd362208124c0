#!/bin/sh
# Does the tarball's command run from any directory, and does its installer notice a system that cannot run it?
set -eu

repository=$(cd "$(dirname "$0")/.." && pwd)
scratch=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$scratch"' EXIT
fail() { echo "test-tarball: FAILED: $*"; exit 1; }

tarball=$(OUTPUT="$scratch" "$repository/packaging/build-tarball.sh")
mkdir "$scratch/a b"
tar -C "$scratch/a b" -xJf "$tarball"
cd "$scratch/a b"/*
[ "$(ls)" = "$(printf '%s\n' README bin install.sh share)" ] || fail "it contains $(ls)"
here=$(pwd)

# With no variable of this shell's, from inside, from elsewhere and through a link.
version=$(env -i bin/sluice --version)
[ "${version#sluice [0-9]}" != "$version" ] || fail "no version: $version"
cd /
[ "$(env -i "$here/bin/sluice" --version)" = "$version" ] || fail "it does not run from /"
ln -s "$here/bin/sluice" "$scratch/link"
[ "$(env -i "$scratch/link" --version)" = "$version" ] || fail "it does not run through a link"
"$here/bin/sluice" --help >/dev/null || fail "no help"
man=$(find "$here/share/man/man1" -name '*.1' | wc -l)
[ "$man" = "$("$here/bin/sluice" help man | wc -l)" ] || fail "$man manual pages"

# It streams.
cd "$scratch"
head -c 3000000 /dev/urandom >input
"$here/bin/sluice" serve --listen "unix:$scratch/socket" --directory recordings >events.log 2>server.log &
server=$!
for _ in $(seq 1500); do ! grep -q '^listening' server.log || break; sleep 0.02; done
"$here/bin/sluice" pipe http://localhost/s.bin --unix-socket "$scratch/socket" --stream-id s <input >client.log 2>&1 ||
  fail "sluice pipe: $(cat client.log)"
cmp input recordings/s-s.bin || fail "other bytes are stored"
kill "$server"
wait "$server" || fail "the server ended with $?"
server=

# Its installer.
env -i PATH="$PATH" "$here/install.sh" "$scratch/prefix" >/dev/null || fail "install.sh"
[ "$(env -i "$scratch/prefix/bin/sluice" --version)" = "$version" ] || fail "what is installed does not run"
[ -s "$scratch/prefix/share/man/man1/sluice-mic.1" ] || fail "no manual page is installed"
mkdir old
printf '#!/bin/sh\necho glibc 2.31\n' >old/getconf
chmod +x old/getconf
if PATH="$scratch/old:$PATH" "$here/install.sh" --check 2>message; then fail "an old glibc is accepted"; fi
grep -q 'glibc 2.31' message || fail "the message is: $(cat message)"

echo "test-tarball: passed; it has $(stat -c %s "$tarball") bytes, the command $(stat -c %s "$here/bin/sluice")"
