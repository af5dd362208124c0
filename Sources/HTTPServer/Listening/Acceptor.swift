// Where all connections of a server come in: one loop accepts, and hands them to all loops in turn.
//
// One acceptor and not a listener for each loop (SO_REUSEPORT): turns are even, where the kernel's hash of addresses is
// so only by chance, and Unix domain sockets have no such hash at all.

package import EventLoops

/// The listeners of a server. After ``init`` only on the first loop's thread, which is why it may be unchecked.
package final class Acceptor: @unchecked Sendable {
  package let listeners: [Listener]
  private let loops: [(connections: ServerConnections, loop: EventLoop)]
  private let descriptorLimit: () -> Int32
  private let closeIdle: () -> Bool
  private let failed: (String) -> Void
  private var next = 0

  /// - Parameters:
  ///   - loops: the first is the one that accepts.
  ///   - descriptorLimit: connections get smaller descriptors than this.
  ///   - closeIdle: closes descriptors that can be opened again, before a connection is turned away. Returns whether
  ///     one is free now.
  ///   - failed: told of a listener that cannot accept.
  package init(
    at addresses: [ListenAddress], _ options: Listener.Options,
    _ loops: [(connections: ServerConnections, loop: EventLoop)],
    descriptorLimit: @escaping () -> Int32, closeIdle: @escaping () -> Bool, failed: @escaping (String) -> Void
  ) throws(ListenError) {
    self.loops = loops
    self.descriptorLimit = descriptorLimit
    self.closeIdle = closeIdle
    self.failed = failed
    var listeners: [Listener] = []
    for address in addresses { listeners += try Listener.all(at: address, options, loops[0].loop) }
    self.listeners = listeners
  }

  package func start() {
    let first = loops[0].connections
    for listener in listeners {
      listener.accepted = { [unowned self] in handOut(ConnectionHandover($0, peer: $1)) }
      listener.exhausted = { first.exhausted($0) }
      listener.descriptorLimit = descriptorLimit
      listener.makeRoom = { [unowned self] in makeRoom() }
      listener.turnedAway = { first.turnedAway() }
      do throws(SystemError) {
        try listener.start()
      } catch {
        // The loop takes the listeners first of all; if even that fails, this is said, and the others go on.
        failed("cannot serve \(listener.address): \(error)")
      }
    }
    first.descriptorFreed = { [unowned self] in resume() }
  }

  private func resume() {
    for listener in listeners { listener.resume() }
  }

  /// Closes what can be done without: files that are opened again when they are needed, then a connection that asks
  /// nothing.
  private func makeRoom() -> Bool {
    if closeIdle() || loops[0].connections.closeDispensable() { return true }
    // Theirs come too late for this connection, and in time for the next one.
    for (connections, loop) in loops.dropFirst() {
      loop.execute { [self, first = loops[0].loop] in
        if connections.closeDispensable() { first.execute { self.resume() } }
      }
    }
    return false
  }

  private func handOut(_ connection: ConnectionHandover) {
    let turn = next
    next = (next + 1) % loops.count
    // The acceptor's own need no way from thread to thread.
    if turn == 0 { loops[0].connections.take(connection) } else { Self.give(connection, to: loops[turn]) }
  }

  private static func give(
    _ connection: ConnectionHandover, to target: (connections: ServerConnections, loop: EventLoop)
  ) {
    let connections = target.connections
    target.loop.execute { connections.take(connection) }
  }

  package func stop() {
    for listener in listeners { listener.stop() }
  }
}
