// The agent's view of a session with an identifier.

internal import EventLoops
internal import Foundation
internal import FoundationNetworking
internal import TransferClient

/// The agent's side of a session: its link, or the reason why there is none. Any thread.
final class BackgroundSession: @unchecked Sendable {
  let identifier: String
  private let link: AgentLink?
  private let monitor = Monitor()
  private var failure: URLError?

  init(identifier: String, _ location: AgentLocation?, program: String?) {
    self.identifier = identifier
    // An empty identifier belongs to the command.
    if let location, !identifier.isEmpty {
      link = AgentLink(location, program: program, identifier: identifier)
    } else {
      link = nil
      failure = URLError(
        .backgroundSessionWasDisconnected, nil,
        identifier.isEmpty
          ? "a background session requires an identifier"
          : "cannot find a directory for the agent: set HOME or XDG_STATE_HOME")
    }
  }

  deinit { link?.finish() }

  /// Why tasks cannot begin; nil if they can.
  var error: URLError? { monitor.withLock { failure } }

  /// Connects.
  ///
  /// - Returns: the transfers of earlier processes.
  func begin() -> [TransferStatus] {
    guard let link else { return [] }
    do throws(AgentError) {
      return try link.begin()
    } catch {
      fail(error)
      return []
    }
  }

  /// Receives news from now on.
  ///
  /// - Returns: false if the system refuses a thread for it. The connection is then closed, and the agent keeps the
  ///   news for another session with the identifier.
  func listen(_ hear: @escaping @Sendable (AgentLink.News) -> Void) -> Bool {
    do throws(AgentError) {
      try link?.listen(hear)
      return true
    } catch {
      fail(error)
      close()
      return false
    }
  }

  private func fail(_ error: AgentError) {
    fail(URLError(.backgroundSessionWasDisconnected, nil, "cannot reach the agent for background transfers: \(error)"))
  }

  /// From now on, tasks cannot begin.
  func fail(_ error: URLError) { monitor.withLock { failure = failure ?? error } }

  func order(_ kind: AgentOrder.Kind, answered: @escaping @Sendable (AgentAnswer) -> Void = { _ in }) {
    link?.order(kind, answered: answered)
  }

  /// Ends at once, like a killed process.
  func close() { link?.close() }

  /// Ends when the agent has answered all orders.
  func finish() { link?.finish() }
}
