// Between HTTP's messages and the protocol's values.

internal import HTTPMessages
internal import ResumableUploads

extension Response {
  init(_ answer: ServerAnswer) {
    self.init(answer.status, answer.fields, body: answer.body, type: answer.mediaType)
  }

  init(_ recorded: UploadRecord.Response) {
    self.init(recorded.status, recorded.fields)
    body = recorded.body
  }
}

extension RequestSummary.Content {
  init(_ framing: BodyFraming) {
    switch framing {
    case .absent: self = .absent
    case .sized(let count): self = .sized(count)
    case .chunked: self = .unsized
    }
  }
}
