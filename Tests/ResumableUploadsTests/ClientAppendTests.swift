// Tests how a client appends, and how it reacts to each answer (draft, section Upload Append).

import HTTPMessages
import Testing

@testable import ResumableUploads

@Suite("The client appends") struct ClientAppendTests {
  // MARK: What is sent

  @Test("an append is a PATCH of partial-upload with offset and completeness (draft, section Upload Append)")
  func request() {
    let client = ClientScript.created(500)
    #expect(client.request?.method == "PATCH" && client.request?.url == ClientScript.upload)
    #expect(client.fields["Content-Type"] == "application/partial-upload")
    #expect(client.fields["Upload-Offset"] == "0" && client.fields["Upload-Complete"] == "?0")
  }

  @Test("an append asks intermediaries to forward it incrementally (draft, section Incremental Transfer)")
  func incremental() {
    #expect(ClientScript.created(500).fields["Incremental"] == "?1")
  }

  @Test("each version that defines the media type sends it, and each version uses its own field for completeness")
  func versions() {
    for version in InteropVersion.drafts {
      let client = ClientScript.created(500) { $0.version = version }
      #expect((client.fields["Content-Type"] == "application/partial-upload") == ((version.number ?? 9) >= 6))
      #expect(client.fields[version.completenessFieldName] == (version.number == 3 ? "?1" : "?0"))
    }
  }

  @Test("content that reaches the end of the representation completes it (draft, section Upload Append)")
  func end() {
    let client = ClientScript.created(500, isFinished: true)
    #expect(client.fields["Upload-Complete"] == "?1" && client.maximum == 500)
  }

  @Test("an append without content completes a fully sent upload (draft, section Upload Append)")
  func emptyEnd() {
    var client = ClientScript.created(500)
    client.sendAll()
    client.supply.isFinished = true
    client.answer(204, ["Upload-Complete": "?0"])
    #expect(client.next == "PATCH 500" && client.maximum == 0 && client.fields["Upload-Complete"] == "?1")
    client.answer(200, ["Upload-Complete": "?1"])
    #expect(client.next == "completed")
  }

  @Test("the client reports the length of a stream once, as soon as it is known (draft, section Length)")
  func length() {
    var client = ClientScript.created(500) { $0.appendSize = 300 }
    #expect(client.fields["Upload-Length"] == nil)
    client.sendAll()
    client.grow(to: 550, isFinished: true)
    client.answer(204, ["Upload-Complete": "?0"])
    #expect(client.next == "PATCH 300" && client.fields["Upload-Length"] == "550")
    client.send(upTo: 400)
    client.lose()
    client.answer(204, ["Upload-Offset": "400"])
    #expect(client.next == "PATCH 400" && client.fields["Upload-Length"] == nil)
    // Without content the request has a Content-Length of 0, which means the same.
    client = .created(0, isFinished: true)
    #expect(client.maximum == 0 && client.fields["Upload-Length"] == nil)
  }

  @Test(
    "the next append begins at once, at the offset that the last 2xx acknowledged (draft, section Upload Append)"
  )
  func rollOver() {
    var client = ClientScript.created(500)
    client.send(upTo: 200)
    client.answer(204, ["Upload-Complete": "?0"])
    #expect(client.machine.acknowledged == 200)
    #expect(client.next == "PATCH 200" && client.request?.content == .bytes(from: 200, maximum: nil))
    client.sendAll()
    client.answer(204)
    #expect(client.machine.acknowledged == 500 && client.next == "await 501")
    client.grow(to: 501)
    #expect(client.next == "PATCH 500")
  }

  // MARK: Final responses

  @Test(
    "a 2xx to ?0 means appended, with an incomplete state, without any, or with its offset (draft, section Upload Append)",
    arguments: [["Upload-Complete": "?0"], [:], ["Upload-Offset": "500"], ["Upload-Incomplete": "?1"]] as [HeaderFields]
  )
  func appended(_ fields: HeaderFields) {
    var client = ClientScript.created(500)
    client.sendAll()
    client.answer(201, fields)
    #expect(client.machine.acknowledged == 500 && client.next == "await 501")
  }

  @Test("a 2xx with an offset that differs from the sent one acknowledges nothing, and the client requests the offset")
  func otherOffset() {
    for claim in ["499", "501", "0"] {
      var client = ClientScript.created(500)
      client.sendAll()
      client.answer(204, ["Upload-Offset": claim])
      #expect(client.next == "HEAD" && client.machine.acknowledged == 0, "\(claim)")
    }
  }

  @Test("a 2xx before the content's end acknowledges nothing, and the client requests the offset")
  func early() {
    for isFinished in [false, true] {
      var client = ClientScript.created(500, isFinished: isFinished)
      client.send(upTo: 100)
      client.answer(204, isEarly: true)
      #expect(client.next == "HEAD" && client.machine.acknowledged == 0)
    }
  }

  @Test(
    "a 2xx to ?1 means done, unless it reports incomplete, because many servers omit the state",
    arguments: [[:], ["Upload-Complete": "?1"], ["Upload-Incomplete": "?0"], ["Upload-Offset": "500"]] as [HeaderFields]
  )
  func done(_ fields: HeaderFields) {
    for version in InteropVersion.drafts {
      var client = ClientScript.created(500, isFinished: true) { $0.version = version }
      client.sendAll()
      client.answer(200, fields)
      #expect(client.next == "completed" && client.machine.acknowledged == 500, "\(version.number ?? 0)")
    }
  }

  @Test("a 2xx to ?1 that reports incomplete is not an end: the client requests the offset, and completes the upload")
  func notDone() {
    var client = ClientScript.created(500, isFinished: true)
    client.sendAll()
    client.answer(204, ["Upload-Complete": "?0"])
    #expect(client.next == "HEAD")
    client.answer(204, ["Upload-Offset": "500", "Upload-Complete": "?0"])
    #expect(client.next == "PATCH 500" && client.maximum == 0 && client.fields["Upload-Complete"] == "?1")
  }

  @Test(
    "an error with Upload-Complete: ?1 comes from processing: resuming would not resolve it (draft, section Upload Append)",
    arguments: [400, 401, 404, 409, 413, 422, 500, 503])
  func processing(_ status: Int) {
    var client = ClientScript.created(500, isFinished: true)
    client.sendAll()
    #expect(client.answer(status, ["Upload-Complete": "?1"]) == .fail(.processingFailed(status: status)))
    #expect(client.machine.isForgotten)
    // SwiftNIO uses the other field for this.
    client = .created(500, isFinished: true)
    client.sendAll()
    #expect(client.answer(status, ["Upload-Incomplete": "?0"]) == .fail(.processingFailed(status: status)))
  }

  @Test("after a 5xx or no response, the client retrieves the offset after a pause (draft, section Upload Append)")
  func retryable() {
    for status in [408, 423, 429, 500, 502, 503, 504, 507, nil] {
      var client = ClientScript.created(500)
      client.send(upTo: 200)
      if let status {
        #expect(client.answer(status) == .wait)
        client.goOn()
      } else {
        client.lose()
      }
      #expect(client.next == "HEAD")
      client.answer(204, ["Upload-Offset": "150"])
      #expect(client.next == "PATCH 150" && client.request?.content == .bytes(from: 150, maximum: nil))
    }
  }

  @Test(
    "other 4xx are final (draft, section Upload Append)",
    arguments: [405, 411, 415, 422])
  func refused(_ status: Int) {
    var client = ClientScript.created(500)
    #expect(client.answer(status) == .fail(.refused(status: status)))
    #expect(!client.machine.isForgotten, "with the right credentials, a later process may continue")
  }

  @Test(
    "307 and 308 redirect to another URI, where the client first requests the offset (draft, section Upload Append)",
    arguments: [307, 308])
  func redirect(_ status: Int) {
    var client = ClientScript.created(500)
    client.answer(status, location: ClientScript.other)
    #expect(client.next == "HEAD" && client.request?.url == ClientScript.other)
    client.answer(204, ["Upload-Offset": "0"])
    #expect(client.next == "PATCH 0" && client.request?.url == ClientScript.other)
    var strayed = client
    #expect(strayed.answer(status) == .fail(.noLocation))
    // A 307 is temporary, a 308 is permanent.
    client.lose()
    #expect(client.next == "HEAD")
    #expect(client.request?.url == (status == 308 ? ClientScript.other : ClientScript.upload))
  }

  @Test("a 308 is trusted once an upload is found there, because a portal redirects every request")
  func redirectToNowhere() {
    var client = ClientScript.created(500)
    client.send(upTo: 300)
    client.interim(["Upload-Offset": "200"])
    client.answer(308, location: ClientScript.other)
    #expect(client.next == "HEAD" && client.request?.url == ClientScript.other)
    #expect(client.answer(200) == .wait, "a page, and no offset")
    client.goOn()
    #expect(client.next == "HEAD" && client.request?.url == ClientScript.upload)
  }

  @Test("a redirect loop ends")
  func circle() {
    var client = ClientScript.created(500)
    for number in 0..<100 where client.failure == nil {
      client.answer(308, location: "http://host/uploads/\(number % 2)")
    }
    #expect(client.failure == .noProgress(status: 308))
    client = .created(500)
    client.send(upTo: 300)
    client.interim(["Upload-Offset": "200"])
    var requests = 0
    while case .send = client.last, requests < 100 {
      client.answer(307, location: "http://host/uploads/\(requests % 2)")
      requests += 1
    }
    #expect(client.next == "wait" && requests < 20, "and is an outage once the server has acknowledged bytes")
  }

  // MARK: Conflicts

  @Test("after a 409 with an offset, the client still requests the offset (draft, section Upload Append)")
  func conflict() {
    var client = ClientScript.created(500)
    client.sendAll()
    client.answer(409, ["Upload-Offset": "100", "Upload-Complete": "?0"])
    #expect(client.next == "HEAD")
    client.answer(204, ["Upload-Offset": "100"])
    #expect(client.next == "PATCH 100")
  }

  @Test(
    "the client requests the offset after a 409 without an offset, and after an interruption with a 400",
    arguments: [400, 409])
  func conflictWithoutOffset(_ status: Int) {
    var client = ClientScript.created(500)
    client.sendAll()
    client.answer(status)
    #expect(client.next == "HEAD")
  }

  @Test("after a 409 that destroyed the upload, HEAD reports it, and a new upload begins with the buffered bytes")
  func conflictDestroys() {
    var client = ClientScript.created(500)
    client.sendAll()
    client.interim(["Upload-Offset": "200"])
    client.release(upTo: 200)
    client.answer(409, ["Upload-Offset": "500", "Upload-Complete": "?0"])
    client.insist(404)
    #expect(client.next == "CREATE" && client.machine.base == 200)
    client.answer(201, location: ClientScript.other)
    #expect(client.newParts() == [.gone])
  }

  @Test("a 409 with an offset is about the upload, whatever its completeness")
  func conflictOfComplete() {
    var client = ClientScript.created(500, isFinished: true)
    client.sendAll()
    client.answer(409, ["Upload-Offset": "100", "Upload-Complete": "?1"])
    #expect(client.next == "HEAD")
  }

  @Test("responses without progress end it after a while", arguments: [400, 409, 204])
  func noProgress(_ status: Int) {
    var client = ClientScript.created(500)
    var count = 0
    while client.failure == nil, count < 100 {
      client.send(upTo: 100)
      if client.answer(status, status == 204 ? ["Upload-Offset": "7777"] : [:]) == .wait { client.goOn() }
      if client.next == "HEAD" { client.answer(204, ["Upload-Offset": "0"]) }
      count += 1
    }
    #expect(client.failure == .noProgress(status: status) && count < 20)
  }

  @Test("an offset beyond the range of a structured field is never sent: uploads end at a petabyte")
  func petabyte() {
    let largest: UInt64 = 999_999_999_999_999
    var client = ClientScript.live(largest + 10)
    client.perform(client.machine.resume(url: ClientScript.upload, base: 0, version: .newest))
    client.answer(204, ["Upload-Offset": "\(largest)"])
    #expect(client.next == "PATCH \(largest)")
    client.sendAll()
    client.answer(204)
    client.grow(to: largest + 20)
    #expect(client.failure == .tooLarge(limit: largest))
  }
}
