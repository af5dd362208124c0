// Tests how a client whose caller limits the time of refusals reacts to them before the server has acknowledged a byte.

import HTTPMessages
import Testing

@testable import ResumableUploads

@Suite("The client and refusals before the first acknowledged byte") struct ClientRefusalTests {
  @Test(
    "if the caller limits the time of refusals, the client repeats a creation that any status has refused",
    arguments: [300, 302, 304, 307, 404, 405, 409, 410, 411, 415, 417, 428, 451, 505], [false, true])
  func refusedCreation(_ status: Int, isFile: Bool) {
    var client = ClientScript.live(500, isFinished: isFile) { configuration in
      configuration.retriesRefusals = true
      if isFile { (configuration.isOptimistic, configuration.length) = (true, 500) }
    }
    client.start()
    for _ in 0..<20 {
      #expect(client.next == "CREATE" && client.machine.isRefusal(ClientAnswer(status: status, fields: [:])))
      #expect(client.answer(status) == .wait)
      client.goOn()
    }
    client.answer(201, location: ClientScript.upload)
    #expect(client.next == "PATCH 0")
    client.send(upTo: 200)
    client.interim(["Upload-Offset": "100"])
    #expect(!client.machine.isRefusal(ClientAnswer(status: status, fields: [:])), "it is an outage from now on")
  }

  @Test("a status that may be about the version is repeated with the newest one", arguments: [400, 501])
  func refusedVersions(_ status: Int) {
    var client = ClientScript.live(500) { $0.retriesRefusals = true }
    client.start()
    for _ in 0..<5 {
      var versions: [String?] = []
      while client.next == "CREATE", versions.count < 20 {
        versions.append(client.fields["Upload-Draft-Interop-Version"])
        client.answer(status)
      }
      #expect(client.next == "wait" && versions == ["8", "7", "6", "5", "4", "3"], "\(client.next) \(versions)")
      client.goOn()
    }
    client = .live(500) { $0.retriesRefusals = true }
    client.start()
    for _ in 0..<20 where client.next == "CREATE" { client.answer(412) }
    #expect(client.next == "unsupported", "a 412 without a condition is about the version")
  }

  @Test("a response with a meaning in the protocol is not repeated, and without a time of refusals none is")
  func definiteRefusals() {
    let definite: [(Int, HeaderFields)] = [
      (409, ["Stream-ID": "s"]), (409, ["Upload-Offset": "0"]), (410, ["Upload-Draft-Interop-Version": "8"]),
      (410, ["Upload-Complete": "?0"]), (413, [:]), (404, ["Upload-Complete": "?1"]),
    ]
    for (status, fields) in definite {
      var client = ClientScript.live(500) { $0.retriesRefusals = true }
      client.start()
      #expect(client.answer(status, fields) == .fail(.refused(status: status)), "\(fields)")
    }
    for retries in [false, true] {
      var client = ClientScript.live(500) { ($0.discovers, $0.retriesRefusals) = (true, retries) }
      client.start()
      for _ in 0..<20 where client.next == "OPTIONS" { if client.answer(302) == .wait { client.goOn() } }
      #expect(client.next == (retries ? "OPTIONS" : "unsupported"))
    }
  }

  // MARK: Answers that do not follow the protocol

  /// Answers to a creation that do not name an upload resource to which the client may go.
  private static let nameless: [ClientAnswer] = {
    var insecure = ClientAnswer(status: 201, fields: ["Location": "http://host/u"])
    insecure.isLocationInsecure = true
    var answers = [200, 201, 202, 204, 206, 302, 307].map { ClientAnswer(status: $0, fields: [:]) }
    answers += [
      ClientAnswer(status: 200, fields: [:], isEarly: true),
      ClientAnswer(status: 201, fields: ["Location": "http://"]),
      ClientAnswer(status: 201, fields: ["Upload-Complete": "?0", "Upload-Draft-Interop-Version": "8"]),
      insecure,
    ]
    return answers
  }()

  @Test(
    "if the caller limits the time of refusals, a creation is repeated after any answer that names no upload resource",
    arguments: nameless, [false, true])
  func namelessCreation(_ answer: ClientAnswer, isFile: Bool) {
    for retries in [false, true] {
      var client = ClientScript.live(500, isFinished: isFile) { configuration in
        (configuration.retriesRefusals, configuration.requiresProtocol) = (retries, true)
        if isFile { (configuration.isOptimistic, configuration.length) = (true, 500) }
      }
      client.start()
      for _ in 0..<20 where client.next == "CREATE" {
        client.sendAll()
        client.perform(client.machine.answered(answer, sentUpTo: client.sentUpTo, client.supply))
        guard client.next == "wait" else { continue }
        #expect(client.machine.isRefusal(answer) || client.machine.toleratedFailure != nil)
        client.goOn()
      }
      guard retries else {
        #expect(client.failure != nil, "\(client.next)")
        continue
      }
      client.answer(201, location: ClientScript.upload)
      #expect(client.next == "PATCH 0" && client.machine.toleratedFailure == nil)
    }
  }

  @Test("a success before the end of a file is repeated, unless it has a field of the protocol")
  func earlySuccess() {
    for (fields, action) in [
      ([:], .wait), (["Upload-Complete": "?1"], .fail(.completedEarly)),
    ] as [(HeaderFields, UploadClientStateMachine.Action)] {
      var client = ClientScript.file(500) { $0.retriesRefusals = true }
      client.start()
      client.send(upTo: 100)
      let next = client.answer(200, fields, isEarly: true)
      #expect(next == action, "\(fields)")
    }
  }

  @Test(
    "an upload resource whose answers do not follow the protocol is asked again, and left in the end",
    arguments: [
      ("HEAD", 200), ("HEAD", 204), ("HEAD", 307), ("HEAD", 400), ("HEAD", 404), ("HEAD", 405), ("PATCH", 307),
      ("PATCH", 308), ("PATCH", 400), ("PATCH", 404), ("PATCH", 405),
    ])
  func strayedResource(_ method: String, _ status: Int) {
    for retries in [false, true] {
      var client = ClientScript.created(500) { $0.retriesRefusals = retries }
      if method == "HEAD" { client.lose() }
      var methods: Set<String> = []
      for _ in 0..<60 where client.failure == nil {
        methods.insert(String(client.next.prefix { $0 != " " }))
        client.answer(status, silent: true)
        if client.next == "wait" { client.goOn() }
      }
      guard retries else {
        #expect(client.failure != nil, "\(client.next)")
        continue
      }
      #expect(methods.isSuperset(of: [method, "CREATE"]) && client.failure == nil, "\(methods) \(client.last)")
      if client.next == "HEAD" {
        client.answer(204, ["Upload-Offset": "0"])
      } else {
        client.answer(201, location: ClientScript.upload)
      }
      #expect(client.next == "PATCH 0")
    }
  }

  @Test(
    "if each new upload resource is gone at its first append, the client pauses between them", arguments: [404, 410])
  func alwaysGone(_ status: Int) {
    for retries in [false, true] {
      var client = ClientScript.created(500) { $0.retriesRefusals = retries }
      var (answers, pauses) = (0, 0)
      for _ in 0..<200 where client.next != "fail" {
        switch client.next {
        case "wait":
          (answers, pauses) = (0, pauses + 1)
          client.goOn()
        case "CREATE": client.answer(201, location: ClientScript.other)
        default: client.answer(status)
        }
        if client.next != "wait" { answers += 1 }
        #expect(answers < 40)
      }
      #expect(retries ? pauses > 40 : client.next == "fail", "\(client.last)")
    }
  }

  @Test(
    "if a portal has named the upload resource, the 404 of the server creates another",
    arguments: [404, 410], [0, 1, 5, 20])
  func falseLocation(_ status: Int, _ portalAnswers: Int) {
    for retries in [false, true] {
      var client = ClientScript.created(500) { $0.retriesRefusals = retries }
      client.lose()
      for _ in 0..<portalAnswers where client.next == "HEAD" {
        client.answer(200)
        if client.next == "wait" { client.goOn() }
      }
      if client.next == "HEAD" { client.answer(status, [InteropVersion.fieldName: "8", "Upload-Complete": "?0"]) }
      if client.next == "wait" { client.goOn() }
      #expect(client.next == (retries || portalAnswers < 8 ? "CREATE" : "fail"), "\(client.last)")
      guard client.next == "CREATE" else { continue }
      client.answer(201, location: ClientScript.other)
      #expect(client.next == "PATCH 0" && client.request?.url == ClientScript.other)
    }
  }
}
