#!/bin/sh
# build.sh DIRECTORY: builds the test microphone there without Swift: libTestDevice.so and testmic-control.
# For measurements: the package manager links the Swift runtime into every library, and this one is loaded into
# other people's programs, whose memory is being measured.
set -eu
target=${1:?usage: build.sh DIRECTORY}
tests=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$target"
flags="-std=gnu11 -O2 -Wall -Wextra -I$tests/TestDeviceControl/include"
${CC:-cc} $flags -DPIC -fPIC -shared -o "$target/libTestDevice.so" \
  "$tests"/TestDevice/*.c "$tests/TestDeviceControl/control.c" -lasound
${CC:-cc} $flags -o "$target/testmic-control" "$tests/testmic-control/main.c" "$tests/TestDeviceControl/control.c"
