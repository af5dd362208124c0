// Decides when an armed fault strikes, over all connections. A value without I/O.

/// Finds the place in the traffic at which one fault strikes.
struct FaultTrigger: Sendable {
  let fault: ChaosFault
  /// The content that is still to be forwarded before a fault within a body.
  private var contentLeft: Int

  init(_ fault: ChaosFault) {
    self.fault = fault
    if case .requestBody(let count) = fault.place { contentLeft = count } else { contentLeft = 0 }
  }

  /// Whether it strikes before this head.
  func strikes(beforeRequest head: MessageHead) -> Bool { fault.place == .beforeRequest && concerns(head) }

  /// The number of this request's next `count` content bytes after which it strikes; nil if not within them.
  mutating func strike(within count: Int, of request: MessageHead) -> Int? {
    guard case .requestBody = fault.place, concerns(request) else { return nil }
    // Not after the last of these bytes. Another piece may never arrive, and then it strikes at the first byte of the
    // next request.
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

/// A request and its observed state, until its final response is over.
struct ProxiedExchange {
  /// Its number among the requests of all connections.
  let number: Int
  let request: MessageHead
  /// The offset of its content in the upload: `Upload-Offset`, or 0 for a creation.
  let offset: UInt64
  /// The number of content bytes that the client has sent.
  var contentCount: UInt64 = 0
  /// Whether the content has ended.
  var isWhole = false
  /// Its head and the beginning of its body, for a replay.
  var recording: [UInt8]

  /// How much of a body is kept: more than the request of a live stream contains if it is cut early.
  static let recordingLimit = 64 << 10

  init(_ number: Int, _ request: MessageHead) {
    self.number = number
    self.request = request
    offset = request.integer("Upload-Offset") ?? 0
    recording = request.bytes
  }

  var appends: Bool { ["POST", "PUT", "PATCH"].contains(request.method) }

  /// The offset that a response confirms to the client; nil if there is none.
  func acknowledged(by response: MessageHead) -> UInt64? {
    guard response.status == 104 || (200..<300).contains(response.status) else { return nil }
    if let offset = response.integer("Upload-Offset") { return offset }
    // A 2xx to an append acknowledges all of it, and need not have the field.
    return response.status != 104 && appends && isWhole ? offset + contentCount : nil
  }
}
