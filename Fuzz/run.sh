#!/bin/sh
# run.sh SECONDS: libFuzzer on every target of this folder, one after another, SECONDS in total (compiling them not
# counted). Ends with an error at the first finding, which stays in .build/fuzz/TARGET for a new test.
#
# A target is a folder with Swift files that define LLVMFuzzerTestOneInput, and a file `target` of shell assignments,
# with paths from the package's root: SOURCES, what is compiled together with it; CORPUS, the folders that it starts
# from; FLAGS, more of libFuzzer's own options, if any; and MODULE, the name that the files import, if not HTTPMessages.
# They are not targets of the package, because they link only with -sanitize=fuzzer.
set -eu
cd "$(dirname "$0")/.."
targets=$(ls -d Fuzz/*/)
share=$(($1 / $(echo "$targets" | wc -l)))
for folder in $targets; do
  name=$(basename "$folder")
  SOURCES= CORPUS= FLAGS= MODULE=HTTPMessages
  . "./${folder}target"
  mkdir -p ".build/fuzz/$name/corpus"
  echo "== $name"
  # Unquoted: they are lists, and have patterns in them. Everything is one module here, under the name that the files
  # import.
  swiftc -use-ld=lld -sanitize=fuzzer,address -O -parse-as-library -swift-version 6 -package-name sluice -module-name $MODULE \
    $SOURCES "$folder"*.swift -o ".build/fuzz/$name/run"
  # At least a second: 0 would mean without end.
  ".build/fuzz/$name/run" -max_total_time=$((share > 0 ? share : 1)) -print_final_stats=1 \
    -artifact_prefix=".build/fuzz/$name/" $FLAGS ".build/fuzz/$name/corpus" $CORPUS
done
