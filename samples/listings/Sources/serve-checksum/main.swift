// Serves uploads, and answers the content of one path with its checksum.
//
//     swift run serve-checksum :8080
//     curl -T film.mkv http://localhost:8080/checksum

import Digests
import UploadServer

let listen = CommandLine.arguments[1]

// 5. Serve uploads, with a handler of your own behind the resumable protocol.
try await UploadServer(listen: listen, directory: "uploads")
  .on(.put, "/checksum") { request in
    var digest = RunningDigest(.sha256)
    for try await chunk in request.body { digest.update(chunk) }
    return .ok(digest.value().hexadecimal)
  }
  .run()
