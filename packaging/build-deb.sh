#!/bin/sh
# Builds the Debian package from the release binary: `make deb`. Needs no network. The same commit gives the same bytes.
#
#   packaging/build-deb.sh [VERSION]
#
# VERSION is that of the package (default: of `sluice --version`, with the commit's time and name while the changelog
# calls that version unreleased). OUTPUT is the directory that the package is written to (default: .build/packages).
set -eu

repository=$(cd "$(dirname "$0")/.." && pwd)
output=${OUTPUT:-$repository/.build/packages}
command=$repository/.build/release/sluice
architecture=$(dpkg --print-architecture)
maintainer=$(git -C "$repository" log -1 --format='%an <%ae>')
SOURCE_DATE_EPOCH=$(git -C "$repository" log -1 --format=%ct)
export SOURCE_DATE_EPOCH
umask 022

version=${1:-$("$repository/packaging/version.sh")-1}
staging=$(mktemp -d)
trap 'rm -rf "$staging"' EXIT
root=$staging/debian/sluice
doc=$root/usr/share/doc/sluice

# What `make install` installs, where Debian wants it.
make --no-print-directory -C "$repository" install-built DESTDIR="$root" PREFIX=/usr >/dev/null
strip --strip-unneeded --remove-section=.comment --remove-section=.note "$root/usr/bin/sluice"
mv "$root/usr/share/zsh/site-functions" "$root/usr/share/zsh/vendor-completions"
gzip -9n "$root"/usr/share/man/man1/*

# The units of samples/systemd, for a user that the package makes and options from /etc/default.
for unit in sluice-mic sluice-serve; do
  mkdir -p "$root/usr/lib/systemd/system" "$root/etc/default"
  "$repository/packaging/unit.sh" "$repository/samples/systemd/$unit.service" \
    >"$root/usr/lib/systemd/system/$unit.service"
  install -m 644 "$repository/packaging/debian/$unit.default" "$root/etc/default/$unit"
done
# The agent of each user, who enables it or not.
mkdir -p "$root/usr/lib/systemd/user"
sed -E -e '/^#   /d' -e '/^#$/d' -e 's|/usr/local/bin/|/usr/bin/|' \
  "$repository/samples/systemd/user/sluice-agent.service" >"$root/usr/lib/systemd/user/sluice-agent.service"
install -m 644 "$repository/samples/systemd/user/sluice-agent.socket" "$root/usr/lib/systemd/user/"
install -d -m 755 "$root/etc/sluice"
install -D -m 644 "$repository/packaging/debian/lintian-overrides" "$root/usr/share/lintian/overrides/sluice"

mkdir -p "$doc"
install -m 644 "$repository/packaging/debian/copyright" "$repository/packaging/debian/README.Debian" "$doc"
gzip -9nc "$repository/CHANGELOG.md" >"$doc/changelog.gz"
{
  printf 'sluice (%s) unstable; urgency=medium\n\n' "$version"
  printf '  * Built from the sources of Sluice. The changes are in changelog.gz.\n\n'
  printf ' -- %s  %s\n' "$maintainer" "$(date -uR -d "@$SOURCE_DATE_EPOCH")"
} | gzip -9nc >"$doc/changelog.Debian.gz"

# What the binary needs of the system's libraries. libcurl's symbols do not show which version has the options that the
# client sets.
printf 'Source: sluice\nMaintainer: %s\n\nPackage: sluice\nArchitecture: any\nDescription: -\n' "$maintainer" \
  >"$staging/debian/control"
libraries=$(cd "$staging" && dpkg-shlibdeps -O --warnings=0 debian/sluice/usr/bin/sluice 2>/dev/null |
  sed -n 's/^shlibs:Depends=//p' | sed -E 's/libcurl4 \([^)]*\)/libcurl4 (>= 7.88)/')

mkdir -p "$root/DEBIAN"
(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
(cd "$root" && find etc -type f -printf '/%p\n' | sort) >"$root/DEBIAN/conffiles"
for script in postinst prerm postrm; do
  install -m 755 "$repository/packaging/debian/$script" "$root/DEBIAN/$script"
done
{
  printf 'Package: sluice\nVersion: %s\nArchitecture: %s\nMaintainer: %s\n' "$version" "$architecture" "$maintainer"
  printf 'Installed-Size: %s\n' "$(du -k -s --exclude=DEBIAN "$root" | cut -f 1)"
  printf 'Depends: %s, adduser\nPre-Depends: init-system-helpers (>= 1.54~)\n' "$libraries"
  cat "$repository/packaging/debian/control"
} >"$root/DEBIAN/control"

mkdir -p "$output"
dpkg-deb --root-owner-group -Zxz --build "$root" "$output/sluice_${version}_$architecture.deb" >/dev/null
echo "$output/sluice_${version}_$architecture.deb"
