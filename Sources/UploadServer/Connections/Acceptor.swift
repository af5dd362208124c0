// Where all connections of a server come in: one loop accepts, and hands them to all loops in turn.
//
// One acceptor and not a listener for each loop (SO_REUSEPORT): turns are even, where the kernel's hash of addresses is
// so only by chance, and Unix domain sockets have no such hash at all.

internal import EventLoops

/// The listeners of a server. After ``init`` only on the first loop's thread, which is why it may be unchecked.
final class Acceptor: @unchecked Sendable {
  let listeners: [Listener]
  private let cores: [(core: ServerCore, loop: EventLoop)]
  private let files: OpenFiles
  private var next = 0

  /// - Parameters:
  ///   - cores: the first is that of the loop that accepts.
  ///   - files: are closed before a connection is turned away.
  init(
    _ configuration: UploadServer.Configuration, _ cores: [(core: ServerCore, loop: EventLoop)], _ files: OpenFiles
  ) throws(UploadServerError) {
    self.cores = cores
    self.files = files
    let options = Listener.Options(
      receiveBufferSize: configuration.receiveBufferSize, maximumSegmentSize: configuration.maximumSegmentSize)
    var listeners: [Listener] = []
    for address in configuration.listen { listeners += try Listener.all(at: address, options, cores[0].loop) }
    self.listeners = listeners
  }

  func start() {
    let first = cores[0].core
    for listener in listeners {
      listener.accepted = { [unowned self] in handOut(ConnectionHandover($0, peer: $1)) }
      listener.exhausted = { first.exhausted($0) }
      listener.descriptorLimit = { OpenFiles.connectionLimit }
      listener.makeRoom = { [unowned self] in makeRoom() }
      listener.turnedAway = { first.turnedAway() }
      do throws(SystemError) {
        try listener.start()
      } catch {
        // The loop takes the listeners first of all; if even that fails, this is said, and the others go on.
        first.say("\(listener.address) is not served: \(error)")
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
    if files.closeIdle() > 0 || cores[0].core.closeDispensable() { return true }
    // Theirs come too late for this connection, and in time for the next one.
    for (core, loop) in cores.dropFirst() {
      loop.execute { [self, first = cores[0].loop] in
        if core.closeDispensable() { first.execute { self.resume() } }
      }
    }
    return false
  }

  private func handOut(_ connection: ConnectionHandover) {
    let turn = next
    next = (next + 1) % cores.count
    // The acceptor's own need no way from thread to thread.
    if turn == 0 { cores[0].core.take(connection) } else { Self.give(connection, to: cores[turn]) }
  }

  private static func give(_ connection: ConnectionHandover, to target: (core: ServerCore, loop: EventLoop)) {
    let core = target.core
    target.loop.execute { core.take(connection) }
  }

  func stop() {
    for listener in listeners { listener.stop() }
  }
}
