// Tests how a client reacts to 104 (Upload Resumption Supported) and to other interim responses.

import HTTPMessages
import Testing

@testable import ResumableUploads

@Suite("The client receives a 104") struct ClientInterimTests {
  private static let upload = ClientScript.upload

  @Test(
    "a 104 with no version, another version or an unreadable version is ignored (draft, section Draft Version Identification)",
    arguments: [nil, "7", "9", "\"8\"", "8.0", ""])
  func versionMismatch(_ version: String?) {
    var client = ClientScript.live(500)
    client.start()
    var fields: HeaderFields = ["Upload-Limit": "max-append-size=10", "Upload-Offset": "0"]
    if let version { fields.append("Upload-Draft-Interop-Version", version) }
    let answer = ClientAnswer(status: 104, fields: fields, location: Self.upload)
    #expect(client.machine.received(interim: answer, sentUpTo: 0) == nil)
    #expect(client.machine.uploadURL == nil && client.machine.limits == UploadLimits())
    #expect(!client.machine.isVersionSettled)
    client.lose()
    #expect(client.next == "CREATE", "there is nothing to continue")
  }

  @Test(
    "the RFC's 104 has no version, and a client of the RFC accepts no other (draft, section Draft Version Identification)"
  )
  func rfc() {
    for (fields, isTaken) in [([:], true), (["Upload-Draft-Interop-Version": "8"], false)] as [(HeaderFields, Bool)] {
      var client = ClientScript.live(500) { $0.version = .none }
      client.start()
      #expect(client.fields["Upload-Draft-Interop-Version"] == nil)
      let answer = ClientAnswer(status: 104, fields: fields, location: Self.upload)
      _ = client.machine.received(interim: answer, sentUpTo: 0)
      #expect((client.machine.uploadURL == Self.upload) == isTaken)
    }
  }

  @Test("100, 102, 103 and 199 have no effect", arguments: [100, 102, 103, 199])
  func others(_ status: Int) {
    var client = ClientScript.live(500)
    client.start()
    #expect(client.interim(["Upload-Limit": "max-size=1"], location: Self.upload, status: status) == nil)
    #expect(client.machine.uploadURL == nil && client.machine.limits == UploadLimits())
  }

  @Test("progress is an acknowledgement: bytes before Upload-Offset are free (draft, sections Offset, Status Code 104)")
  func progress() {
    var client = ClientScript.created(500)
    client.sendAll()
    client.interim(["Upload-Offset": "120"])
    #expect(client.machine.acknowledged == 120)
    client.interim(["Upload-Offset": "90"])
    #expect(client.machine.acknowledged == 120, "a late one takes nothing back")
    client.interim(["Upload-Offset": "500"])
    #expect(client.machine.acknowledged == 500)
  }

  @Test("in an optimistic creation it counts after the Location, because without one, all bytes would be sent again")
  func progressOfCreation() {
    var client = ClientScript.file(500)
    client.start()
    client.sendAll()
    client.interim(["Upload-Offset": "100"])
    #expect(client.machine.acknowledged == 0)
    client.interim(["Upload-Offset": "100"], location: Self.upload)
    #expect(client.machine.acknowledged == 100)
  }

  @Test("progress beyond the sent bytes frees nothing, and is reported (draft, section Offset)")
  func impossible() {
    var client = ClientScript.created(500)
    client.send(upTo: 100)
    _ = client.machine.takeNotes()
    client.interim(["Upload-Offset": "101"])
    #expect(client.machine.acknowledged == 0 && client.machine.takeNotes() == [.impossibleOffset(101)])
  }

  @Test(
    "an Upload-Offset that is not a non-negative Integer is ignored (draft, section Offset)",
    arguments: ["-1", "1.5", "x", "5, 5"])
  func noOffset(_ text: String) {
    var client = ClientScript.created(500)
    client.sendAll()
    client.interim(["Upload-Offset": text])
    #expect(client.machine.acknowledged == 0)
  }

  @Test("a 104 outside a creation or an append has no effect")
  func late() {
    var client = ClientScript.created(500)
    client.sendAll()
    client.lose()
    #expect(client.next == "HEAD")
    client.interim(["Upload-Offset": "500"], location: ClientScript.other)
    #expect(client.machine.acknowledged == 0 && client.machine.uploadURL == Self.upload)
  }

  @Test("a Location in the progress of an append has no effect (draft, section Upload Append)")
  func locationOfAppend() {
    var client = ClientScript.created(500)
    #expect(client.interim(["Upload-Offset": "0"], location: ClientScript.other) == nil)
    #expect(client.machine.uploadURL == Self.upload)
  }

  @Test("offsets are those of the upload, which may begin in the middle of the stream")
  func base() {
    var client = ClientScript.created(500)
    client.release(upTo: 400)
    client.lose()
    client.answer(404)
    client.answer(201, location: ClientScript.other)
    #expect(client.next == "PATCH 0" && client.request?.content == .bytes(from: 400, maximum: nil))
    client.sendAll()
    client.interim(["Upload-Offset": "60"])
    #expect(client.machine.acknowledged == 460)
  }
}
