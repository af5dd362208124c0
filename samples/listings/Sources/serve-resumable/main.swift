// Serves uploads with the names of SwiftNIO and of Apple's talk.
//
//     swift run serve-resumable :8080
//     curl -T film.mkv http://localhost:8080/checksum

import Digests
import HTTPMessages
import UploadServer

let listen = CommandLine.arguments[1]
let checksum: AsynchronousHandler.Work = { request in
  var digest = RunningDigest(.sha256)
  for try await chunk in request.body { digest.update(chunk) }
  return .ok(digest.value().hexadecimal)
}

// 6. The same with the names of Apple's talk.
let uploadContext = HTTPResumableUploadContext(origin: "http://localhost:8080")
let uploadHandler = HTTPResumableUploadHandler(
  context: uploadContext,
  handlers: [
    { head in head.target.path == "/checksum" ? AsynchronousHandler(head: head, checksum) : nil }
  ])
try await UploadServer(listen: listen, uploadHandler).run()
