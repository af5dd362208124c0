// Tests which statuses and fields are successes and refusals, and what follows each refusal.

import HTTPMessages
import Testing

@testable import ResumableUploads

@Suite("The client interprets statuses")
struct ClientStatusTests {
  private static let upload = ClientScript.upload

  @Test("a refusal is vague if it has no meaning in the protocol")
  func vagueRefusals() {
    let definite: [HeaderFields] = [
      ["Upload-Offset": "0"], ["Upload-Complete": "?0"], ["Upload-Draft-Interop-Version": "8"], ["Stream-ID": "s"],
      ["Stream-Offset": "1"],
    ]
    for status in 100..<600 {
      let isRetried = [408, 421, 423, 425, 429, 500, 502, 503, 504].contains(status) || status >= 506
      let isVague = status >= 300 && ![401, 403, 407, 413].contains(status) && !isRetried
      #expect(ClientAnswer(status: status, fields: ["X-A": "b"]).isVagueRefusal == isVague, "\(status)")
      for fields in definite {
        let answer = ClientAnswer(status: status, fields: fields)
        #expect(answer.isVagueRefusal == (isVague && status != 409 && status != 410), "\(status) \(fields.all)")
      }
      #expect(ClientAnswer(status: status, fields: [:]).isRefusal == [401, 403, 407].contains(status))
    }
  }

  @Test("the methods in Allow are separated by commas, spaces and tabs")
  func allowedMethods() {
    for text in ["PUT,POST", "PUT, POST", " PUT ,\tPOST ", "PUT\tPOST", ",PUT,,POST,"] {
      #expect(ClientAnswer(status: 405, fields: ["Allow": text]).allowedMethods == ["PUT", "POST"], "\(text)")
    }
    #expect(ClientAnswer(status: 405, fields: [:]).allowedMethods == [])
  }

  @Test("statuses from 300 on are no successes", arguments: [300, 301, 399])
  func noSuccess(_ status: Int) {
    var client = ClientScript.created(500)
    var asking = client
    #expect(client.answer(status) == .fail(.refused(status: status)))
    asking.lose()
    #expect(asking.answer(status) == .fail(.refused(status: status)))
    for version in [nil, "8"] {
      var cancelled = ClientScript.created(500)
      cancelled.perform(cancelled.machine.cancel())
      cancelled.answer(status, version.map { [InteropVersion.fieldName: $0] } ?? [:])
      #expect(cancelled.failure == .cancelled && !cancelled.machine.isForgotten)
    }
    // A question that something else answers is repeated if the caller limits the time of refusals.
    var question = ClientScript.live(500) { ($0.discovers, $0.retriesRefusals) = (true, true) }
    question.start()
    #expect(question.answer(status, [InteropVersion.fieldName: "8"]) == .wait)
  }

  @Test("a cancellation is confirmed by a success of the protocol", arguments: [200, 202, 299])
  func cancelledByVersion(_ status: Int) {
    for version in [nil, "8", "6"] {
      var client = ClientScript.created(500)
      client.perform(client.machine.cancel())
      client.answer(status, version.map { [InteropVersion.fieldName: $0] } ?? [:])
      #expect(client.failure == .cancelled && client.machine.isForgotten == (version != nil))
    }
  }

  @Test("a 400 to OPTIONS is a plain server's, and repeated 500s end the rest of a stream")
  func refusedQuestions() {
    var client = ClientScript.live(500) { ($0.discovers, $0.retriesRefusals) = (true, true) }
    client.start()
    client.answer(400, ["Allow": "POST"])
    #expect(client.next == "unsupported")
    client = .live(500) { $0.discovers = true }
    client.perform(client.machine.start(client.supply, after: 200))
    for _ in 0..<2 {
      #expect(client.answer(500) == .wait)
      client.goOn()
    }
    #expect(client.answer(500) == .fail(.refused(status: 500)))
  }

  @Test("after a 413 to the rest of a file, parts of half of this rest follow")
  func refusedRest() {
    var client = ClientScript.file(500)
    client.perform(client.machine.start(client.supply, after: 200))
    client.answer(413, isEarly: true)
    client.answer(405)
    client.answer(201, location: Self.upload)
    #expect(client.next == "PATCH 0" && client.request?.content == .bytes(from: 200, maximum: 150))
  }
}
