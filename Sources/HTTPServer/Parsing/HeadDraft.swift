// A request head while its lines arrive, with the rules that need all of them (RFC 9112, sections 3, 5 and 6).

/// Collects the lines of one head. Each is passed without its CR LF.
struct HeadDraft: Sendable {
  private var method = ""
  private var target: RequestTarget?
  private var minorVersion = 1
  private var fields = HeaderFields()

  private var contentLength: UInt64?
  private var hostCount = 0
  private var isChunked = false
  private var expectsContinue = false
  private var saysClose = false

  /// Whether the request line is still to come.
  var isEmpty: Bool { target == nil }

  mutating func add(line: Span<UInt8>, limits: RequestParser.Limits) throws(RequestRefusal) {
    for index in line.indices where line[index] == Octet.carriageReturn {
      throw RequestRefusal(400, "the head contains a CR without LF")
    }
    if isEmpty {
      try readRequestLine(line)
    } else {
      guard fields.all.count < limits.fields else { throw RequestRefusal(431, "the request has too many fields") }
      try readField(line)
    }
  }

  private mutating func readRequestLine(_ line: Span<UInt8>) throws(RequestRefusal) {
    // Exactly one space on either side of the target: a more lenient parser would read another request than we do.
    var spaces: (Int, Int)?
    var first: Int?
    for index in line.indices where line[index] == Octet.space {
      if spaces != nil { throw RequestRefusal(400, "the request line has more than three parts") }
      if let first { spaces = (first, index) } else { first = index }
    }
    // The parser has checked that the first octet belongs to a method.
    guard let (first, second) = spaces else { throw RequestRefusal(400, "the request line has fewer than three parts") }
    for index in 0..<first where !Octet.isToken(line[index]) {
      throw RequestRefusal(400, "the method is not a token")
    }
    let version = line.extracting((second + 1)..<line.count)
    guard version.count == 8, String(decodingASCII: version.extracting(0..<5)) == "HTTP/",
      version[6] == UInt8(ascii: "."),
      Octet.isDigit(version[5]), Octet.isDigit(version[7])
    else { throw RequestRefusal(400, "the request line does not end in an HTTP version") }
    guard version[5] == UInt8(ascii: "1") else {
      throw RequestRefusal(505, "this server supports only HTTP/1.1 and HTTP/1.0")
    }
    // A higher minor version is treated as the highest that we support (RFC 9110, section 2.5).
    minorVersion = version[7] == UInt8(ascii: "0") ? 0 : 1
    method = String(decodingASCII: line.extracting(0..<first))
    target = try RequestTarget(line.extracting((first + 1)..<second), method: method)
  }

  private mutating func readField(_ line: Span<UInt8>) throws(RequestRefusal) {
    if Octet.isBlank(line[0]) {
      throw RequestRefusal(400, "a field extends over several lines")
    }
    var colon = 0
    while colon < line.count, Octet.isToken(line[colon]) { colon += 1 }
    guard colon < line.count, line[colon] == Octet.colon else {
      // This includes a space before the colon, which has been used to hide a field from one of two servers.
      throw RequestRefusal(400, "the name of a field is malformed")
    }
    guard colon > 0 else { throw RequestRefusal(400, "a field has no name") }
    var start = colon + 1
    var end = line.count
    while start < end, Octet.isBlank(line[start]) { start += 1 }
    while end > start, Octet.isBlank(line[end - 1]) { end -= 1 }
    let value = line.extracting(start..<end)
    for index in value.indices where !Octet.isFieldContent(value[index]) {
      throw RequestRefusal(400, "the value of a field contains a control character")
    }
    let name = line.extracting(0..<colon)
    fields.append(
      HeaderFields.Field(checkedName: String(decodingASCII: name), checkedValue: String(decodingASCII: value)))
    try note(name, value)
  }

  /// Extracts from a field what framing and the connection depend on.
  private mutating func note(_ name: Span<UInt8>, _ value: Span<UInt8>) throws(RequestRefusal) {
    if name.equals(lowercase: "host") {
      hostCount += 1
      guard hostCount == 1 else { throw RequestRefusal(400, "the request has more than one Host") }
      for index in value.indices where !Octet.isAuthority(value[index]) {
        throw RequestRefusal(400, "the Host is malformed")
      }
    } else if name.equals(lowercase: "content-length") {
      // Even equal ones are refused, because a server that joins them or picks one reads another body than we do.
      guard contentLength == nil else { throw RequestRefusal(400, "the request has more than one Content-Length") }
      contentLength = try Self.length(value)
    } else if name.equals(lowercase: "transfer-encoding") {
      guard !isChunked else { throw RequestRefusal(400, "the request has more than one Transfer-Encoding") }
      try Self.checkTransferEncoding(value)
      isChunked = true
    } else if name.equals(lowercase: "expect") {
      guard value.equals(lowercase: "100-continue") else {
        throw RequestRefusal(417, "this server supports only the expectation 100-continue")
      }
      expectsContinue = true
    } else if name.equals(lowercase: "connection") {
      for element in Self.list(value) where value.extracting(element).equals(lowercase: "close") { saysClose = true }
    }
  }

  /// The lines are complete. Applies the rules that concern several of them.
  consuming func finish(limits: RequestParser.Limits) throws(RequestRefusal) -> RequestHead {
    guard let target else { throw RequestRefusal(400, "the request line is missing") }
    guard hostCount == 1 || minorVersion == 0 else { throw RequestRefusal(400, "the request has no Host") }
    var framing = BodyFraming.absent
    if isChunked {
      guard contentLength == nil else {
        throw RequestRefusal(400, "the request has both Content-Length and Transfer-Encoding")
      }
      guard minorVersion == 1 else { throw RequestRefusal(400, "Transfer-Encoding is not part of HTTP/1.0") }
      framing = .chunked
    } else if let contentLength {
      if let maximum = limits.body, contentLength > maximum {
        throw RequestRefusal(413, "the body is larger than this server accepts")
      }
      framing = .sized(contentLength)
    }
    return RequestHead(
      method: method, target: target, minorVersion: minorVersion, fields: fields, framing: framing,
      // HTTP/1.0 does not define the expectation, so it is ignored there (RFC 9110, section 10.1.1).
      expectsContinue: expectsContinue && minorVersion == 1 && framing != .absent && framing != .sized(0),
      // An HTTP/1.0 connection is closed after each answer even with "keep-alive", which streaming clients do not need.
      keepsAlive: minorVersion == 1 && !saysClose)
  }

  /// `Content-Length`: digits only, without a sign or a list, and at most 63 bits.
  private static func length(_ value: Span<UInt8>) throws(RequestRefusal) -> UInt64 {
    guard value.count > 0 else { throw RequestRefusal(400, "the Content-Length is empty") }
    var length: UInt64 = 0
    for index in value.indices {
      guard Octet.isDigit(value[index]) else { throw RequestRefusal(400, "the Content-Length is not a number") }
      // Beyond this, one more digit could exceed 2⁶³.
      guard length <= (UInt64(Int64.max) - 9) / 10 else {
        throw RequestRefusal(413, "the Content-Length is larger than any body can be")
      }
      length = length * 10 + UInt64(value[index] &- 0x30)
    }
    return length
  }

  /// `Transfer-Encoding`: only `chunked`. An empty element is valid by RFC 9110, section 5.6.1.2, but other servers
  /// interpret such a list differently, so it is refused like any other malformed list.
  private static func checkTransferEncoding(_ value: Span<UInt8>) throws(RequestRefusal) {
    if value.equals(lowercase: "chunked") { return }
    let elements = list(value)
    let isList = elements.allSatisfy { !$0.isEmpty && $0.allSatisfy { value[$0] < 0x80 } }
    let isOther = elements.contains { !value.extracting($0).equals(lowercase: "chunked") }
    guard isList, isOther else { throw RequestRefusal(400, "the Transfer-Encoding is malformed") }
    throw RequestRefusal(501, "this server supports only the transfer coding chunked")
  }

  /// The elements of a comma-separated list without the white space around them, empty ones included.
  private static func list(_ value: Span<UInt8>) -> [Range<Int>] {
    var elements: [Range<Int>] = []
    var start = 0
    for index in 0...value.count where index == value.count || value[index] == UInt8(ascii: ",") {
      var element = start..<index
      while let first = element.first, Octet.isBlank(value[first]) { element.removeFirst() }
      while let last = element.last, Octet.isBlank(value[last]) { element.removeLast() }
      elements.append(element)
      start = index + 1
    }
    return elements
  }
}
