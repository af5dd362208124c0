// The histories of all uploads, from the traffic through a proxy.

internal import EventLoops
package import NetworkTesting

/// Groups the exchanges of a ``RecordingProxy`` by their uploads.
package final class HistoryRecorder: Sendable {
  fileprivate struct Exchange {
    var operation: UploadHistory.Operation
    var token: String?
  }

  fileprivate struct State {
    var exchanges: [Int: Exchange] = [:]
    var histories: [String: UploadHistory] = [:]
    var statuses: [Int: Int] = [:]
  }

  private let state = Lock(State())

  package init() {}

  /// The recorded histories of uploads whose URL a client has received, by their tokens. Active requests are included
  /// in their current state.
  package var histories: [String: UploadHistory] {
    state.withLock { state in
      var all = state.histories
      for exchange in state.exchanges.values {
        if let token = exchange.token { all[token, default: UploadHistory()].operations.append(exchange.operation) }
      }
      return all
    }
  }

  /// How many final responses had each status.
  package var statuses: [Int: Int] { state.withLock { $0.statuses } }

  package func record(_ number: Int, _ event: RecordingProxy.Event) {
    let now = MonotonicInstant.now.nanoseconds
    state.withLock { $0.record(number, event, now) }
  }
}

extension HistoryRecorder.State {
  fileprivate mutating func record(_ number: Int, _ event: RecordingProxy.Event, _ now: Int64) {
    if case .request(let head) = event {
      if let operation = Self.operation(head, now) {
        let path = head.line.split(separator: " ").dropFirst().first ?? ""
        exchanges[number] = .init(operation: operation, token: Self.token(String(path)))
      }
      return
    }
    guard var exchange = exchanges.removeValue(forKey: number) else { return }
    switch event {
    case .request: break
    case .content(let count): exchange.operation.sent += UInt64(count)
    case .requestEnded: exchange.operation.isWhole = true
    case .response(let head):
      if let location = head["Location"], exchange.token == nil { exchange.token = Self.token(location) }
      let offset = head.integer("Upload-Offset")
      guard !head.isInterim else {
        if let offset {
          exchange.operation.progress.append(.init(time: now, offset: offset, sent: exchange.operation.sent))
        }
        break
      }
      statuses[head.status, default: 0] += 1
      exchange.operation.answer = .init(
        time: now, status: head.status, offset: offset, isComplete: head["Upload-Complete"].map { $0 == "?1" })
      return end(exchange)
    case .broken: return end(exchange)
    }
    exchanges[number] = exchange
  }

  private mutating func end(_ exchange: HistoryRecorder.Exchange) {
    // A creation that was never answered, so no client knows the upload.
    guard let token = exchange.token else { return }
    histories[token, default: UploadHistory()].operations.append(exchange.operation)
  }

  private static func operation(_ head: MessageHead, _ now: Int64) -> UploadHistory.Operation? {
    let completes = head["Upload-Complete"] == "?1"
    return switch head.method {
    case "POST": .init(.append(at: 0, completes: completes), called: now)
    case "PATCH": head.integer("Upload-Offset").map { .init(.append(at: $0, completes: completes), called: now) }
    case "HEAD": .init(.head, called: now)
    case "DELETE": .init(.cancellation, called: now)
    default: nil
    }
  }

  private static func token(_ path: String) -> String? {
    path.contains("/.uploads/") ? path.split(separator: "/").last.map { String($0) } : nil
  }
}
