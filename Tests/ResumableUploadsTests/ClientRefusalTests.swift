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
}
