// A session's connection to the agent, which is established again whenever the agent ends.

internal import EventLoops
internal import Glibc
internal import TransferClient

/// Repeats orders until they are answered, so every order must be repeatable. Any thread.
final class AgentLink: Sendable {
  /// Messages of the agent other than answers.
  enum News: Sendable {
    /// The state of a transfer of the session.
    case transfer(TransferStatus)
    /// Another process has taken over the session.
    case replaced
  }

  private struct Order {
    var kind: AgentOrder.Kind
    /// The clocks when it was given.
    var clocks: ClockReading
    var answered: @Sendable (AgentAnswer) -> Void
  }

  private struct State {
    var connection: AgentConnection?
    var isClosed = false
    /// It is closed once all orders are answered.
    var isFinishing = false
    var postponed = PostponedOrders()
    /// The unanswered orders, in sequence.
    var orders: [(token: Int, order: Order)] = []
    var nextToken = 0
    /// Orders by their number on this connection.
    var tokens: [Int64: Int] = [:]
  }

  private let location: AgentLocation
  private let program: String?
  private let identifier: String
  private let readClocks: @Sendable () -> ClockReading
  private let state = Lock(State())

  /// The longest pause between two attempts to reach an agent.
  private static let longestPause = Duration.seconds(30)

  init(
    _ location: AgentLocation, program: String?, identifier: String,
    readClocks: @escaping @Sendable () -> ClockReading = { .now }
  ) {
    (self.location, self.program, self.identifier) = (location, program, identifier)
    self.readClocks = readClocks
  }

  /// Connects, and starts the agent if there is none. News and answers wait until ``listen(_:)``.
  ///
  /// - Returns: the session's transfers.
  /// - Throws: ``AgentError`` if there is no agent and none can be started.
  func begin() throws(AgentError) -> [TransferStatus] {
    let deadline = MonotonicInstant.now + Self.longestPause
    while true {
      do throws(AgentError) {
        let connection = try AgentLaunch.connection(location, program: program)
        let transfers = try watch(connection)
        state.withLock { $0.connection = connection }
        return transfers
      } catch {
        // That agent was about to end, so start the next one.
        guard error == .disconnected, .now < deadline else { throw error }
        poll(nil, 0, 20)
      }
    }
  }

  /// - Parameter hear: called on the link's thread from now on.
  func listen(_ hear: @escaping @Sendable (News) -> Void) throws(AgentError) {
    guard let connection = state.withLock({ $0.connection }) else { return }
    do throws(SystemError) {
      try NamedThread("sluice-agent-link") { [self] in serve(connection, hear) }.detach()
    } catch { throw .system(location.socket, error) }
  }

  /// Sends an order. `answered` is called once, on the link's thread.
  func order(_ kind: AgentOrder.Kind, answered: @escaping @Sendable (AgentAnswer) -> Void = { _ in }) {
    state.withLock { state in
      state.nextToken += 1
      let order = Order(kind: kind, clocks: readClocks(), answered: answered)
      state.orders.append((state.nextToken, order))
      send(state.nextToken, order, &state)
    }
  }

  /// Ends the connection. Undelivered events are kept for the next session with its identifier.
  func close() {
    state.withLock { state in
      state.isClosed = true
      state.connection?.end()
    }
  }

  /// Ends the connection once all orders are answered.
  func finish() {
    state.withLock { state in
      state.isFinishing = true
      Self.closeIfFinished(&state)
    }
  }

  private static func closeIfFinished(_ state: inout State) {
    guard state.isFinishing, state.orders.isEmpty else { return }
    state.isClosed = true
    state.connection?.end()
  }

  // MARK: The link's thread

  private func serve(_ first: AgentConnection, _ hear: @escaping @Sendable (News) -> Void) {
    var connection = first
    while true {
      do throws(AgentError) {
        while true {
          do throws(AgentError) {
            take(try connection.receive(within: repeatRefused()), hear)
          } catch {
            // It is time to repeat an order.
            guard error == .noAnswer else { throw error }
          }
        }
      } catch {
        guard let next = reconnect(hear) else { return }
        connection = next
      }
    }
  }

  private func take(_ answer: AgentAnswer, _ hear: (News) -> Void) {
    switch answer {
    case .accepted(let number, _), .done(let number), .refused(let number, _, _):
      let order = state.withLock { state -> Order? in
        guard let token = state.tokens.removeValue(forKey: number),
          let index = state.orders.firstIndex(where: { $0.token == token })
        else { return nil }
        if case .refused(_, .database, _) = answer {
          // Nothing has changed, and there may be space later.
          state.postponed.postpone(token, now: .now)
          return nil
        }
        state.postponed.answered(token)
        return state.orders.remove(at: index).order
      }
      order?.answered(answer)
      state.withLock { Self.closeIfFinished(&$0) }
    case .transfer(_, let status): hear(.transfer(status))
    case .replaced: hear(.replaced)
    }
  }

  /// Repeats refused orders when it is time.
  ///
  /// - Returns: the time until then; nil if none was refused.
  private func repeatRefused() -> Duration? {
    state.withLock { state in
      guard let time = state.postponed.time else { return nil }
      let rest = time - .now
      guard rest.nanoseconds <= 0 else { return rest + .milliseconds(1) }
      let tokens = state.postponed.takeAll()
      for (token, order) in state.orders where tokens.contains(token) { send(token, order, &state) }
      return nil
    }
  }

  /// - Returns: nil if the link is closed.
  private func reconnect(_ hear: (News) -> Void) -> AgentConnection? {
    var pauses = RetryPauses(.milliseconds(50)...Self.longestPause)
    while !state.withLock({ $0.isClosed }) {
      do throws(AgentError) {
        let connection = try AgentLaunch.connection(location, program: program)
        // A finished session receives nothing more, and another one may have its identifier.
        let isFinishing = state.withLock { $0.isFinishing }
        if !isFinishing { for status in try watch(connection) { hear(.transfer(status)) } }
        let isOpen = state.withLock { state in
          guard !state.isClosed else { return false }
          (state.connection, state.tokens) = (connection, [:])
          // All orders are sent again.
          _ = state.postponed.takeAll()
          for (token, order) in state.orders { send(token, order, &state) }
          return true
        }
        return isOpen ? connection : nil
      } catch {
        poll(nil, 0, Int32(clamping: pauses.next().nanoseconds / 1_000_000))
      }
    }
    return nil
  }

  private func watch(_ connection: AgentConnection) throws(AgentError) -> [TransferStatus] {
    var transfers: [TransferStatus] = []
    let answer = try connection.order(.watch(session: identifier)) { answer in
      if case .transfer(_, let status) = answer { transfers.append(status) }
    }
    if case .refused(_, let refusal, let message) = answer { throw .refused(refusal, message) }
    return transfers
  }

  /// If the connection has ended, the order is sent on the next one. The clock may have been set since it was given.
  private func send(_ token: Int, _ order: Order, _ state: inout State) {
    let kind = order.kind.moved(by: readClocks().step(since: order.clocks))
    guard let connection = state.connection, let number = try? connection.send(kind) else { return }
    state.tokens[number] = token
  }
}
