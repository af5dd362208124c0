// The content of a request: none, empty content, a stream of unknown length, bytes, or a part of a file.

internal import EventLoops
public import StreamBuffers

/// The content of a request (RFC 9110, section 6.4), which determines its framing.
public enum UploadBody: ~Copyable, Sendable {
  /// No content and no field about it: HEAD, GET, OPTIONS, DELETE. Refused for POST, PUT and PATCH, which require
  /// ``empty`` (RFC 9110, section 8.6).
  case none
  /// Content of zero bytes, stated as such: `Content-Length: 0`.
  case empty
  /// All bytes that are written into the pair, without a time limit: `Transfer-Encoding: chunked` on HTTP/1.1 (RFC
  /// 9112, section 7.1), DATA frames on HTTP/2. When the writer closes, the content ends. When it fails, the request is
  /// aborted.
  case stream(BoundPair.Input)
  /// A range of a file, with a `Content-Length`.
  case file(FileBody)
  /// Bytes in memory, with a `Content-Length`.
  case bytes([UInt8])
}

extension UploadBody {
  /// The way in which the end of the content is indicated.
  enum Kind: Equatable {
    /// There is no content.
    case none
    /// `Content-Length`, in bytes.
    case length(UInt64)
    /// Chunks on HTTP/1.1, a flag of the last frame on HTTP/2.
    case unknownLength

    /// Whether libcurl never asks for a byte.
    var isWithoutBytes: Bool { self == .none || self == .length(0) }
  }

  var kind: Kind {
    switch self {
    case .none: .none
    case .empty: .length(0)
    case .stream: .unknownLength
    case .file(let file): .length(file.byteCount)
    case .bytes(let bytes): .length(UInt64(bytes.count))
    }
  }

  /// - Throws: ``UploadError`` of kind `invalidRequest` for a content that the method excludes.
  func validate(method: String) throws(UploadError) {
    switch method {
    // libcurl would wait for a response body that never arrives.
    case "HEAD" where kind != .none:
      throw UploadError(.invalidRequest, "a HEAD request has no content (RFC 9110, section 9.3.2). Remove the content")
    case "POST" where kind == .none, "PUT" where kind == .none, "PATCH" where kind == .none:
      throw UploadError(.invalidRequest, "a \(method) request requires content, even if it is empty. Add it")
    default:
      break
    }
  }

  /// The result of filling libcurl's buffer.
  enum Filling: Equatable {
    /// This number of bytes, at least one. `isLast` is true if no more follow.
    case bytes(Int, isLast: Bool)
    /// Nothing at the moment. The body reports when there is more.
    case nothingYet
    case end
    /// The reason, in words.
    case failed(String)
    /// The system cannot read a file.
    case unreadable(SystemError)
  }

  /// Fills `buffer` with the available bytes. `position` is the number of bytes taken before.
  ///
  /// The writer of a stream refills the pair within this call, on this thread, as often as needed. This makes one chunk
  /// and one `send` of many small pieces.
  func fill(_ buffer: UnsafeMutableRawBufferPointer, from position: UInt64) -> Filling {
    switch self {
    case .none: return .end
    case .empty: return .end
    case .file(let file): return file.read(into: buffer, at: position)
    case .bytes(let bytes):
      let rest = bytes[Int(clamping: position)...]
      guard !rest.isEmpty else { return .end }
      let count = min(rest.count, buffer.count)
      buffer.copyBytes(from: rest.prefix(count))
      return .bytes(count, isLast: count == rest.count)
    case .stream(let input):
      var filled = 0
      while filled < buffer.count {
        var free = MutableRawSpan(_unsafeBytes: UnsafeMutableRawBufferPointer(rebasing: buffer[filled...]))
        switch input.read(into: &free) {
        case .bytes(let count): filled += count
        case .empty: return filled == 0 ? .nothingYet : .bytes(filled, isLast: false)
        case .end, .refused: return filled == 0 ? .end : .bytes(filled, isLast: false)
        case .failed(let error): return .failed(error.description)
        }
      }
      return .bytes(filled, isLast: false)
    }
  }

  /// Starts the flow. `news` is called on any thread when there are bytes after ``Filling/nothingYet``.
  func open(_ news: @escaping @Sendable () -> Void) {
    switch self {
    case .stream(let input): input.open { _ in news() }
    default: break
    }
  }

  /// The request is over, successfully or not. The writer of a stream is informed.
  func close(_ error: UploadError?) {
    switch self {
    case .stream(let input):
      if let error { input.fail(BoundPair.StreamError(error.description)) } else { input.close() }
    default: break
    }
  }
}
