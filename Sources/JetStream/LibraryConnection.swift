// The calls of libnats that establish a connection and send on it.

internal import CNats
internal import EventLoops
internal import Glibc

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

  /// Connects, and waits for the connection.
  static func connect(
    _ options: BrokerOptions, _ callbacks: ConnectionCallbacks
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
    // connection in some cases, for example if one broker refuses the credentials twice in a row.
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
    if let path = options.certificateFile {
      let key = options.keyFile ?? path
      status = natsOptions_LoadCertificatesChain(settings, path, key)
      guard status == NATS_OK else {
        throw .unusableFile(key == path ? path : "\(path) or \(key)", reason: lastError(status))
      }
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
      callbacks.attach(to: settings)
      status = natsConnection_Connect(&connection, settings)
      if status == NATS_OK { break }
      callbacks.detach()
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
