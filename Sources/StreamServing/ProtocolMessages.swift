// Converts between HTTP messages and the values of the resumable upload protocol.

package import HTTPMessages
package import ResumableUploads

extension Response {
  package init(_ answer: ServerAnswer) {
    self.init(answer.status, answer.fields, body: answer.body, type: answer.mediaType)
  }

  /// Adds the protocol's fields to a response that comes from processing the representation.
  package mutating func add(_ fields: HeaderFields) { self.fields.append(contentsOf: fields) }
}

extension RequestSummary.Content {
  package init(_ framing: BodyFraming) {
    switch framing {
    case .absent: self = .absent
    case .sized(let count): self = .sized(count)
    case .chunked: self = .unsized
    }
  }
}
