#!/bin/sh
# Prints a unit of samples/systemd as the package installs it: for the installed command, a user that stays, and
# variables from /etc/default.
set -eu

name=$(basename "$1" .service)
sed -E \
  -e '/^#   sudo /d' \
  -e '/^#$/d' \
  -e 's|^DynamicUser=yes|User=sluice|' \
  -e "s|^(LoadCredential=.*)|EnvironmentFile=-/etc/default/$name\n\1|" \
  -e 's|^ExecStart=/usr/local/bin/(.*)|ExecStart=/usr/bin/\1 $SLUICE_OPTIONS|' \
  "$1"
