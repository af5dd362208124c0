// Tests each answer of an upload resource as a whole: the status, and exactly the fields of its version in their order.

import HTTPMessages
import Testing

@testable import ResumableUploads

@Suite("The complete responses of a server")
struct ServerAnswerTableTests {
  private static let versions = [InteropVersion.none] + InteropVersion.drafts

  private static let limits: UploadLimits = {
    var limits = UploadLimits()
    (limits.maximumSize, limits.maximumAge) = (100, 60)
    return limits
  }()

  private func standing(isComplete: Bool = false) -> ServerAnswer.Standing {
    ServerAnswer.Standing(offset: 5, length: 9, isComplete: isComplete, limits: Self.limits, location: "/u/1")
  }

  // MARK: The rules of the drafts, written down independently of the code

  private func complete(_ isComplete: Bool, _ version: InteropVersion) -> HeaderFields {
    version.number == 3
      ? ["Upload-Incomplete": isComplete ? "?0" : "?1"] : ["Upload-Complete": isComplete ? "?1" : "?0"]
  }

  private func named(_ version: InteropVersion) -> HeaderFields {
    guard let number = version.number else { return [:] }
    return ["Upload-Draft-Interop-Version": "\(number)"]
  }

  private func limits(_ version: InteropVersion) -> HeaderFields {
    switch version.number {
    case 3, 4, 5: [:]
    case 6: ["Upload-Limit": "max-size=100, expires=60"]
    default: ["Upload-Limit": "max-size=100, max-age=60"]
    }
  }

  private func joined(_ parts: HeaderFields...) -> HeaderFields {
    var fields = HeaderFields()
    for part in parts { fields.append(contentsOf: part) }
    return fields
  }

  @Test("a successful response has exactly the fields of its version", arguments: versions)
  func successes(_ version: InteropVersion) {
    let hasLimits = (version.number ?? 9) >= 6
    for isComplete in [false, true] {
      let standing = standing(isComplete: isComplete)
      let state = joined(complete(isComplete, version), ["Upload-Offset": "5"], named(version))
      #expect(
        ServerAnswer.created(standing, version)
          == ServerAnswer(201, joined(["Location": "/u/1"], state, limits(version))))
      #expect(
        ServerAnswer.appended(standing, version)
          == ServerAnswer((version.number ?? 9) >= 7 ? 204 : 201, joined(state, limits(version))))
      let length: HeaderFields = hasLimits ? ["Upload-Length": "9"] : [:]
      #expect(
        ServerAnswer.retrieved(standing, version)
          == ServerAnswer(204, joined(state, length, limits(version), ["Cache-Control": "no-store"])))
    }
    #expect(ServerAnswer.cancelled(version) == ServerAnswer(204, named(version)))
    #expect(
      ServerAnswer.completedFields(version, offset: 5)
        == joined(complete(true, version), ["Upload-Offset": "5"], named(version)))
    // A client that names no version learns the newest.
    let answered = version.number == nil ? InteropVersion.newest : version
    #expect(
      ServerAnswer.discovered(Self.limits, version, allow: "POST")
        == ServerAnswer(204, joined(["Allow": "POST"], named(answered), limits(answered))))
    let methods: HeaderFields = [
      "Allow": "HEAD, GET, PATCH, DELETE, OPTIONS", "Accept-Patch": "application/partial-upload",
    ]
    #expect(ServerAnswer.discoveredResource(version) == ServerAnswer(204, joined(methods, named(version))))
  }

  @Test("an interim response has exactly the fields of its version", arguments: versions)
  func interims(_ version: InteropVersion) {
    let announcement = joined(["Location": "/u/1"], named(version), limits(version))
    #expect(ServerAnswer.announcement(standing(), version) == (version.number == nil ? nil : announcement))
    let progress = joined(["Upload-Offset": "5"], named(version))
    let isTold = version.number.map { $0 >= 5 } ?? false
    #expect(ServerAnswer.progress(5, version) == (isTold ? progress : nil))
    #expect(ServerAnswer.progress(1_000_000_000_000_000, version) == nil, "beyond the range of the field")
  }

  /// What an answer reports: the offset, when to try again, and the limits.
  private static let refusals: [(refusal: UploadRefusal, offset: Bool, retry: Bool, limits: Bool)] = [
    (.unsupportedVersion, false, false, false), (.missingOffset, true, false, false),
    (.missingCompleteness, true, false, false), (.appendFields, false, false, false),
    (.mediaType, true, false, false), (.mismatchingOffset(expected: 5, provided: 6), true, false, false),
    (.inconsistentLength, true, false, false), (.representationTooLarge, true, false, true),
    (.contentTooLarge, true, false, true), (.contentTooSmall, true, false, true), (.completed, true, false, false),
    (.deactivated(.expired), false, false, false), (.unknownResource, false, false, false),
    (.methodNotAllowed, false, false, false), (.tooManyUploads, false, true, true),
    (.quotaExhausted, true, true, true), (.notStored("input/output error", isFull: false), true, true, false),
    (.outOfResources("too many open files"), true, true, false), (.contentDigest, true, false, false),
    (.unverifiable(limit: 7), true, false, false), (.representationDigest, false, false, false),
    (.tooSlow, true, false, false), (.serverStops, true, true, false), (.notAuthorized, true, false, false),
    (.handlerNotReady(status: 502, reason: "no broker"), true, true, false),
  ]

  @Test(
    "a refusal reports the offset, the time of a retry and the limits only where they help, in each version",
    arguments: versions)
  func refusals(_ version: InteropVersion) {
    for row in Self.refusals {
      let answer = ServerAnswer.refused(row.refusal, version, limits: Self.limits, standing: standing(isComplete: true))
      let own: HeaderFields
      switch row.refusal {
      case .methodNotAllowed: own = ["Allow": "HEAD, GET, PATCH, DELETE, OPTIONS"]
      case .mediaType: own = ["Accept-Patch": "application/partial-upload"]
      case .notAuthorized: own = ["WWW-Authenticate": "Bearer"]
      // In early versions, 404 also means that a complete upload is forgotten.
      case .deactivated where (version.number ?? 9) <= 6: own = complete(false, version)
      default: own = [:]
      }
      let offset: HeaderFields = row.offset ? ["Upload-Offset": "5"] : [:]
      let isIncomplete: HeaderFields = row.offset ? complete(false, version) : [:]
      let retry: HeaderFields = row.retry ? ["Retry-After": "2"] : [:]
      let told: HeaderFields = row.limits ? limits(version) : [:]
      let expected = joined(own, isIncomplete, offset, retry, named(version), told)
      #expect(answer.fields == expected, "\(row.refusal): \(answer.fields.all)")
      #expect(answer.status == row.refusal.status(version), "\(row.refusal)")
      // Without a resource, there is no offset, and the limits are those of the server.
      let general = ServerAnswer.refused(row.refusal, version, limits: Self.limits)
      let withoutOffset = joined(own, isIncomplete, retry, named(version), told)
      #expect(general.fields == withoutOffset, "\(row.refusal): \(general.fields.all)")
      guard answer.mediaType == "text/plain" else {
        #expect(answer.mediaType == "application/problem+json" && row.refusal.problem(version) != nil)
        #expect(answer.body.hasSuffix("}\n") && answer.body.contains("\"status\":\(answer.status)"))
        continue
      }
      #expect(row.refusal.problem(version) == nil && answer.body == row.refusal.reason + "\n", "\(row.refusal)")
    }
  }
}
