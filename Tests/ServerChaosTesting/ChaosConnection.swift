// A connection that sends exactly the bytes of a sequence, and reads answers with a limit on every wait.

internal import EventLoops
internal import Glibc

/// One HTTP message from the server.
struct ChaosAnswer: Sendable {
  var status: Int
  var fields: [String: String]
  var body: String

  subscript(name: String) -> String? { fields[name] }
  var offset: UInt64? { fields["upload-offset"].flatMap { UInt64($0) } }
  /// `Upload-Complete`, or the inverted `Upload-Incomplete`.
  var isComplete: Bool? {
    if let text = fields["upload-complete"] { return text == "?1" }
    if let text = fields["upload-incomplete"] { return text == "?0" }
    return nil
  }
}

/// The result of one request.
struct ChaosOutcome: Sendable {
  var interims: [ChaosAnswer] = []
  /// nil if the connection ended without an answer.
  var final: ChaosAnswer?
  var isHung = false

  var status: Int { final?.status ?? 0 }
  var isSuccess: Bool { (200..<300).contains(status) }
  /// The length of the stream, as the final answer states it.
  var streamEnd: UInt64? { final?["stream-offset"].flatMap { UInt64($0) } }
  /// The largest offset that was reported.
  var announced: UInt64? { (interims + (final.map { [$0] } ?? [])).compactMap(\.offset).max() }
  var location: String? {
    (interims + (final.map { [$0] } ?? [])).compactMap { $0["location"] }.first
  }

  var text: String {
    if isHung { return "no answer within \(ChaosConnection.limit)" }
    var text = interims.filter { $0.offset != nil }.last.map { "104 at \($0.offset ?? 0), " } ?? ""
    guard let final else { return text + "closed without an answer" }
    text += "\(final.status)"
    if let offset = final.offset { text += " offset \(offset)" }
    if let offset = final["stream-offset"] { text += " stream-offset \(offset)" }
    if final.isComplete == true { text += " complete" }
    if final.status >= 400 {
      text += " (\(final.body.split(separator: "\n").first.map { String($0.prefix(120)) } ?? ""))"
    }
    return text
  }
}

/// A blocking connection to a server on loopback. Used by one thread at a time.
final class ChaosConnection {
  static let limit = Duration.seconds(20)

  private let descriptor: Int32
  private var received: [UInt8] = []
  private(set) var isOpen = true

  /// nil if nothing listens there (any more).
  init?(port: UInt16) {
    descriptor = socket(AF_INET, Int32(SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue), 0)
    var address = sockaddr_in()
    address.sin_family = sa_family_t(AF_INET)
    address.sin_port = port.bigEndian
    address.sin_addr.s_addr = UInt32(0x7F00_0001).bigEndian
    let status = withUnsafePointer(to: address) {
      $0.withMemoryRebound(to: sockaddr.self, capacity: 1) {
        connect(descriptor, $0, socklen_t(MemoryLayout<sockaddr_in>.size))
      }
    }
    guard descriptor >= 0, status == 0 else {
      // The deinit of this object closes the descriptor.
      isOpen = descriptor >= 0
      return nil
    }
    var on: Int32 = 1
    setsockopt(descriptor, Int32(IPPROTO_TCP), TCP_NODELAY, &on, 4)
    var limit = timeval(tv_sec: Int(Self.limit.components.seconds), tv_usec: 0)
    setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &limit, socklen_t(MemoryLayout<timeval>.size))
    setsockopt(descriptor, SOL_SOCKET, SO_SNDTIMEO, &limit, socklen_t(MemoryLayout<timeval>.size))
  }

  deinit { disconnect() }

  func disconnect() {
    if isOpen { Glibc.close(descriptor) }
    isOpen = false
  }

  /// Ends with a reset.
  func reset() {
    var option = linger(l_onoff: 1, l_linger: 0)
    if isOpen { setsockopt(descriptor, SOL_SOCKET, SO_LINGER, &option, socklen_t(MemoryLayout<linger>.size)) }
    disconnect()
  }

  /// Bytes that the server no longer accepts are lost, as on any connection that ends.
  func send(_ bytes: ArraySlice<UInt8>) {
    var rest = bytes
    while isOpen, !rest.isEmpty {
      let count = rest.withUnsafeBytes { Glibc.send(descriptor, $0.baseAddress, $0.count, Int32(MSG_NOSIGNAL)) }
      if count <= 0 { return }
      rest = rest.dropFirst(count)
    }
  }

  /// Waits until the server's TCP has received all sent bytes.
  func waitUntilTaken() {
    for _ in 0..<20_000 where isOpen {
      var count: Int32 = 0
      withUnsafeMutablePointer(to: &count) { _ = ioctl(descriptor, UInt(TIOCOUTQ), $0) }
      if count == 0 { return }
      usleep(1000)
    }
  }

  /// Reads one answer, interim or final. Returns nil if none arrives.
  func answer() -> ChaosAnswer? {
    while true {
      if let answer = parse(ofHEAD: false) { return answer }
      guard receive() == true else { return nil }
    }
  }

  /// Reads up to the final answer.
  func outcome(ofHEAD: Bool) -> ChaosOutcome {
    var outcome = ChaosOutcome()
    while true {
      if let answer = parse(ofHEAD: ofHEAD) {
        if answer.status >= 200 {
          outcome.final = answer
          if answer["connection"] == "close" { disconnect() }
          return outcome
        }
        outcome.interims.append(answer)
        continue
      }
      switch receive() {
      case .some(true): continue
      case .some(false):
        disconnect()
        return outcome
      case .none:
        outcome.isHung = true
        disconnect()
        return outcome
      }
    }
  }

  /// Returns true if bytes arrived, false at the end, and nil if nothing arrived within the limit.
  private func receive() -> Bool? {
    guard isOpen else { return false }
    return withUnsafeTemporaryAllocation(byteCount: 16_384, alignment: 8) { buffer in
      while true {
        let count = recv(descriptor, buffer.baseAddress, buffer.count, 0)
        if count > 0 {
          received += buffer[..<count]
          return true
        }
        if count == 0 { return false }
        if errno == EINTR { continue }
        return errno == EAGAIN ? nil : false
      }
    }
  }

  private func parse(ofHEAD: Bool) -> ChaosAnswer? {
    guard let end = headEnd() else { return nil }
    let lines = String(decoding: received[..<end], as: UTF8.self).split(separator: "\r\n")
    var fields: [String: String] = [:]
    for line in lines.dropFirst() {
      guard let colon = line.firstIndex(of: ":") else { continue }
      fields[line[..<colon].lowercased()] = String(line[line.index(after: colon)...].drop { $0 == " " })
    }
    let status = lines.first.flatMap { $0.split(separator: " ").dropFirst().first }.flatMap { Int($0) } ?? -1
    let hasBody = !ofHEAD && status >= 200 && status != 204
    let length = hasBody ? fields["content-length"].flatMap { Int($0) } ?? 0 : 0
    guard received.count >= end + 4 + length else { return nil }
    let body = String(decoding: received[(end + 4)..<(end + 4 + length)], as: UTF8.self)
    received.removeFirst(end + 4 + length)
    return ChaosAnswer(status: status, fields: fields, body: body)
  }

  private func headEnd() -> Int? {
    guard received.count >= 4 else { return nil }
    for index in 0...(received.count - 4)
    where received[index] == 13 && received[index + 1] == 10 && received[index + 2] == 13 && received[index + 3] == 10 {
      return index
    }
    return nil
  }
}
