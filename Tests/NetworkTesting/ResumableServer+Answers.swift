// The answers of the configurable server: correct, except for its habits and the test's conduct.

import EventLoops

extension ResumableServer {
  func serve(_ connection: ServerConnection, _ number: Int) throws {
    while true {
      let head = try connection.head()
      let method = String(head.line.prefix { $0 != " " })
      let count = state.withLock { state in
        defer { state.counts[method, default: 0] += 1 }
        return state.counts[method, default: 0]
      }
      let request = Request(connection: number, number: count, head: head)
      switch try conduct(request, connection) {
      case .answered: requests.append(request)
      case .close:
        requests.append(request)
        return
      case .odd(let odd):
        requests.append(request)
        if odd.readsContent { _ = try take(request, connection, nil, .proper, isLogged: false) }
        if try !odd.send(on: connection) { return }
      case let other: if try !answer(request, connection, other) { return }
      }
    }
  }

  /// Returns false if the connection must end.
  private func answer(_ request: Request, _ connection: ServerConnection, _ conduct: Conduct) throws -> Bool {
    if let version = request.version, !habits.versions.contains(version) {
      _ = try take(request, connection, nil, .proper)
      try connection.respond(habits.strange.status, habits.strange.fields)
      return true
    }
    let limits = habits.limits.map { ["Upload-Limit: \($0)"] } ?? []
    switch request.method {
    case "OPTIONS":
      requests.append(request)
      if case .answer(let status, let fields) = conduct {
        try connection.respond(status, fields)
      } else {
        try connection.respond("200 OK", limits + version(request))
      }
      return true
    case "HEAD", "DELETE", "PATCH": return try answerUpload(request, connection, conduct, limits)
    default: break
    }
    guard request.head["Upload-Complete"] ?? request.head["Upload-Incomplete"] != nil else {
      return try answerPlain(request, connection, conduct)
    }
    let index = state.withLock { state in
      state.uploads.append(Upload(head: request.head))
      return state.uploads.count - 1
    }
    let place = ["Location: \(habits.location("/uploads/\(index)"))"]
    if habits.announces {
      try connection.send(interim(request, place + limits))
    }
    guard try take(request, connection, index, conduct) else { return false }
    return try finish(
      request, connection, index, conduct, request.completes ? "200 OK" : "201 Created",
      place + limits + habits.creationFields)
  }

  private func answerPlain(_ request: Request, _ connection: ServerConnection, _ conduct: Conduct) throws -> Bool {
    state.withLock { $0.plain.append((request.head, [])) }
    guard try take(request, connection, -1, conduct) else { return false }
    if case .answer(let status, let fields) = conduct {
      try connection.respond(status, fields)
    } else {
      try connection.respond("200 OK")
    }
    return true
  }

  private func answerUpload(
    _ request: Request, _ connection: ServerConnection, _ conduct: Conduct, _ limits: [String]
  ) throws -> Bool {
    let index = Int(request.target.split(separator: "/").last ?? "") ?? -1
    let upload = state.withLock { state in
      state.uploads.indices.contains(index) && !state.uploads[index].isGone ? state.uploads[index] : nil
    }
    switch request.method {
    case "HEAD":
      requests.append(request)
      if case .answer(let status, let fields) = conduct {
        try connection.respond(status, fields)
      } else if let upload {
        try connection.respond(
          "204 No Content",
          version(request) + completeness(request, upload.isComplete) + ["Upload-Offset: \(upload.bytes.count)"]
            + limits)
      } else {
        try connection.respond("404 Not Found")
      }
      return true
    case "DELETE":
      requests.append(request)
      if case .answer(let status, let fields) = conduct {
        try connection.respond(status, fields)
      } else {
        if upload != nil { forget(index) }
        try connection.respond(upload == nil ? "404 Not Found" : "204 No Content")
      }
      return true
    default: break
    }
    if case .destroy(let status, let fields) = conduct {
      _ = try take(request, connection, nil, .proper)
      forget(index)
      try connection.respond(status, fields)
      return true
    }
    guard let upload else {
      _ = try take(request, connection, nil, .proper)
      try connection.respond("404 Not Found")
      return true
    }
    guard request.offset == UInt64(upload.bytes.count), !upload.isComplete else {
      _ = try take(request, connection, nil, .proper)
      try connection.respond(
        "409 Conflict", ["Upload-Offset: \(upload.bytes.count)"] + completeness(request, upload.isComplete))
      return true
    }
    guard try take(request, connection, index, conduct) else { return false }
    return try finish(request, connection, index, conduct, request.completes ? "200 OK" : "204 No Content", [])
  }

  private func finish(
    _ request: Request, _ connection: ServerConnection, _ index: Int, _ conduct: Conduct, _ status: String,
    _ fields: [String]
  ) throws -> Bool {
    if case .answer(let status, let fields) = conduct {
      try connection.respond(status, fields)
      return true
    }
    let bytes = state.withLock { state in
      if request.completes { state.uploads[index].isComplete = true }
      if request.completes, habits.forgets { state.uploads[index].isGone = true }
      return state.uploads[index].bytes
    }
    if case .hangUp = conduct {
      // After the first byte of an answer, libcurl does not retry by itself.
      try connection.send("HTTP/1.1 102 Processing\r\n\r\n")
      return false
    }
    var fields = fields + version(request)
    if habits.tellsCompleteness { fields += completeness(request, request.completes, isFinal: request.completes) }
    if habits.tellsOffset { fields.append("Upload-Offset: \(bytes.count)") }
    if let digest = habits.digest { fields.append("Repr-Digest: \(digest(bytes))") }
    try connection.respond(status, fields)
    return true
  }

  private func version(_ request: Request) -> [String] {
    request.version.map { ["Upload-Draft-Interop-Version: \($0)"] } ?? []
  }

  private func completeness(_ request: Request, _ isComplete: Bool, isFinal: Bool = false) -> [String] {
    let inverts = (request.version == 3) != (isFinal && habits.swapsCompleteness)
    return ["\(inverts ? "Upload-Incomplete" : "Upload-Complete"): ?\(isComplete != inverts ? 1 : 0)"]
  }

  private func interim(_ request: Request, _ fields: [String]) -> String {
    "HTTP/1.1 104 Upload Resumption Supported\r\n" + (version(request) + fields).map { "\($0)\r\n" }.joined() + "\r\n"
  }

  // MARK: Content

  /// Reads the content as it arrives, and keeps it in an upload (-1: the plain request's). Returns false if the
  /// connection must end.
  private func take(
    _ request: Request, _ connection: ServerConnection, _ index: Int?, _ conduct: Conduct, isLogged: Bool = true
  ) throws -> Bool {
    var request = request
    var limit = Int.max
    switch conduct {
    case .cut(let count), .early(let count, _, _): limit = count
    default: break
    }
    var told = 0
    var rest = request.head["Content-Length"].flatMap { Int($0) } ?? 0
    let isChunked = request.head["Transfer-Encoding"] == "chunked"
    func keep(_ piece: [UInt8]) throws {
      let piece = piece.prefix(limit - request.count)
      request.count += piece.count
      state.withLock { state in
        switch index {
        case nil: break
        case -1: state.plain[state.plain.count - 1].bytes += piece
        case let index?: state.uploads[index].bytes += piece
        }
      }
      if let step = habits.progress, let index, index >= 0, request.count - told >= step {
        told = request.count
        let offset = state.withLock { $0.uploads[index].bytes.count }
        try connection.send(interim(request, ["Upload-Offset: \(offset)"]))
      }
    }
    func read() throws {
      while request.count < limit {
        if isChunked {
          guard let piece = try connection.chunk(brokenOff: { try? keep($0) }) else { break }
          try keep(piece)
        } else {
          guard rest > 0 else { break }
          guard let piece = try connection.receive(min(rest, 65_536)) else {
            throw TestFailure("the client ended the connection")
          }
          rest -= piece.count
          try keep(Array(piece))
        }
      }
    }
    do {
      try read()
    } catch {
      if isLogged { requests.append(request) }
      throw error
    }
    if isLogged { requests.append(request) }
    switch conduct {
    case .cut:
      if request.method == "PATCH" {
        connection.reset()
      } else {
        // A 104 was sent before. A sending client may see a reset before it reads the 104, and would not know the
        // upload's URL.
        connection.shutdownWriting()
        _ = connection.readToEnd()
      }
      return false
    case .early(_, let status, let fields):
      try connection.respond(status, fields)
      _ = connection.waitForEnd()
      return false
    case .silent:
      _ = connection.waitForEnd()
      return false
    default: return true
    }
  }
}
