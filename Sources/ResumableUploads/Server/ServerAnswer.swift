// Answers of the protocol itself as values, with the fields that each of them carries.

package import HTTPMessages

/// A response of an upload resource itself, or the fields that it adds to another response.
package struct ServerAnswer: Equatable, Sendable {
  package var status: Int
  package var fields: HeaderFields
  package var body: String
  package var mediaType: String

  package init(_ status: Int, _ fields: HeaderFields = [:], body: String = "", mediaType: String = "text/plain") {
    self.status = status
    self.fields = fields
    self.body = body
    self.mediaType = mediaType
  }

  /// The parts of an upload resource's state that answers contain.
  package struct Standing: Equatable, Sendable {
    package var offset: UInt64
    package var length: UInt64?
    package var isComplete: Bool
    package var limits: UploadLimits
    package var location: String

    package init(offset: UInt64, length: UInt64?, isComplete: Bool, limits: UploadLimits, location: String) {
      self.offset = offset
      self.length = length
      self.isComplete = isComplete
      self.limits = limits
      self.location = location
    }
  }

  /// Seconds after which a client may retry what is not possible now.
  private static let retryDelay = 2

  // MARK: Interim

  /// The fields of the 104 that announces a new resource; nil if the version is unknown or not named (appendix "Draft
  /// Version Identification").
  package static func announcement(_ standing: Standing, _ version: InteropVersion) -> HeaderFields? {
    guard version.number != nil else { return nil }
    var fields: HeaderFields = ["Location": standing.location]
    version.setVersion(&fields)
    addLimits(standing.limits, version, &fields)
    return fields
  }

  /// The fields of a 104 that reports progress; nil if the version has none. Never contains a `Location` (section
  /// "Upload Append").
  package static func progress(_ offset: UInt64, _ version: InteropVersion) -> HeaderFields? {
    guard version.number != nil, version.tellsProgress, let value = UploadFields.value(offset) else { return nil }
    var fields: HeaderFields = [UploadFields.offset: value]
    version.setVersion(&fields)
    return fields
  }

  // MARK: Final

  /// The answer to a creation whose content was fully processed, with more to come: 201.
  package static func created(_ standing: Standing, _ version: InteropVersion) -> ServerAnswer {
    var answer = ServerAnswer(201, ["Location": standing.location])
    answer.addState(standing, version, tellsLength: false)
    return answer
  }

  /// The answer to such an append: 204, or 201 in older versions.
  package static func appended(_ standing: Standing, _ version: InteropVersion) -> ServerAnswer {
    var answer = ServerAnswer(version.statuses.appended)
    answer.addState(standing, version, tellsLength: false)
    return answer
  }

  /// The answer to HEAD and GET: 204.
  package static func retrieved(_ standing: Standing, _ version: InteropVersion) -> ServerAnswer {
    var answer = ServerAnswer(204)
    answer.addState(standing, version, tellsLength: true)
    answer.fields.append("Cache-Control", "no-store")
    return answer
  }

  /// The answer to DELETE: 204.
  package static func cancelled(_ version: InteropVersion) -> ServerAnswer {
    var answer = ServerAnswer(204)
    version.setVersion(&answer.fields)
    return answer
  }

  /// The answer to OPTIONS of a target that supports uploads, or of `*`.
  package static func discovered(
    _ limits: UploadLimits, _ version: InteropVersion, allow: String
  ) -> ServerAnswer {
    // A request with no version or an unknown one gets the newest in the answer, so that the client learns which one to
    // use.
    let version = version.number == nil ? .newest : version
    var answer = ServerAnswer(204, ["Allow": allow])
    version.setVersion(&answer.fields)
    addLimits(limits, version, &answer.fields)
    return answer
  }

  /// The answer to OPTIONS of an upload resource.
  package static func discoveredResource(_ version: InteropVersion) -> ServerAnswer {
    var answer = ServerAnswer(
      204, ["Allow": ServerRequest.resourceMethods, "Accept-Patch": UploadFields.partialUpload])
    version.setVersion(&answer.fields)
    return answer
  }

  /// - Parameter standing: the state of the resource, if there is one.
  package static func refused(
    _ refusal: UploadRefusal, _ version: InteropVersion, limits: UploadLimits, standing: Standing? = nil
  ) -> ServerAnswer {
    var answer = ServerAnswer(refusal.status(version), body: refusal.reason + "\n")
    if let problem = refusal.problem(version) {
      answer.mediaType = ProblemType.mediaType
      answer.body = problem.json(status: answer.status)
    }
    switch refusal {
    case .methodNotAllowed: answer.fields.append("Allow", ServerRequest.resourceMethods)
    case .mediaType: answer.fields.append("Accept-Patch", UploadFields.partialUpload)
    case .notAuthorized: answer.fields.append("WWW-Authenticate", "Bearer")
    default: break
    }
    // If 404 has both meanings, a client must not mistake an abandoned upload for one that was completed and forgotten.
    if case .deactivated = refusal, answer.status == 404 { version.setCompleteness(false, &answer.fields) }
    if refusal.tellsOffset {
      // The answer is never the resource's own response (section "Completeness"). This is also true if the upload is
      // complete: the client would otherwise take this status for the result of its upload. HEAD reports the state.
      version.setCompleteness(false, &answer.fields)
      if let standing, let value = UploadFields.value(standing.offset) {
        answer.fields.append(UploadFields.offset, value)
      }
    }
    if refusal.allowsRetry { answer.fields.append("Retry-After", String(retryDelay)) }
    version.setVersion(&answer.fields)
    if refusal.tellsLimits { addLimits(standing?.limits ?? limits, version, &answer.fields) }
    return answer
  }

  /// The fields added to a response that comes from processing the representation.
  ///
  /// - Parameter offset: nil to leave it out.
  package static func completedFields(_ version: InteropVersion, offset: UInt64) -> HeaderFields {
    var fields = HeaderFields()
    version.setCompleteness(true, &fields)
    if let value = UploadFields.value(offset) { fields.append(UploadFields.offset, value) }
    version.setVersion(&fields)
    return fields
  }

  // MARK: Parts

  private mutating func addState(_ standing: Standing, _ version: InteropVersion, tellsLength: Bool) {
    version.setCompleteness(standing.isComplete, &fields)
    if let value = UploadFields.value(standing.offset) { fields.append(UploadFields.offset, value) }
    version.setVersion(&fields)
    guard version.hasLimits else { return }
    if tellsLength, let length = standing.length.flatMap(UploadFields.value) {
      fields.append(UploadFields.length, length)
    }
    Self.addLimits(standing.limits, version, &fields)
  }

  private static func addLimits(_ limits: UploadLimits, _ version: InteropVersion, _ fields: inout HeaderFields) {
    if version.hasLimits { fields.append(UploadFields.limit, limits.value(version: version)) }
  }
}

extension ProblemType {
  /// The body of the answer (RFC 9457, section 3).
  ///
  /// - Parameter status: of the answer, which is not the recommended one in each version.
  package func json(status: Int) -> String {
    var members = ["\"type\":\"\(uri)\"", "\"title\":\"\(title)\"", "\"status\":\(status)"]
    if case .mismatchingOffset(let expected, let provided) = self {
      members += ["\"expected-offset\":\(expected)", "\"provided-offset\":\(provided)"]
    }
    return "{" + members.joined(separator: ",") + "}\n"
  }
}
