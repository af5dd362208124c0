#!/bin/sh
# Prints the version of the packages: that of `sluice --version`; while the changelog calls it unreleased, with the time
# and the name of the commit behind it, so that a later build counts as newer and the release as newest.
set -eu

repository=$(cd "$(dirname "$0")/.." && pwd)
version=$("$repository/.build/release/sluice" --version | cut -d ' ' -f 2)
if grep -q "^## $version .*unreleased" "$repository/CHANGELOG.md"; then
  # --abbrev: as long as the shortest name that no other commit has, which depends on the clone.
  version=$version~git$(TZ=UTC git -C "$repository" log -1 --abbrev=12 \
    --date=format-local:%Y%m%d%H%M%S --format=%cd.%h)
fi
echo "$version"
