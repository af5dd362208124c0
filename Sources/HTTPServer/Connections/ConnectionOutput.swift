// What a connection has yet to send: bytes in memory, and then the content of a response, which is read while it is
// sent. It calls nobody, so the connection performs each action.

/// The output of one connection.
struct ConnectionOutput {
  /// How many bytes of a response's content are in memory at once. This keeps a fast network busy while the next piece
  /// is read.
  private static let pieceSize: UInt64 = 256 << 10

  private struct Content {
    let source: any ResponseContent
    /// How many bytes of it were not read yet.
    var unread: UInt64
    /// Whether the next piece is being read.
    var isReading = false
  }

  /// The next step of the connection.
  enum Action {
    /// The kernel has accepted everything.
    case finish
    /// The socket has no space for the rest.
    case waitForSpace
    /// The next piece of the content is being read.
    case waitForContent
    /// The connection has failed with this `errno`.
    case fail(Int32)
    /// Read the next piece of this content, at most this number of bytes.
    case read(any ResponseContent, Int)
    /// The kernel has accepted all of this content.
    case endContent(any ResponseContent)
  }

  private var unsent = UnsentBytes()
  /// The response's content, while some of it is not yet in the kernel.
  private var content: Content?
  /// Whether the last response has such content.
  private var hasContent = false

  /// Whether no bytes in memory wait for the socket.
  var isEmpty: Bool { unsent.isEmpty }
  /// How many bytes are in memory, including those that were accepted before the rest.
  var size: Int { unsent.size }
  /// Whether some of the response's content is not yet in the kernel.
  var isSendingContent: Bool { content != nil }
  /// Whether the next piece of the content is being read.
  var isReadingContent: Bool { content?.isReading == true }

  /// How many bytes of a response's content the client has yet to receive; nil if there is none, or it has all.
  ///
  /// - Parameter unacknowledged: how many bytes in the kernel the client's TCP has not acknowledged.
  func undelivered(_ unacknowledged: @autoclosure () -> UInt64) -> UInt64? {
    guard hasContent else { return nil }
    let rest = UInt64(unsent.count) + unacknowledged()
    guard let content else { return rest == 0 ? nil : rest }
    return content.unread + rest
  }

  mutating func append(_ bytes: [UInt8]) { unsent.append(bytes) }

  /// Sends this content after the bytes that are appended next. Nil if a response has none, or was not made yet.
  mutating func setContent(_ source: (any ResponseContent)?) {
    content = source.map { Content(source: $0, unread: $0.length) }
    hasContent = source != nil
  }

  /// Appends the piece of the content that was read. Returns false if it cannot be one.
  mutating func appendContent(_ bytes: [UInt8]) -> Bool {
    guard let unread = content?.unread, !bytes.isEmpty, UInt64(bytes.count) <= unread else { return false }
    content?.unread = unread - UInt64(bytes.count)
    content?.isReading = false
    unsent.append(bytes)
    return true
  }

  /// Does not send the rest of the content. Returns the content, and how many of its bytes the kernel has accepted.
  mutating func dropContent() -> (source: any ResponseContent, sent: UInt64)? {
    guard let dropped = content.take() else { return nil }
    let read = dropped.source.length - dropped.unread
    // The unsent bytes may belong to the response's head.
    return (dropped.source, read - min(read, UInt64(unsent.count)))
  }

  /// Sends as many bytes as the socket accepts now.
  mutating func flush(to descriptor: Int32) -> Action {
    switch unsent.send(to: descriptor) {
    case .all: break
    case .part: return .waitForSpace
    case .failed(let code): return .fail(code)
    }
    guard let content else { return .finish }
    if content.isReading { return .waitForContent }
    guard content.unread > 0 else {
      self.content = nil
      return .endContent(content.source)
    }
    self.content?.isReading = true
    return .read(content.source, Int(min(content.unread, Self.pieceSize)))
  }
}
