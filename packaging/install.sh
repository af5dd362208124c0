#!/bin/sh
# Installs what is beside it into PREFIX (default: /usr/local), if this system can run it.
#
#   ./install.sh [PREFIX]
#   ./install.sh --check
set -eu

here=$(cd "$(dirname "$0")" && pwd)
least=2.35

# Whether version $1 is at least $2.
is_least() { [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]; }

glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null | cut -d ' ' -f 2) || glibc=
if [ -z "$glibc" ]; then
  echo "install.sh: this system has no glibc. Sluice requires glibc $least or newer." >&2
  exit 1
fi
if ! is_least "$glibc" "$least"; then
  echo "install.sh: this system has glibc $glibc. Sluice requires glibc $least or newer." >&2
  exit 1
fi
missing=$(ldd "$here/bin/sluice" | sed -n 's/^[[:space:]]*\(.*\) => not found/\1/p')
if [ -n "$missing" ]; then
  echo "install.sh: libraries are missing:" $missing >&2
  echo "Install the packages that have them. Debian: libasound2 libcurl4 libjansson4 libnats3.4 libsqlite3-0 libssl3 libstdc++6." >&2
  exit 1
fi
"$here/bin/sluice" --version
[ "${1:-}" != --check ] || exit 0

prefix=${1:-/usr/local}
mkdir -p "$prefix/bin" "$prefix/share"
# A running command keeps its file.
cp "$here/bin/sluice" "$prefix/bin/sluice.new"
mv "$prefix/bin/sluice.new" "$prefix/bin/sluice"
cp -R "$here/share/." "$prefix/share"
echo "installed into $prefix"
