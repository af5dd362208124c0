// Beginnings of a client's upload that several suites share.

import HTTPMessages

@testable import ResumableUploads

extension ClientScript {
  /// A stream of 500 bytes so far, of which 300 were sent and 200 are acknowledged.
  static func streaming(_ streamID: String? = nil) -> ClientScript {
    var client = live(500) { $0.streamID = streamID }
    client.start()
    client.answer(201, streamID.map { ["Stream-ID": $0] } ?? [:], location: upload)
    client.send(upTo: 300)
    client.interim(["Upload-Offset": "200"])
    _ = client.machine.takeNotes()
    return client
  }

  /// A file of 500 bytes that is sent with its creation. 300 bytes were sent, and 200 are acknowledged.
  static func creatingFile() -> ClientScript {
    var client = file(500)
    client.start()
    client.interim(location: upload)
    client.send(upTo: 300)
    client.interim(["Upload-Offset": "200"])
    return client
  }

  /// Answers a creation with an upload resource, and an append with an end that comes too early. Returns whether it was
  /// an append.
  mutating func endEarly() -> Bool {
    guard next == "CREATE" else {
      answer(200, ["Upload-Complete": "?1"], isEarly: true)
      return true
    }
    answer(201, location: Self.upload)
    return false
  }
}
