// Imitates tusd: two protocols at one URL, distinguished by the request's version. It reports completeness only in
// answers to HEAD.

import NetworkTesting

extension OtherServer {
  private static let versions = 3...6

  /// The URL for creations.
  var tusdURL: String { "\(origin)/files/" }

  /// Returns false if the connection must end.
  func answerAsTusd(_ request: Request) throws -> Bool {
    let version = request.version.flatMap { Self.versions.contains($0) ? $0 : nil }
    // An unknown version selects the other protocol, tus 1.0.
    let common = version == nil ? ["Tus-Resumable: 1.0.0"] : []
    if request.method == "OPTIONS" {
      try answer(
        request, "200 OK",
        common + ["Tus-Version: 1.0.0", "Tus-Extension: creation,creation-with-upload,termination"]
          + (version == nil ? [] : ["Upload-Limit: min-size=0"]))
      return true
    }
    guard let version else {
      return try answerEarly(
        request, "412 Precondition Failed", common,
        body: "ERR_UNSUPPORTED_VERSION: missing, invalid or unsupported Tus-Resumable header\n")
    }
    let named = "Upload-Draft-Interop-Version: \(version)"
    if request.target.split(separator: "?").first == "/files/" {
      guard request.method == "POST" else {
        return try answerEarly(request, "405 Method Not Allowed", ["Allow: POST"], body: "method not allowed")
      }
      return try create(request, named)
    }
    guard let index = index(request) else {
      return try answerEarly(request, "404 Not Found", body: "ERR_UPLOAD_NOT_FOUND: upload not found\n")
    }
    switch request.method {
    case "HEAD":
      // It takes the lock, which the present holder must release.
      detach(index)
      let upload = self[index]
      try answer(
        request, "204 No Content",
        [
          "Cache-Control: no-store", "Upload-Offset: \(upload.bytes.count)", named,
          request.completeness(upload.length == upload.bytes.count), Self.limits(upload),
        ] + (upload.length.map { ["Upload-Length: \($0)"] } ?? []))
      return true
    case "PATCH": return try append(request, to: index)
    case "DELETE":
      detach(index)
      self[index].isGone = true
      try answer(request, "204 No Content")
      return true
    default: return try answerEarly(request, "405 Method Not Allowed", ["Allow: GET, HEAD, PATCH, DELETE"])
    }
  }

  private static func limits(_ upload: Upload) -> String {
    "Upload-Limit: min-size=0" + (upload.length.map { ",max-size=\($0)" } ?? "")
  }

  private func create(_ request: Request, _ named: String) throws -> Bool {
    let completes = request.completes == true
    let lengths = [request.uploadLength, completes ? request.contentLength : nil].compactMap(\.self)
    guard Set(lengths).count <= 1 else {
      return try answerEarly(request, "400 Bad Request", body: "ERR_INVALID_UPLOAD_LENGTH\n")
    }
    let index = create(Upload(length: lengths.first))
    let fields = [
      // With the host that the request names.
      "Location: http://\(request.head["Host"] ?? "")/files/\(index)", named, Self.limits(self[index]),
    ]
    try announce(request, fields)
    guard try take(request, into: index) else { return false }
    if completes { self[index].length = self[index].bytes.count }
    try answer(request, "201 Created", fields + ["Upload-Offset: \(self[index].bytes.count)"])
    return true
  }

  private func append(_ request: Request, to index: Int) throws -> Bool {
    if request.version == 6, request.head["Content-Type"] != "application/partial-upload" {
      return try answerEarly(request, "400 Bad Request", body: "ERR_INVALID_CONTENT_TYPE\n")
    }
    guard let offset = request.offset else {
      return try answerEarly(request, "400 Bad Request", body: "ERR_INVALID_OFFSET\n")
    }
    detach(index)
    let upload = self[index]
    guard offset == upload.bytes.count else {
      // Without the correct offset.
      return try answerEarly(request, "409 Conflict", body: "ERR_MISMATCHED_OFFSET: mismatched offset\n")
    }
    if upload.length == offset {
      guard try take(request, into: index) else { return false }
      try answer(request, "204 No Content", ["Upload-Offset: \(offset)"])
      return true
    }
    if request.uploadLength != nil, upload.length != nil {
      return try answerEarly(request, "400 Bad Request", body: "ERR_INVALID_UPLOAD_LENGTH\n")
    }
    if let length = upload.length, let count = request.contentLength, offset + count > length {
      return try answerEarly(request, "413 Request Entity Too Large", body: "ERR_UPLOAD_SIZE_EXCEEDED\n")
    }
    if let length = request.uploadLength { self[index].length = length }
    guard try take(request, into: index) else { return false }
    if request.completes == true, self[index].length == nil { self[index].length = self[index].bytes.count }
    try answer(request, "204 No Content", ["Upload-Offset: \(self[index].bytes.count)"])
    return true
  }
}
