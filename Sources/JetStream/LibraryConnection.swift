// The calls of libnats that establish a connection and send on it.

internal import CNats
internal import EventLoops
internal import Glibc
internal import Synchronization

/// libnats's calls for one connection, whose errors are values.
enum LibraryConnection {
  static func publish(
    _ content: MessageContent, to subject: String, reply: String, on connection: OpaquePointer
  ) -> natsStatus {
    var message: OpaquePointer?
    let status = content.payload.withUnsafeBytes { bytes in
      natsMsg_Create(
        &message, subject, reply, bytes.baseAddress?.assumingMemoryBound(to: CChar.self), Int32(bytes.count))
    }
    guard status == NATS_OK else { return status }
    defer { natsMsg_Destroy(message) }
    for header in content.headers {
      let status = natsMsgHeader_Add(message, header.name, header.value)
      guard status == NATS_OK else { return status }
    }
    return natsConnection_PublishMsg(connection, message)
  }

  static func connect(
    _ options: BrokerOptions, _ observer: ConnectionObserver
  ) throws(BrokerError) -> OpaquePointer {
    var created: OpaquePointer?
    guard natsOptions_Create(&created) == NATS_OK, let settings = created else {
      throw .resources("libnats cannot be initialized")
    }
    defer { natsOptions_Destroy(settings) }
    let servers = options.servers.map { strdup($0) }
    defer { for server in servers { free(server) } }
    var list = servers.map { UnsafePointer($0) }
    var status = natsOptions_SetServers(settings, &list, Int32(list.count))
    guard status == NATS_OK else { throw .unreachable(lastError(status)) }
    natsOptions_SetName(settings, options.name)
    natsOptions_SetTimeout(settings, max(1, options.connectTimeout.nanoseconds / 1_000_000))
    // For ever, because a server that lost its broker must recover as soon as there is one. libnats still ends the
    // connection if one broker refuses the credentials twice in a row.
    natsOptions_SetMaxReconnect(settings, -1)
    natsOptions_SetReconnectWait(settings, 250)
    // Detects a broker that has stopped without closing its connections within 30 s.
    natsOptions_SetPingInterval(settings, 10_000)
    // Otherwise libnats would wait up to a millisecond for more before it writes.
    natsOptions_SetSendAsap(settings, true)
    natsOptions_SetWriteDeadline(settings, 10_000)
    if options.requiresTLS { natsOptions_SetSecure(settings, true) }
    if let path = options.authorityFile {
      status = natsOptions_LoadCATrustedCertificates(settings, path)
      guard status == NATS_OK else { throw .unusableFile(path, reason: lastError(status)) }
    }
    if let path = options.credentialsFile {
      guard access(path, R_OK) == 0 else { throw .unusableFile(path, reason: String(cString: strerror(errno))) }
      status = natsOptions_SetUserCredentialsFromFiles(settings, path, nil)
      guard status == NATS_OK else { throw .unusableFile(path, reason: lastError(status)) }
    }
    if let token = options.token { natsOptions_SetToken(settings, token) }
    var connection: OpaquePointer?
    // libnats before 3.8 sends no signature if its first byte is 0 (nats.c pull request 705), so a broker refuses one
    // connection of 256. Each attempt signs other bytes.
    for _ in 0..<(options.credentialsFile == nil ? 1 : 4) {
      observer.attach(to: settings)
      status = natsConnection_Connect(&connection, settings)
      if status == NATS_OK { break }
      observer.detach()
      if status != NATS_CONNECTION_AUTH_FAILED { break }
    }
    guard status == NATS_OK, let connection else {
      if status == NATS_CONNECTION_AUTH_FAILED { throw .notAuthorized }
      let reason = lastError(status)
      // The file is read when a broker requests it.
      if let path = options.credentialsFile, reason.contains(path) { throw .unusableFile(path, reason: reason) }
      throw .unreachable(reason)
    }
    return connection
  }

  private static func lastError(_ status: natsStatus) -> String {
    var last = NATS_OK
    if let text = nats_GetLastError(&last), text.pointee != 0 {
      let text = String(cString: text)
      // libnats begins with the location in its own source: (conn.c:4212).
      guard text.hasPrefix("("), let end = text.firstRange(of: "): ") else { return text }
      return String(text[end.upperBound...])
    }
    return String(cString: natsStatus_GetText(status))
  }
}

extension BrokerError {
  init(_ status: natsStatus) {
    self =
      switch status {
      case NATS_MAX_PAYLOAD: .messageTooLarge
      case NATS_NO_MEMORY, NATS_SYS_ERROR: .resources(String(cString: natsStatus_GetText(status)))
      default: .disconnected
      }
  }
}

/// Receives libnats's callbacks about a connection. It outlives the connection until libnats has closed it.
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
  /// Called on a thread of libnats after it has ended the connection.
  let ended = Lock<@Sendable () -> Void>({})

  /// Retains itself until the connection is closed.
  func attach(to settings: OpaquePointer) {
    let this = Unmanaged.passRetained(self).toOpaque()
    natsOptions_SetDisconnectedCB(
      settings, { _, closure in ConnectionObserver.from(closure)?.changed(to: false) }, this)
    natsOptions_SetReconnectedCB(
      settings,
      { connection, closure in
        guard let connection, let observer = ConnectionObserver.from(closure) else { return }
        observer.reconnects.add(1, ordering: .relaxed)
        observer.connected(connection)
      }, this)
    natsOptions_SetClosedCB(
      settings,
      { _, closure in
        guard let closure else { return }
        let observer = Unmanaged<ConnectionObserver>.fromOpaque(closure).takeRetainedValue()
        observer.refusal.withLock { $0 = $0 ?? .notAuthorized }
        observer.changed(to: false)
        observer.ended.withLock { $0 }()
      }, this)
  }

  /// There was no connection, and no callback will follow.
  func detach() { Unmanaged.passUnretained(self).release() }

  func connected(_ connection: OpaquePointer) {
    maximumPayload.store(Int(natsConnection_GetMaxPayload(connection)), ordering: .relaxed)
    changed(to: true)
  }

  private func changed(to isConnected: Bool) {
    self.isConnected.store(isConnected, ordering: .relaxed)
    for observer in observers.withLock({ Array($0.all.values) }) { observer(isConnected) }
  }

  private static func from(_ closure: UnsafeMutableRawPointer?) -> ConnectionObserver? {
    closure.map { Unmanaged<ConnectionObserver>.fromOpaque($0).takeUnretainedValue() }
  }
}
