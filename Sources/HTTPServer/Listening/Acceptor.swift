// The entry point of all connections of a server: one loop accepts, and distributes them evenly to all loops.
//
// There is one acceptor instead of a listener for each loop (SO_REUSEPORT). Round robin is even, while the kernel's
// hash of addresses is even only by chance, and Unix domain sockets have no such hash.

package import EventLoops

/// The listeners of a server. After ``init``, only on the first loop's thread.
package final class Acceptor {
  package let listeners: [Listener]
  /// The connections of each loop.
  private let loops: [LoopOwned<ServerConnections>]
  private let descriptorLimit: () -> Int32
  private let closeIdle: () -> Bool
  private let failed: (String) -> Void
  private var next = 0

  /// - Parameters:
  ///   - loops: the connections of each loop. The first loop accepts.
  ///   - descriptorLimit: connections get smaller descriptors than this.
  ///   - closeIdle: closes descriptors that can be opened again, before a connection is turned away. Returns whether
  ///     one is free now.
  ///   - failed: called with the reason if a listener cannot accept yet.
  package init(
    at addresses: [ListenAddress], _ options: Listener.Options,
    _ loops: [LoopOwned<ServerConnections>],
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
    let first = loops[0].value
    for listener in listeners {
      listener.accepted = { [unowned self] in handOut(ConnectionHandover($0, peer: $1)) }
      listener.exhausted = { first.exhausted($0) }
      listener.descriptorLimit = descriptorLimit
      listener.makeRoom = { [unowned self] in makeRoom() }
      listener.turnedAway = { first.turnedAway() }
      do throws(SystemError) {
        try listener.start()
      } catch {
        failed("cannot accept connections at \(listener.address): \(error). The server retries.")
      }
    }
    first.descriptorFreed = { [unowned self] in resume() }
  }

  private func resume() {
    for listener in listeners { listener.resume() }
  }

  /// Closes what is dispensable: files that can be opened again, then a connection without an active request.
  private func makeRoom() -> Bool {
    if closeIdle() || loops[0].value.closeDispensable() { return true }
    // Theirs are too late for this connection, but in time for the next one.
    let acceptor = LoopOwned(self, on: loops[0].loop)
    for connections in loops.dropFirst() {
      connections.execute { if $0.closeDispensable() { acceptor.execute { $0.resume() } } }
    }
    return false
  }

  private func handOut(_ connection: ConnectionHandover) {
    let turn = next
    next = (next + 1) % loops.count
    // The acceptor's own connections need not cross threads.
    if turn == 0 { loops[0].value.take(connection) } else { loops[turn].execute { $0.take(connection) } }
  }

  package func stop() {
    for listener in listeners { listener.stop() }
  }
}
