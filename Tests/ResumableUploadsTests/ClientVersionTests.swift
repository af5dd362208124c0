// Tests how a client finds out whether a server supports resumable uploads, and in which draft version.

import HTTPMessages
import Testing

@testable import ResumableUploads

@Suite("The client detects the version") struct ClientVersionTests {
  private func asking(_ change: (inout UploadClientStateMachine.Configuration) -> Void = { _ in }) -> ClientScript {
    var client = ClientScript.live(500) {
      $0.discovers = true
      change(&$0)
    }
    client.start()
    return client
  }

  private func steps(_ client: inout ClientScript) -> [Int?] {
    client.machine.takeNotes().compactMap { if case .steppedDown(let version) = $0 { version.number } else { nil } }
  }

  // MARK: OPTIONS

  @Test("it sends OPTIONS without Upload-Complete, which would be a creation (draft, section Limits)")
  func request() {
    let client = asking()
    #expect(client.next == "OPTIONS" && client.request?.url == nil && client.request?.content == .absent)
    #expect(client.fields.without([InteropVersion.fieldName]).all.isEmpty)
  }

  @Test(
    "Upload-Limit in the response means support, with any value, and the limits apply at once (draft, section Limits)")
  func supported() {
    for status in [200, 204] {
      var client = asking()
      client.answer(status, ["Upload-Limit": "min-size=0, max-append-size=100"])
      #expect(client.next == "CREATE")
      client.answer(201, location: ClientScript.upload)
      #expect(client.maximum == 100)
    }
  }

  @Test("a target without OPTIONS behind a wrapper with OPTIONS", arguments: [404, 405])
  func wrapped(_ status: Int) {
    var client = asking()
    client.answer(status, ["Upload-Limit": "min-size=0", "Upload-Draft-Interop-Version": "8"])
    #expect(client.next == "CREATE")
  }

  @Test("a success with the exact version means support, with or without limits")
  func withoutLimits() {
    var client = asking()
    client.answer(204, ["Upload-Draft-Interop-Version": "8"])
    #expect(client.next == "CREATE")
  }

  @Test("any other response is a plain server's", arguments: [200, 204, 301, 400, 403, 404, 405, 501])
  func plain(_ status: Int) {
    var client = asking()
    client.answer(status, ["Allow": "GET, POST"])
    #expect(client.next == "unsupported")
    // Without Allow the answer may come from another server, so the client asks once more.
    client = asking()
    client.answer(status)
    #expect(client.next == "OPTIONS")
    client.answer(status)
    #expect(client.next == "unsupported")
    client = asking()
    client.answer(status)
    client.answer(204, ["Upload-Limit": "min-size=0"])
    #expect(client.next == "CREATE")
    client = asking()
    client.answer(status, ["Upload-Limit": "max-size=\"much\"", "Allow": "POST"])
    #expect(client.next == "unsupported", "a field that is ignored is none")
  }

  @Test("missing credentials are reported for OPTIONS already", arguments: [401, 407])
  func unauthorized(_ status: Int) {
    var client = asking()
    #expect(client.answer(status) == .wait, "how long to wait for others is not decided here")
    client.goOn()
    #expect(client.next == "OPTIONS")
  }

  @Test("no response means nothing, and the creation of an upload shows whether the server supports it")
  func silence() {
    var client = asking()
    client.perform(client.machine.questionIsUnanswered(client.supply))
    #expect(client.next == "CREATE" && client.request?.content == .empty)
    client.lose()
    #expect(client.next == "CREATE")
    client.answer(201, location: ClientScript.upload)
    #expect(client.next == "PATCH 0" || client.next == "await 1")
  }

  @Test("after an outage, the client waits; repeated 500s are a plain server's response to OPTIONS")
  func outage() {
    for status in [502, 503, 504, 429] {
      var client = asking()
      for _ in 0..<50 {
        #expect(client.answer(status) == .wait)
        client.goOn()
        #expect(client.next == "OPTIONS")
      }
    }
    var client = asking()
    var count = 0
    while client.answer(500) == .wait, count < 50 {
      client.goOn()
      count += 1
    }
    #expect(client.next == "unsupported" && (1..<5).contains(count))
  }

  @Test("an OPTIONS without a response is repeated")
  func lost() {
    var client = asking()
    client.lose()
    #expect(client.next == "OPTIONS")
  }

  // MARK: Stepping down

  @Test("SwiftNIO: its 400 has its newest version, which is used next")
  func named() {
    var client = asking()
    client.answer(400, ["Upload-Draft-Interop-Version": "6"])
    #expect(client.next == "OPTIONS" && client.fields["Upload-Draft-Interop-Version"] == "6")
    client.answer(200, ["Upload-Limit": "min-size=0", "Upload-Draft-Interop-Version": "6"])
    #expect(client.next == "CREATE" && client.fields["Upload-Draft-Interop-Version"] == "6" && steps(&client) == [6])
  }

  @Test("an older server without OPTIONS returns its version, and the upload is created at once")
  func namedBeforeOptions() {
    for number in [3, 4, 5] {
      var client = asking()
      client.answer(400, ["Upload-Draft-Interop-Version": "\(number)"])
      #expect(client.next == "CREATE" && client.fields["Upload-Draft-Interop-Version"] == "\(number)")
    }
  }

  @Test(
    "tusd: tus 1.0 answers OPTIONS of an unknown version, and the client steps down until the server understands it")
  func tusd() {
    var client = asking()
    for number in [8, 7] {
      #expect(client.next == "OPTIONS" && client.fields["Upload-Draft-Interop-Version"] == "\(number)")
      client.answer(200, ["Tus-Version": "1.0.0", "Tus-Resumable": "1.0.0", "Tus-Extension": "creation"])
    }
    client.answer(200, ["Upload-Limit": "min-size=0,max-size=1000", "Tus-Version": "1.0.0"])
    #expect(
      client.next == "CREATE" && client.fields["Upload-Draft-Interop-Version"] == "6" && steps(&client) == [7, 6])
    #expect(client.machine.limits.maximumSize == 1000)
  }

  @Test("a 412 of tus 1.0 to a creation: the client steps down through all versions, each once")
  func tusWithoutDrafts() {
    for makesFile in [true, false] {
      var client = makesFile ? ClientScript.file(500) : ClientScript.live(500)
      client.start()
      var versions: [String?] = []
      while client.next == "CREATE", versions.count < 100 {
        versions.append(client.fields["Upload-Draft-Interop-Version"])
        client.answer(412, ["Tus-Resumable": "1.0.0"])
      }
      #expect(versions == ["8", "7", "6", "5", "4", "3"] && client.next == "unsupported")
    }
  }

  @Test("a 412 without a version refuses the version, unless the user's fields have a condition")
  func conditionalRefusal() {
    for makesFile in [true, false] {
      func creating(hasCondition: Bool) -> ClientScript {
        var client =
          makesFile
          ? ClientScript.file(500) { $0.hasCondition = hasCondition }
          : ClientScript.live(500) { $0.hasCondition = hasCondition }
        client.start()
        return client
      }
      var client = creating(hasCondition: true)
      #expect(client.answer(412) == .fail(.refused(status: 412)))
      client = creating(hasCondition: true)
      client.answer(412, ["Tus-Resumable": "1.0.0"])
      #expect(client.next == "CREATE" && client.fields[InteropVersion.fieldName] == "7")
      client = creating(hasCondition: false)
      client.answer(412)
      #expect(client.next == "CREATE" && client.fields[InteropVersion.fieldName] == "7")
    }
    var client = asking { $0.hasCondition = true }
    client.answer(412)
    #expect(client.next == "OPTIONS" && client.fields[InteropVersion.fieldName] == "8")
    client.answer(412)
    #expect(client.next == "unsupported")
  }

  @Test("the fields are those of the detected version (appendix Draft Version Identification)")
  func fieldsOfVersion() {
    var client = asking()
    client.answer(400, ["Upload-Draft-Interop-Version": "3"])
    #expect(client.fields["Upload-Incomplete"] == "?1" && client.fields["Upload-Complete"] == nil)
    client.answer(201, ["Upload-Incomplete": "?1", "Upload-Draft-Interop-Version": "3"], location: ClientScript.upload)
    #expect(
      client.next == "PATCH 0" && client.fields["Content-Type"] == nil && client.fields["Upload-Incomplete"] == "?1")
    client.sendAll()
    client.answer(201, ["Upload-Incomplete": "?1", "Upload-Offset": "500"])
    client.grow(to: 500, isFinished: true)
    #expect(client.fields["Upload-Incomplete"] == "?0" && client.fields["Upload-Length"] == nil)
    client.answer(200, ["Upload-Incomplete": "?0"])
    #expect(client.next == "completed")
  }

  @Test("a newer or unknown version makes the client step down one by one")
  func unknownVersion() {
    var client = asking()
    for number in ["9", "1", "x", "8"] {
      if client.next == "OPTIONS" { client.answer(400, ["Upload-Draft-Interop-Version": number]) }
    }
    #expect(steps(&client) == [7, 6, 5])
  }

  @Test(
    "a creation whose response has an older version is repeated in that version, whatever the response to OPTIONS",
    arguments: [3, 4, 5, 6, 7], [400, 412, 501])
  func olderThanLimits(_ number: Int, _ status: Int) {
    for named in [nil, "8", "\(number)"] {
      var client = asking()
      var fields: HeaderFields = ["Upload-Limit": "min-size=0"]
      if let named { fields.append(InteropVersion.fieldName, named) }
      client.answer(204, fields)
      #expect(client.next == "CREATE")
      client.answer(status, [InteropVersion.fieldName: "\(number)"])
      #expect(client.next == "CREATE" && client.fields[InteropVersion.fieldName] == "\(number)")
      // The client only steps down, so that this ends.
      client.answer(status, [InteropVersion.fieldName: "\(number)"])
      #expect(client.failure == .refused(status: status) || client.next == "unsupported" || client.next == "wait")
    }
  }

  @Test("the detected version is kept for a new part, and after every interruption")
  func remembered() {
    var client = asking()
    client.answer(400, ["Upload-Draft-Interop-Version": "6"])
    client.answer(204, ["Upload-Limit": "min-size=0"])
    client.lose()
    #expect(client.next == "CREATE" && client.fields["Upload-Draft-Interop-Version"] == "6")
    client.answer(201, location: ClientScript.upload)
    client.answer(404)
    #expect(client.next == "CREATE" && client.fields["Upload-Draft-Interop-Version"] == "6")
    client.answer(400, ["Upload-Draft-Interop-Version": "5"])
    #expect(client.failure == .refused(status: 400), "a server that was understood is not misunderstood later")
  }

  @Test("a body is not sent repeatedly for a response without a version")
  func bodyOnce() {
    var client = ClientScript.file(500)
    client.start()
    client.sendAll()
    #expect(client.answer(400) == .fail(.refused(status: 400)))
    client = .file(500)
    client.start()
    client.answer(400, ["Upload-Draft-Interop-Version": "6"])
    #expect(client.next == "CREATE" && client.request?.content == .bytes(from: 0, maximum: nil))
  }

  @Test("the future RFC has no version field and no older version")
  func rfc() {
    var client = asking { $0.version = .none }
    #expect(client.next == "OPTIONS" && client.fields.all.isEmpty)
    client.answer(200, ["Upload-Limit": "min-size=0"])
    #expect(client.next == "CREATE" && client.fields["Upload-Complete"] == "?0")
    client.answer(201, location: ClientScript.upload)
    #expect(client.fields["Upload-Draft-Interop-Version"] == nil && client.next == "PATCH 0")
    client = asking { $0.version = .none }
    client.answer(400, ["Upload-Draft-Interop-Version": "6", "Allow": "POST"])
    #expect(client.next == "unsupported")
  }

  @Test("missing support is reported only while the whole stream can still go elsewhere")
  func tooLateForPlain() {
    var client = ClientScript.created(500) { $0.discovers = true }
    client = asking()
    client.answer(200, ["Upload-Limit": "min-size=0"])
    client.answer(201, location: ClientScript.upload)
    client.sendAll()
    client.interim(["Upload-Offset": "500"])
    client.release(upTo: 500)
    client.answer(410)
    #expect(client.next == "CREATE" && client.machine.base == 500)
    #expect(client.answer(201) == .wait, "something else answers: the client requests the old offset once more")
    client.goOn()
    #expect(client.next == "HEAD" && client.request?.url == ClientScript.upload)
  }
}
