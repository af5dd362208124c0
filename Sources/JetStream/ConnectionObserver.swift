// The state of the connection to the brokers, and its observers. libnats reports changes on its own threads.

internal import CNats
internal import EventLoops
internal import Synchronization

/// The state of a ``BrokerConnection``, over all connections of libnats that it has one after another. Any thread.
final class ConnectionObserver: Sendable {
  let isConnected = Atomic<Bool>(false)
  let maximumPayload = Atomic<Int>(0)
  let reconnects = Atomic<UInt64>(0)
  struct Observers {
    var all: [UInt64: @Sendable (Bool) -> Void] = [:]
    var lastNumber: UInt64 = 0
  }
  let observers = Lock(Observers())
  /// Why no broker permits a connection; nil if one did at the last attempt.
  let refusal = Lock<BrokerError?>(nil)
  private let watched: WatchedConnection
  private let absence: Lock<JetStreamAbsence>
  /// Called after libnats has ended its connection.
  let ended = Lock<@Sendable () -> Void>({})

  init(_ options: BrokerOptions) {
    watched = WatchedConnection(options)
    absence = Lock(JetStreamAbsence(hasAlternative: options.servers.count > 1))
  }

  /// Called when an attempt to connect shows that no broker permits a connection, or that a file cannot be used.
  func refused(_ error: BrokerError) {
    let isNew = refusal.withLock { refusal in
      defer { refusal = error }
      return refusal == nil
    }
    // The loss of the connection may have had another reason, so nobody knows this one yet.
    if isNew { changed(to: false) }
  }

  func isEstablished(_ connection: OpaquePointer) {
    maximumPayload.store(Int(natsConnection_GetMaxPayload(connection)), ordering: .relaxed)
    watched.isEstablished(connection)
    hasJetStream()
    changed(to: true)
  }

  /// The connected broker, or its cluster, has answered for JetStream, or no broker has been asked yet.
  func hasJetStream() { absence.withLock { $0.end() } }

  /// The connected broker answers that it does not run JetStream. If it has done so for some time, and the list has
  /// others, the connection is ended, and libnats tries the next one.
  func lacksJetStream() {
    if absence.withLock({ $0.isTooLong(at: .now) }) { watched.end() }
  }

  func changed(to isConnected: Bool) {
    if !isConnected { watched.isLost() }
    self.isConnected.store(isConnected, ordering: .relaxed)
    for observer in observers.withLock({ Array($0.all.values) }) { observer(isConnected) }
  }
}

/// Receives libnats's callbacks about one of its connections. It counts only from ``begin(_:)`` to ``drop()``.
final class ConnectionCallbacks: Sendable {
  private enum Phase { case new, present, dropped }
  private struct State {
    var phase = Phase.new
    /// The reason why libnats has ended the connection. Nil if it has not.
    var end: natsStatus?
  }

  private let observer: ConnectionObserver
  private let state = Lock(State())

  init(_ observer: ConnectionObserver) { self.observer = observer }

  /// Retains itself until the connection is closed.
  func attach(to settings: OpaquePointer) {
    let this = Unmanaged.passRetained(self).toOpaque()
    natsOptions_SetDisconnectedCB(settings, { _, closure in ConnectionCallbacks.from(closure)?.lost() }, this)
    natsOptions_SetReconnectedCB(
      settings,
      { connection, closure in
        guard let connection else { return }
        ConnectionCallbacks.from(closure)?.restored(connection)
      }, this)
    natsOptions_SetClosedCB(
      settings,
      { connection, closure in
        guard let closure else { return }
        var text: UnsafePointer<CChar>?
        let reason = natsConnection_GetLastError(connection, &text)
        Unmanaged<ConnectionCallbacks>.fromOpaque(closure).takeRetainedValue().closed(because: reason)
      }, this)
  }

  /// There was no connection, and no callback will follow.
  func detach() { Unmanaged.passUnretained(self).release() }

  /// The connection is the present one from now on. It may have been lost or ended since it was established.
  func begin(_ connection: OpaquePointer?) {
    let address = UInt(bitPattern: connection)
    let reason: natsStatus? = state.withLock { state in
      state.phase = .present
      if state.end == nil { Self.tell(observer, of: OpaquePointer(bitPattern: address)) }
      return state.end
    }
    if let reason { end(because: reason) }
  }

  /// Another connection takes its place, or nobody needs it.
  func drop() { state.withLock { $0.phase = .dropped } }

  func lost() { state.withLock { if $0.phase == .present { observer.changed(to: false) } } }

  private func restored(_ connection: OpaquePointer) {
    let address = UInt(bitPattern: connection)
    state.withLock { state in
      guard state.phase == .present else { return }
      observer.reconnects.add(1, ordering: .relaxed)
      Self.tell(observer, of: OpaquePointer(bitPattern: address))
    }
  }

  func closed(because reason: natsStatus) {
    let isPresent = state.withLock { state in
      state.end = reason
      return state.phase == .present
    }
    if isPresent { end(because: reason) }
  }

  /// libnats also ends a connection if it cannot start the thread that would reconnect, and after errors of a broker
  /// that it does not know, such as too many subscriptions. Another connection with the same credentials may succeed.
  private func end(because reason: natsStatus) {
    observer.refusal.withLock { $0 = reason == NATS_CONNECTION_AUTH_FAILED ? .notAuthorized : nil }
    observer.changed(to: false)
    observer.ended.withLock { $0 }()
  }

  private static func tell(_ observer: ConnectionObserver, of connection: OpaquePointer?) {
    guard let connection, natsConnection_Status(connection) == NATS_CONN_STATUS_CONNECTED else { return }
    observer.isEstablished(connection)
  }

  private static func from(_ closure: UnsafeMutableRawPointer?) -> ConnectionCallbacks? {
    closure.map { Unmanaged<ConnectionCallbacks>.fromOpaque($0).takeUnretainedValue() }
  }
}
