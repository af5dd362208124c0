// Streams two lines with settings of its own.
//
//     swift run stream-configured http://localhost:8080/lines

import LiveStreaming

let url = CommandLine.arguments[1]
let session = try UploadSession()
@Sendable func currentToken() -> String? { nil }

// The same with settings: a buffer for half an hour at 1 kB/s, and a token that may change.
var configuration = LiveStreamConfiguration(to: url, contentType: "text/plain")
configuration.buffer = .time(.seconds(1800), bytesPerSecond: 1000)
configuration.bearerToken = { currentToken() }
try await session.withStream(configuration: configuration) { stream in
  try await stream.write("line 1\n")
  try await stream.write("line 2\n")
}
