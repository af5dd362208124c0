#!/bin/sh
# run.sh SECONDS: libFuzzer on the HTTP parser, from the corpus of its tests. Ends with an error at the first finding,
# which stays in .build/fuzz for a new test.
set -eu
cd "$(dirname "$0")/.."
mkdir -p .build/fuzz/corpus
swiftc -sanitize=fuzzer,address -O -parse-as-library -swift-version 6 -package-name sluice \
  Sources/UploadServer/HTTP/*.swift Fuzz/RequestParserFuzz/*.swift -o .build/fuzz/request-parser
.build/fuzz/request-parser -max_total_time="$1" -print_final_stats=1 -artifact_prefix=.build/fuzz/ \
  .build/fuzz/corpus Tests/UploadServerTests/Corpus
