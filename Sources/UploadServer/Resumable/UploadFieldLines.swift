// Between HTTP's fields and the protocol's: the same lines under two names.

internal import HTTPMessages
internal import ResumableUploads

extension FieldLines {
  init(_ fields: HeaderFields) {
    self.init(fields.all.map { Line(name: $0.name, value: $0.value) })
  }
}

extension HeaderFields {
  init(_ lines: FieldLines) {
    self.init()
    for line in lines.lines { append(line.name, line.value) }
  }

  /// The fields whose names (lower case) `isIncluded` accepts.
  func filter(_ isIncluded: (String) -> Bool) -> HeaderFields {
    var result = HeaderFields()
    for field in all where isIncluded(field.name) { result.append(field.name, field.value) }
    return result
  }

  /// The same without the fields of these names (lower case).
  func without(_ names: Set<String>) -> HeaderFields {
    var result = HeaderFields()
    for field in all where !names.contains(field.name) { result.append(field) }
    return result
  }
}

extension Response {
  init(_ answer: ServerAnswer) {
    self.init(answer.status, HeaderFields(answer.fields), body: answer.body, type: answer.mediaType)
  }

  init(_ recorded: UploadRecord.Response) {
    self.init(recorded.status, HeaderFields(recorded.fields))
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

extension [Range<Int>] {
  /// The first `count` octets of these ranges.
  func prefix(octets count: Int) -> [Range<Int>] {
    var left = count
    var result: [Range<Int>] = []
    for range in self where left > 0 {
      let length = Swift.min(left, range.count)
      result.append(range.lowerBound..<(range.lowerBound + length))
      left -= length
    }
    return result
  }
}
