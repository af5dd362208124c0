// When an armed fault strikes: counted over whatever connections there are. A value; no I/O.

/// Waits for the place of one fault.
struct FaultTrigger: Sendable {
  let fault: ChaosFault
  /// Content that is still to be passed on before a fault within a body.
  private var contentLeft: Int

  init(_ fault: ChaosFault) {
    self.fault = fault
    if case .requestBody(let count) = fault.place { contentLeft = count } else { contentLeft = 0 }
  }

  /// Whether it strikes before this head.
  func strikes(beforeRequest head: MessageHead) -> Bool { fault.place == .beforeRequest && concerns(head) }

  /// After how many of the next `count` bytes of this request's content it strikes; nil if not within them.
  mutating func strike(within count: Int, of request: MessageHead) -> Int? {
    guard case .requestBody = fault.place, concerns(request) else { return nil }
    // Not after the last byte of these: another piece may never come, and then it strikes the next request's first.
    guard contentLeft < count else {
      contentLeft -= count
      return nil
    }
    return contentLeft
  }

  /// Whether it strikes at this place of the final response to that request.
  func strikes(at place: ChaosFault.Place, answering request: MessageHead) -> Bool {
    fault.place == place && concerns(request)
  }

  private func concerns(_ request: MessageHead) -> Bool {
    fault.methods.contains(request.method) && (!fault.atCompletion || request["Upload-Complete"] == "?1")
  }
}

/// A request and what was seen of it, until its final response is over.
struct ProxiedExchange {
  /// Counts the requests of all connections.
  let number: Int
  let request: MessageHead
  /// Where its content begins in the upload: `Upload-Offset`, 0 for a creation.
  let offset: UInt64
  /// Content that has come from the client.
  var contentCount: UInt64 = 0
  /// Whether it has come to its end.
  var isWhole = false
  /// Its head and the beginning of its body, to be sent again by a replay.
  var recording: [UInt8]

  /// As much as is kept of a body: more than the request of a live stream has when it is cut early.
  static let recordingLimit = 64 << 10

  init(_ number: Int, _ request: MessageHead) {
    self.number = number
    self.request = request
    offset = request.integer("Upload-Offset") ?? 0
    recording = request.bytes
  }

  var appends: Bool { ["POST", "PUT", "PATCH"].contains(request.method) }

  /// The offset that a response lets the client believe is kept; nil if it says nothing of the kind.
  func acknowledged(by response: MessageHead) -> UInt64? {
    guard response.status == 104 || (200..<300).contains(response.status) else { return nil }
    if let offset = response.integer("Upload-Offset") { return offset }
    // A 2xx to an append is the acknowledgement of all of it; the field is not required there.
    return response.status != 104 && appends && isWhole ? offset + contentCount : nil
  }
}
