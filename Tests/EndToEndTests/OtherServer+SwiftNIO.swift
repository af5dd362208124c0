// Imitates SwiftNIO: it names its newest version in a 400, destroys an upload after a wrong offset, answers appends
// with 201, and uses the other version's field for completeness in final responses.

import NetworkTesting

extension OtherServer {
  /// The URL for its uploads, which can be any.
  var swiftNIOURL: String { "\(origin)/take" }

  /// Returns false if the connection must end.
  func answerAsSwiftNIO(_ request: Request) throws -> Bool {
    guard request.head["Upload-Draft-Interop-Version"] != nil else { return try plain(request) }
    guard let version = request.version, [3, 5, 6].contains(version) else { return try refuse(request) }
    let named = "Upload-Draft-Interop-Version: \(version)"
    let isQuery = request.completes == nil && request.offset == nil && request.uploadLength == nil
    if request.method == "OPTIONS" {
      guard isQuery else { return try refuse(request) }
      // Replaces the handler's 501.
      try answer(request, "200 OK", ["Upload-Limit: min-size=0"])
      return true
    }
    guard request.target.hasPrefix("/resumable_upload/") else {
      guard let completes = request.completes else { return try plain(request) }
      return try create(request, completes, named)
    }
    switch request.method {
    case "HEAD", "DELETE":
      guard isQuery else { return try refuse(request) }
      guard let index = index(request) else {
        try answer(request, "404 Not Found", [named])
        return true
      }
      detach(index)
      if request.method == "DELETE" {
        self[index].isGone = true
        try answer(request, "204 No Content", [named])
      } else {
        let upload = self[index]
        try answer(
          request, "204 No Content",
          [
            named, request.completeness(upload.isComplete), "Upload-Offset: \(upload.bytes.count)",
            "Cache-Control: no-store",
          ])
      }
      return true
    case "PATCH": return try append(request, named)
    default: return try refuse(request)
    }
  }

  private func refuse(_ request: Request) throws -> Bool {
    try answerEarly(request, "400 Bad Request", ["Upload-Draft-Interop-Version: 6"])
  }

  private func plain(_ request: Request) throws -> Bool {
    let index = create(Upload())
    guard try take(request, into: index) else { return false }
    try answer(request, "200 OK")
    return true
  }

  private func create(_ request: Request, _ completes: Bool, _ named: String) throws -> Bool {
    let length = request.uploadLength ?? (completes ? request.contentLength : nil)
    let index = create(Upload(length: length))
    let place = "Location: \(origin)/resumable_upload/\(index)"
    try announce(request, [named, place])
    guard try take(request, into: index) else { return false }
    return try finish(request, index, completes, [named, place])
  }

  private func append(_ request: Request, _ named: String) throws -> Bool {
    guard let offset = request.offset,
      request.version != 6 || request.head["Content-Type"] == "application/partial-upload"
    else { return try refuse(request) }
    guard let index = index(request) else { return try answerEarly(request, "404 Not Found", [named]) }
    let upload = self[index]
    let completes = request.completes ?? true
    let length = request.uploadLength ?? (completes ? request.contentLength.map { offset + $0 } : nil)
    let isConsistent = length == nil || upload.length == nil || length == upload.length
    guard upload.connection == nil, offset == upload.bytes.count, !upload.isComplete, isConsistent else {
      detach(index)
      self[index].isGone = true
      return try answerEarly(
        request, "409 Conflict",
        [named, request.completeness(upload.isComplete), "Upload-Offset: \(upload.bytes.count)"])
    }
    self[index].length = upload.length ?? length
    guard try take(request, into: index) else { return false }
    return try finish(request, index, completes, [named])
  }

  private func finish(_ request: Request, _ index: Int, _ completes: Bool, _ fields: [String]) throws -> Bool {
    let offset = "Upload-Offset: \(self[index].bytes.count)"
    guard completes else {
      // Also for an append.
      try answer(request, "201 Created", fields + [request.completeness(false), offset])
      return true
    }
    self[index].isComplete = true
    // Version 3's field in versions 5 and 6, and theirs in version 3.
    let swapped = request.version == 3 ? "Upload-Complete: ?1" : "Upload-Incomplete: ?0"
    try answer(request, "200 OK", fields + [swapped, offset], body: "received\n")
    // It ends with its handler's response.
    self[index].isGone = true
    return true
  }
}
