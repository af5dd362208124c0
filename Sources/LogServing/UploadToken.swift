// The names of the subjects of a log. Each upload resource and each plain stream has one.

internal import Digests
internal import HTTPMessages
internal import JetStream
internal import ResumableUploads
internal import StreamServing

/// The last token of a subject.
package enum UploadToken {
  /// The beginning of the token of a plain stream. No upload resource has such a token, so no URL reaches the stream.
  private static let prefix = "plain-"

  /// Whether the text may be the token of an upload resource: 32 hexadecimal digits, as ``StreamName/randomID()`` makes
  /// them.
  static func isResource(_ text: String) -> Bool {
    text.utf8.count == 32 && text.utf8.allSatisfy { Octet.hexValue($0) != nil }
  }

  /// Whether a server may have written messages with that token.
  package static func isValid(_ text: String) -> Bool {
    if isResource(text) { return true }
    let digits = text.utf8.dropFirst(prefix.utf8.count)
    return text.hasPrefix(prefix) && digits.count == 64 && digits.allSatisfy { Octet.hexValue($0) != nil }
  }

  /// The token of a plain stream, which each server derives from the request.
  ///
  /// - Parameter generation: how often the stream has begun before and ended incomplete.
  static func plain(_ name: StreamName, generation: Int) -> String {
    // The name contains no line feed.
    prefix + Digest(.sha256, of: Array("\(name.base)\n\(generation)".utf8).span.bytes).hexadecimal
  }
}

/// Finds the current beginning of a plain stream with few questions. All earlier ones are over. A pure state machine.
struct GenerationSearch {
  /// The last one that is known to be over, and the first one that is known not to be.
  private var over = -1
  private var open: Int?
  /// The first one that is not over, if it is known.
  var first: Int? { open.flatMap { $0 - over == 1 ? $0 : nil } }

  /// The generation to read next.
  var next: Int {
    if let open { return over + (open - over) / 2 }
    // 0, 1, 3, 7 …
    return over < 0 ? 0 : over &* 2 &+ 1
  }

  /// Called with the state of ``next``. Returns whether the first generation that is not over is known now.
  mutating func found(isOver: Bool) -> Bool {
    if isOver { over = next } else { open = next }
    return first != nil
  }
}

extension UploadLog {
  /// The state of a plain stream in the log.
  enum FoundPlain {
    case entry(LogEntry, sequence: UInt64, token: String)
    /// There is none yet, and it will have this token.
    case absent(token: String)
    case unavailable(BrokerError)
  }

  /// Reads the state of a plain stream.
  func find(plain name: StreamName, _ completion: @escaping (FoundPlain) -> Void) {
    guard isReady else { return completion(.unavailable(.disconnected)) }
    find(plain: name, GenerationSearch(), nil, completion)
  }

  /// - Parameter first: the state of the first generation that is known not to be over.
  private func find(
    plain name: StreamName, _ search: GenerationSearch, _ first: FoundPlain?,
    _ completion: @escaping (FoundPlain) -> Void
  ) {
    let token = UploadToken.plain(name, generation: search.next)
    stream.lastMessage(of: token) { [self] answer in
      var (search, first) = (search, first)
      let isOver: Bool
      switch answer {
      case .failure(let error): return completion(.unavailable(error))
      case .success(nil): (isOver, first) = (false, .absent(token: token))
      case .success(let message?):
        guard let entry = LogEntry(message.content) else {
          context.emit(ServerEvent(.warning, reason: "message \(message.sequence) of \(message.subject) is damaged"))
          isOver = true
          break
        }
        // Bytes that do not fit the stream do not fit another beginning of it.
        isOver = entry.deactivation != nil && entry.deactivation != .misplaced
        if !isOver { first = .entry(entry, sequence: message.sequence, token: token) }
      }
      if search.found(isOver: isOver), let first { return completion(first) }
      find(plain: name, search, first, completion)
    }
  }
}
