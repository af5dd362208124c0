// The complete request of a stream, made of the user's request and the fields of a step.

import EventLoops
import HTTPMessages
import ResumableUploads
import Testing

@testable import LiveStreaming
@testable import UploadClient

@Suite("The complete request of a stream")
struct StreamRequestTests {
  private static func configuration() -> LiveStreamConfiguration {
    var request = UploadRequest(url: "https://host/x")
    request.fields = ["Content-Type": "audio/wav", "X-Room": "kitchen", "content-language": "de"]
    request.bearerToken = "own"
    request.limits.response = .seconds(30)
    return LiveStreamConfiguration(request: request)
  }

  private static func complete(
    token: String? = nil, _ change: (inout StreamRequest) -> Void = { _ in }
  ) -> UploadRequest {
    var step = StreamRequest(
      start: 0, fields: ["Upload-Complete": "?0", "Content-Type": "application/partial-upload"], content: .empty)
    change(&step)
    return step.uploadRequest(configuration(), token: token)
  }

  private static func lines(_ request: UploadRequest) -> [String] {
    request.fields.all.map { "\($0.rawName): \($0.value)" }
  }

  private static let all = [
    "Content-Type: audio/wav", "X-Room: kitchen", "content-language: de", "Upload-Complete: ?0",
    "Content-Type: application/partial-upload",
  ]

  @Test("it is the user's request with the fields of the step")
  func plain() {
    let request = Self.complete()
    #expect(request.url == "https://host/x" && request.method == "POST" && request.bearerToken == "own")
    #expect(request.limits.response == .seconds(30) && Self.lines(request) == Self.all)
  }

  @Test("a step may have its own token, method and URL")
  func changed() {
    #expect(Self.complete(token: "new").bearerToken == "new")
    #expect(Self.complete { $0.method = "PATCH" }.method == "PATCH")
    let other = Self.complete(token: "new") { $0.url = "https://host/uploads/1" }
    #expect(other.url == "https://host/uploads/1" && other.bearerToken == "new" && Self.lines(other) == Self.all)
    #expect(Self.complete(token: "new") { $0.url = "https://other/uploads/1" }.bearerToken == nil)
  }

  @Test("fields that describe the representation are only in its creation")
  func representation() {
    let request = Self.complete { $0.describesRepresentation = false }
    #expect(
      Self.lines(request) == ["X-Room: kitchen", "Upload-Complete: ?0", "Content-Type: application/partial-upload"])
  }

  @Test("a step may shorten the time for the response to a limit, or multiply it, however long it is")
  func limits() {
    for (limit, expected) in [
      (.usual, .seconds(30)), (.atMost(.seconds(5)), .seconds(5)), (.atMost(.seconds(60)), .seconds(30)),
      (.times(3), .seconds(90)), (.times(1), .seconds(30)), (.times(0), .seconds(30)),
      (.times(.max), .nanoseconds(Int64.max)),
    ] as [(StreamRequest.AnswerLimit, Duration)] {
      #expect(Self.complete { $0.answerLimit = limit }.limits.response == expected, "\(limit)")
    }
  }
}
