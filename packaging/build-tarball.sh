#!/bin/sh
# Builds the tarball for other distributions: `make tarball`. The Swift runtime is in the binary; glibc 2.35 and five
# libraries that every distribution has are the system's. install.sh in it checks both.
set -eu

repository=$(cd "$(dirname "$0")/.." && pwd)
output=${OUTPUT:-$repository/.build/packages}
name=sluice-$("$repository/packaging/version.sh")-linux-$(uname -m)
SOURCE_DATE_EPOCH=$(git -C "$repository" log -1 --format=%ct)
export SOURCE_DATE_EPOCH
umask 022

staging=$(mktemp -d)
trap 'rm -rf "$staging"' EXIT
root=$staging/$name

make --no-print-directory -C "$repository" install-built DESTDIR="$root" PREFIX= >/dev/null
strip --strip-unneeded --remove-section=.comment --remove-section=.note "$root/bin/sluice"
install -m 755 "$repository/packaging/install.sh" "$root/install.sh"
install -m 644 "$repository/packaging/README.tarball" "$root/README"
install -D -m 644 -t "$root/share/doc/sluice" "$repository/README.md" "$repository/CHANGELOG.md" \
  "$repository/packaging/debian/copyright"
install -D -m 644 -t "$root/share/doc/sluice/systemd" "$repository"/samples/systemd/*.service
install -D -m 644 -t "$root/share/doc/sluice/systemd/user" "$repository"/samples/systemd/user/*

mkdir -p "$output"
tar --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -C "$staging" -cJf \
  "$output/$name.tar.xz" "$name"
echo "$output/$name.tar.xz"
