// Tests how a server classifies a request by its head alone.

import HTTPMessages
import Testing

@testable import ResumableUploads

@Suite("The meaning of a request for a server")
struct ServerRequestTests {
  private func request(
    _ method: String, _ fields: HeaderFields, content: RequestSummary.Content = .unsized, toResource: Bool = false
  ) -> ServerRequest {
    ServerRequest(
      RequestSummary(
        method: method, target: toResource ? .uploadResource : .other, fields: fields, content: content))
  }

  private func patch(_ fields: HeaderFields, type: String? = "application/partial-upload") -> ServerRequest {
    var fields = fields
    if let type { fields.append("Content-Type", type) }
    return request("PATCH", fields, toResource: true)
  }

  private let v8: HeaderFields = ["Upload-Draft-Interop-Version": "8"]

  @Test(
    "any method that carries content creates an upload, and GET and similar methods do not (draft, section Upload Creation)"
  )
  func methods() throws {
    for method in ["POST", "PUT", "PATCH", "REPORT"] {
      guard case .create(let creation) = request(method, ["Upload-Complete": "?0"]) else {
        Issue.record("\(method) does not create")
        continue
      }
      #expect(!creation.completes && creation.offset == 0)
    }
    for method in ["GET", "HEAD", "DELETE", "TRACE", "CONNECT"] {
      #expect(request(method, ["Upload-Complete": "?0"]) == .plain)
    }
  }

  @Test(
    "an Upload-Complete that is not a Boolean is ignored (draft, section Completeness)",
    arguments: ["", "1", "true", "?2", "?1, ?1", "\"?1\"", "?1?"])
  func malformedCompleteness(_ value: String) {
    #expect(request("POST", ["Upload-Complete": value]) == .plain)
    #expect(patch(["Upload-Offset": "0", "Upload-Complete": value]) == .refuse(.missingCompleteness, .none))
  }

  @Test("parameters of a field's item are ignored (RFC 9651, section 3.1.2)")
  func parameters() {
    guard case .append(let append) = patch(["Upload-Offset": "5;a=1", "Upload-Complete": "?0;b"]) else {
      Issue.record("refused")
      return
    }
    #expect(append.offset == 5 && !append.completes)
  }

  @Test(
    "an Upload-Offset that is not a non-negative Integer is ignored (draft, section Offset)",
    arguments: ["", "-1", "1.0", "x", "1, 1", "1000000000000000", "?1"])
  func malformedOffset(_ value: String) {
    #expect(patch(["Upload-Offset": value, "Upload-Complete": "?0"]) == .refuse(.missingOffset, .none))
  }

  @Test(
    "an Upload-Length that is not a non-negative Integer is ignored (draft, section Length)",
    arguments: ["-1", "1.5", "many", "5, 5"])
  func malformedLength(_ value: String) {
    guard case .create(let creation) = request("POST", ["Upload-Complete": "?0", "Upload-Length": value]) else {
      Issue.record("no creation")
      return
    }
    #expect(creation.uploadLength == nil)
  }

  @Test(
    "PATCH requires the media type if the version has it, with parameters or without (draft, section Upload Append)")
  func mediaType() {
    let fields: HeaderFields = ["Upload-Offset": "0", "Upload-Complete": "?0"]
    for type in ["application/octet-stream", "application/partial-uploads", nil] {
      #expect(patch(fields, type: type) == .refuse(.mediaType, .none))
    }
    for type in ["application/partial-upload", "Application/Partial-Upload ; x=y", "application/partial-upload\t;x"] {
      guard case .append = patch(fields, type: type) else {
        Issue.record("\(type) is refused")
        continue
      }
    }
    var old = fields
    old.append("Upload-Draft-Interop-Version", "5")
    guard case .append = patch(old, type: nil) else {
      Issue.record("version 5 has no media type")
      return
    }
  }

  @Test("version 3 has Upload-Incomplete, with the opposite value")
  func version3() {
    let named: HeaderFields = ["Upload-Draft-Interop-Version": "3"]
    for (value, completes) in [("?0", true), ("?1", false)] {
      var fields: HeaderFields = ["Upload-Incomplete": value]
      fields.append(contentsOf: named)
      guard case .create(let creation) = request("POST", fields) else {
        Issue.record("no creation")
        continue
      }
      #expect(creation.completes == completes && creation.version.number == 3)
    }
    // The other field belongs to another version.
    var fields: HeaderFields = ["Upload-Complete": "?0"]
    fields.append(contentsOf: named)
    #expect(request("POST", fields) == .plain)
  }

  @Test(
    "an unknown version: the whole is accepted as a plain request, and a part is refused (draft, section Draft Version)"
  )
  func unknownVersion() {
    for version in ["9", "2", "x", "8, 8"] {
      let named: HeaderFields = ["Upload-Draft-Interop-Version": version]
      var whole = named
      whole.append("Upload-Complete", "?1")
      #expect(request("POST", whole) == .plain)
      for part in [("Upload-Complete", "?0"), ("Upload-Incomplete", "?1")] {
        var fields = named
        fields.append(part.0, part.1)
        #expect(request("POST", fields) == .refuse(.unsupportedVersion, .newest))
      }
      #expect(request("HEAD", named, toResource: true) == .refuse(.unsupportedVersion, .newest))
      #expect(request("POST", named) == .plain)
    }
  }

  @Test("OPTIONS discovers the limits, with Upload-Complete or without (draft, section Limits)")
  func options() {
    #expect(request("OPTIONS", [:], content: .absent) == .discover(.none))
    #expect(request("OPTIONS", ["Upload-Complete": "?0"], content: .absent) == .discover(.none))
    #expect(request("OPTIONS", [:], content: .absent, toResource: true) == .discoverResource(.none))
  }

  @Test("an upload resource supports HEAD, GET, PATCH, DELETE and OPTIONS")
  func resourceMethods() {
    #expect(request("HEAD", [:], content: .absent, toResource: true) == .retrieve(.none))
    #expect(request("GET", [:], content: .absent, toResource: true) == .retrieve(.none))
    #expect(request("DELETE", [:], content: .absent, toResource: true) == .cancel(.none))
    for method in ["POST", "PUT", "BREW"] {
      #expect(request(method, [:], toResource: true) == .refuse(.methodNotAllowed, .none))
    }
  }

  @Test("up to version 6, only a PATCH may have the fields of an append, and one of the two is enough to refuse it")
  func appendFields() throws {
    let patterns: [HeaderFields] = [
      ["Upload-Offset": "5"], ["Upload-Complete": "?0"], ["Upload-Offset": "x"], ["Upload-Complete": "?1"],
      ["Upload-Offset": "5", "Upload-Complete": "?0"],
    ]
    for version in [InteropVersion.none] + InteropVersion.drafts where version.number != 3 {
      for method in ["HEAD", "GET", "DELETE"] {
        let done: ServerRequest = method == "DELETE" ? .cancel(version) : .retrieve(version)
        var bare: HeaderFields = [:]
        version.setVersion(&bare)
        #expect(request(method, bare, content: .absent, toResource: true) == done)
        for pattern in patterns {
          var fields = bare
          fields.append(contentsOf: pattern)
          let isRefused = version.number.map { $0 <= 6 } ?? false
          let meaning = request(method, fields, content: .absent, toResource: true)
          #expect(meaning == (isRefused ? .refuse(.appendFields, version) : done), "\(method) \(fields.all)")
        }
      }
    }
    // The field of another version has no meaning.
    let early: HeaderFields = ["Upload-Draft-Interop-Version": "3", "Upload-Complete": "?0"]
    let third = try #require(InteropVersion(number: 3))
    #expect(request("HEAD", early, content: .absent, toResource: true) == .retrieve(third))
  }
}
