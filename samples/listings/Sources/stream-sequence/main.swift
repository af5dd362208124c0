// Streams three lines of a sequence, and ends the stream.
//
//     swift run stream-sequence http://localhost:8080/lines

import LiveStreaming

let url = CommandLine.arguments[1]
let session = try UploadSession()
let (lines, end) = AsyncStream.makeStream(of: String.self)
for number in 1...3 { end.yield("line \(number)\n") }
end.finish()

// The same with an end: the closure returns when `lines` has finished.
let summary = try await session.withStream(to: url, contentType: "text/plain") { stream in
  for await line in lines { try await stream.write(line) }
}

print(summary.progress.acknowledged)
