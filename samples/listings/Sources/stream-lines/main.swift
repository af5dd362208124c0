// Streams a line with the time, once per second.
//
//     swift run stream-lines http://localhost:8080/lines

import Foundation
import LiveStreaming

let url = CommandLine.arguments[1]
let session = try UploadSession()

// 3. Stream a body that never ends. `write` suspends while the buffer is full.
try await session.withStream(to: url, contentType: "text/plain") { stream in
  while !Task.isCancelled {
    try await stream.write("\(Date.now)\n")
    try await Task.sleep(for: .seconds(1))
  }
}
