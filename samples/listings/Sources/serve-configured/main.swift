// Serves uploads with some options, prints its events, and ends in order on SIGTERM.
//
//     swift run serve-configured :8080

import Dispatch
import Glibc
import UploadServer

let listen = CommandLine.arguments[1]

// 10. Serve uploads with options and a log. On SIGTERM, current requests may end first.
var configuration = UploadServer.Configuration(listen: [try ListenAddress(listen)], directory: "uploads") { event in
  print(event.jsonLine)
}
configuration.allowsDownloads = true
configuration.uploads.maximumSize = 10 << 30
configuration.retention = RecordingRetention(longestAge: .seconds(30 * 24 * 3600))
let server = try UploadServer(configuration: configuration)

signal(SIGTERM, SIG_IGN)  // the source below receives it instead
let termination = DispatchSource.makeSignalSource(signal: SIGTERM, queue: .global())
termination.setEventHandler { @Sendable in server.drain(within: .seconds(10)) }
termination.resume()
try await server.run()
