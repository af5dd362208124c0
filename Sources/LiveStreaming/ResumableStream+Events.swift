// Converts the notes of the protocol's state machine to events and errors of a stream.

internal import HTTPMessages
internal import ResumableUploads
internal import UploadClient

extension ResumableStream {
  func error(_ failure: ClientFailure) -> LiveStreamError {
    let kind: LiveStreamError.Kind =
      switch failure {
      case .cancelled: .cancelled
      case .refused, .processingFailed, .tooLarge, .limitTooSmall, .limitsContradict, .appendTooLarge, .noProgress:
        .refused
      case .insecureLocation: .insecureLocation
      case .offsetBeyondSent, .noOffset, .noLocation, .locationChanged, .completedEarly: .protocolBroken
      }
    return LiveStreamError(kind, failure.description)
  }

  /// The error that ends the stream if the server answers like this for too long. Nil if the answer is not a refusal.
  func lastingRefusal(_ answer: ClientAnswer, _ end: RequestEnd) -> LiveStreamError? {
    let verdict = Verdict(end.result, isLocationInsecure: end.isLocationInsecure).error
    switch upload.toleratedFailure {
    case .refused?: return verdict
    case let failure?: return error(failure)
    case nil: return upload.isRefusal(answer) ? verdict : nil
    }
  }

  /// The reason why a successful response does not let the stream continue.
  func unhelpful(_ answer: ClientAnswer) -> String {
    if let failure = upload.toleratedFailure { return failure.description }
    if let name = UploadFields.unreadable(answer.fields) {
      let invalid = printable(excerpt(answer.fields[name] ?? "", limit: 40))
      return "the server answered \(answer.status) with the invalid \(name) \"\(invalid)\""
    }
    guard let offset = UploadFields.offset(answer.fields) else {
      return "the server answered \(answer.status) without an offset"
    }
    let end = upload.base.addingReportingOverflow(offset).partialValue
    if upload.isAskingForSurplus { return "the server reported offset \(end), which is beyond the bytes in the buffer" }
    let missing = upload.acknowledged - min(upload.acknowledged, end)
    if missing > 0 { return "the server has stored \(missing) bytes less than it had acknowledged" }
    return upload.storesLittle
      ? "the server stores only a small part of each request"
      : "the server answered \(answer.status), which is not valid at this point"
  }

  mutating func takeNotes() {
    for note in upload.takeNotes() {
      switch note {
      case .gap(let start, let end, let isServersFault):
        outages.skipped(to: end)
        events.append(
          .gap(Gap(offset: start, length: end - start, cause: isServersFault ? .serverLost : .bufferFull)))
      case .created(let url, _): events.append(.upload(.created(resumeData(url: url))))
      case .newPart(let reason, let previous, let offset):
        events.append(.upload(.newPart(offset: offset, previous: previous, reason: reason.rawValue)))
      case .serverWentBack(let start, let end):
        events.append(.upload(.serverWentBack(from: start, to: end)))
      case .impossibleOffset(let offset):
        lastNote = "the server reported offset \(offset), which is beyond the last byte that was sent"
        events.append(.upload(.impossibleOffset(offset)))
      case .serverHasMore(let offset, let kept):
        events.append(.upload(.serverHasMore(offset: offset, kept: kept)))
      case .steppedDown(let version):
        events.append(.upload(.steppedDown(version: version.number)))
      }
    }
  }
}

extension ClientAnswer {
  init(_ response: HTTPResponse, location: String?, isEarly: Bool = false) {
    self.init(status: response.status, fields: response.fields, location: location, isEarly: isEarly)
  }
}
