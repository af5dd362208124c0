// Why a load test ended before its planned end.

/// The reason why a run ended early.
public enum LoadEndReason: Equatable, Sendable, CustomStringConvertible {
  /// ``LoadTest/stop()`` was called.
  case stopped
  /// ``LoadConfiguration/maximumByteCount`` was reached.
  case byteLimit(UInt64)
  /// ``LoadConfiguration/maximumConnectionCount`` was reached.
  case connectionLimit(UInt64)
  /// No further request can succeed, for this reason.
  case failed(String)

  /// The reason, in words.
  public var description: String {
    switch self {
    case .stopped: "it was stopped"
    case .byteLimit(let limit): "the limit of \(limit) bytes was reached"
    case .connectionLimit(let limit): "the limit of \(limit) connections was reached"
    case .failed(let reason): reason
    }
  }
}
