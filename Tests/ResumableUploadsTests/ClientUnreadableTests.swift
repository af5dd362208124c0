// Tests successful answers whose fields about the upload are unreadable. They do not count as silent: HEAD decides.

import HTTPMessages
import Testing

@testable import ResumableUploads

@Suite("The client sends HEAD after a response with unreadable fields") struct ClientUnreadableTests {
  /// Which fields are unreadable.
  enum Fields: CaseIterable { case offset, completeness, both }

  /// The request that is answered.
  enum Request: CaseIterable { case liveCreation, fileCreation, append, completingAppend, emptyCompletingAppend }

  static let upload = ClientScript.upload
  private static let offsets = [
    ["250", "250"], ["250", "500"], ["\"250\""], ["?1"], ["250.0"], ["bytes"], [""], ["2 50"], ["-1"], ["0x10"],
  ]
  private static let completenesses = [
    ["?0", "?0"], ["?1", "?1"], ["?0", "?1"], ["\"?0\""], ["0"], ["false"], ["1"], ["true"], [""], ["?2"], ["?"],
  ]

  /// Every combination of unreadable values, with and without the readable field beside them.
  static func answers(_ fields: Fields, _ version: InteropVersion) -> [HeaderFields] {
    func lines(_ name: String, _ values: [String]) -> [(name: String, value: String)] {
      values.map { (name: name, value: $0) }
    }
    let incomplete = version.invertsCompleteness ? "?1" : "?0"
    let names = ["Upload-Complete", "Upload-Incomplete"]
    switch fields {
    case .offset:
      return offsets.flatMap { values in
        [
          HeaderFields(received: lines("Upload-Offset", values)),
          HeaderFields(received: lines("Upload-Offset", values) + lines(version.completenessFieldName, [incomplete])),
        ]
      }
    case .completeness:
      return completenesses.flatMap { values in
        names.flatMap { name in
          [
            HeaderFields(received: lines(name, values)),
            HeaderFields(received: lines("Upload-Offset", ["250"]) + lines(name, values)),
          ]
        }
      }
    case .both:
      return offsets.flatMap { offset in
        completenesses.map {
          HeaderFields(received: lines("Upload-Offset", offset) + lines(version.completenessFieldName, $0))
        }
      }
    }
  }

  /// A client with 500 bytes that has sent this request completely.
  static func client(_ request: Request, _ version: InteropVersion) -> ClientScript {
    var client: ClientScript
    switch request {
    case .liveCreation:
      client = .live(500) { $0.version = version }
      client.start()
    case .fileCreation:
      client = .file(500) { $0.version = version }
      client.start()
    case .append: client = .created(500) { $0.version = version }
    case .completingAppend: client = .created(500, isFinished: true) { $0.version = version }
    case .emptyCompletingAppend:
      client = .created(500) { $0.version = version }
      client.sendAll()
      client.answer(204, ["Upload-Offset": "500"])
      client.grow(to: 500, isFinished: true)
    }
    client.sendAll()
    return client
  }

  @Test("after HEAD, the client continues at the server's offset", arguments: Request.allCases, Fields.allCases)
  func asks(_ request: Request, _ fields: Fields) {
    for version in InteropVersion.drafts {
      for answer in Self.answers(fields, version) {
        for silent in [false, true] {
          var client = Self.client(request, version)
          let before = client.machine.acknowledged
          let hasLocation = [.liveCreation, .fileCreation].contains(request)
          client.answer(hasLocation ? 201 : 204, answer, location: hasLocation ? Self.upload : nil, silent: silent)
          let said = Comment(rawValue: "\(answer.all) to \(request) of version \(version.number ?? 0)")
          #expect(client.next == "HEAD", said)
          #expect(client.machine.acknowledged == before, said)

          let stored: HeaderFields = [
            "Upload-Offset": request == .liveCreation ? "0" : "250",
            version.completenessFieldName: version.invertsCompleteness ? "?1" : "?0",
          ]
          client.answer(200, stored)
          if request == .emptyCompletingAppend {
            #expect(client.next == "wait", said)
            client.goOn()
            client.answer(200, stored)
          }
          #expect(client.next == (request == .liveCreation ? "PATCH 0" : "PATCH 250"), said)
          client.supply.isFinished = true
          client.sendAll()
          client.answer(204, ["Upload-Offset": "500"])
          if client.next == "PATCH 500" { client.answer(204) }
          #expect(client.next == "completed" && client.machine.acknowledged == 500, said)
        }
      }
    }
  }

  @Test("a creation without a readable Location is not complete", arguments: InteropVersion.drafts)
  func withoutLocation(_ version: InteropVersion) {
    for fields in Fields.allCases {
      for answer in Self.answers(fields, version) {
        var client = Self.client(.fileCreation, version)
        client.answer(201, answer)
        #expect(client.failure != nil && client.machine.acknowledged == 0, "\(answer.all)")
      }
    }
  }

  @Test("a server with only unreadable responses causes pauses, and no progress", arguments: Request.allCases)
  func never(_ request: Request) {
    for answer in Fields.allCases.flatMap({ Self.answers($0, .newest) }) {
      var client = Self.client(request, .newest)
      let advances = client.machine.advances
      var count = 0
      var pauses = 0
      while client.failure == nil, count < 60 {
        if client.next == "wait" {
          pauses += 1
          client.goOn()
        } else {
          client.sendAll()
          client.answer(client.next == "CREATE" ? 201 : 204, answer, location: Self.upload)
        }
        count += 1
        #expect(client.next != "completed", "\(answer.all)")
        if client.next == "completed" { break }
      }
      #expect(client.failure != nil || pauses >= 10, "\(answer.all)")
      #expect(client.machine.advances <= advances + 1, "\(answer.all)")
    }
  }

  @Test("an upload that HEAD reports as complete is complete, although all other responses are unreadable")
  func completeByHEAD() {
    for request in [Request.fileCreation, .completingAppend, .emptyCompletingAppend] {
      for answer in Fields.allCases.flatMap({ Self.answers($0, .newest) }) {
        var client = Self.client(request, .newest)
        client.answer(201, answer, location: Self.upload)
        // The client asks for the final response again. A readable offset contradicts HEAD several times.
        for _ in 0..<20 where client.next != "completed" {
          switch client.next {
          case "wait": client.goOn()
          case "HEAD": client.answer(200, ["Upload-Offset": "500", "Upload-Complete": "?1"])
          default: client.answer(204, answer)
          }
        }
        #expect(client.next == "completed" && client.machine.acknowledged == 500, "\(answer.all)")
      }
    }
  }

  @Test("a lost upload after an unreadable response is complete only if a readable field reported it")
  func gone() {
    for isComplete in [true, false] {
      var client = Self.client(.completingAppend, .newest)
      let fields: HeaderFields = ["Upload-Offset": "\"500\"", "Upload-Complete": isComplete ? "?1" : "true"]
      client.answer(204, fields)
      client.answer(404)
      for _ in 0..<4 where client.next == "wait" {
        client.goOn()
        client.answer(404)
      }
      #expect(client.next == (isComplete ? "completed" : "CREATE"))
    }
  }
}
