// What FoundationUploads costs. `make bench-foundation` runs it, turn by turn with what it is compared with.
//
//     foundation-uploads-benchmark upload FILE URL         a file by an upload task
//     foundation-uploads-benchmark download URL FILE       a file by a download task
//     foundation-uploads-benchmark pair BYTES BUFFER       bytes per second through a bound pair with delegates
//     foundation-uploads-benchmark pipe BYTES BUFFER       and through a pipe(2) with threads that block
//     foundation-uploads-benchmark pairs COUNT             resident memory in KiB while so many pairs come and go
//     foundation-uploads-benchmark memory                  says "ready" and waits for the end of its standard input

import FoundationUploads

let arguments = Array(CommandLine.arguments.dropFirst())
switch arguments.first {
case "upload" where arguments.count == 3:
  if let url = URL(string: arguments[2]) { upload(URL(fileURLWithPath: arguments[1]), to: url) }
case "download" where arguments.count == 3:
  if let url = URL(string: arguments[1]) { download(url, to: URL(fileURLWithPath: arguments[2])) }
case "pair" where arguments.count == 3, "pipe" where arguments.count == 3:
  if let bytes = Int(arguments[1]), let size = Int(arguments[2]) {
    measureStreams(arguments[0], bytes: bytes, bufferSize: size)
    exit(0)
  }
case "pairs" where arguments.count == 2:
  if let count = Int(arguments[1]) {
    countPairs(count)
    exit(0)
  }
case "memory":
  _ = URLSessionConfiguration.default
  FileHandle.standardOutput.write(Data("ready\n".utf8))
  while readLine() != nil {}
  exit(0)
default: break
}
FileHandle.standardError.write(Data("usage: see the first lines of main.swift\n".utf8))
exit(64)
