// The server of a batch as a process: started, signalled, killed, and its output read to the end.

internal import EventLoops
internal import Glibc
internal import NetworkTesting
internal import PropertyTesting

/// A running server. Killed with its last reference.
final class ServerProcess: Sendable {
  private let pid: pid_t
  private let reader: NamedThread
  private let ended: OutputEnd
  private let isReaped = Lock(false)
  let port: UInt16
  let output: Output

  init(_ program: String, _ options: ServerOptions) throws {
    var ends: [Int32] = [-1, -1]
    // Close-on-exec from the beginning, because several threads start servers.
    let type = Int32(SOCK_STREAM.rawValue | SOCK_CLOEXEC.rawValue)
    guard socketpair(AF_UNIX, type, 0, &ends) == 0 else {
      throw TestFailure("socketpair: \(String(cString: strerror(errno)))")
    }
    var actions = posix_spawn_file_actions_t()
    posix_spawn_file_actions_init(&actions)
    defer { posix_spawn_file_actions_destroy(&actions) }
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0)
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1)
    posix_spawn_file_actions_adddup2(&actions, ends[1], 2)
    var vector: [UnsafeMutablePointer<CChar>?] = ([program] + options.arguments).map { strdup($0) } + [nil]
    defer { for pointer in vector { free(pointer) } }
    var pid = pid_t()
    let status = posix_spawn(&pid, program, &actions, nil, &vector, environ)
    close(ends[1])
    guard status == 0 else { throw TestFailure("\(program): \(String(cString: strerror(status)))") }
    self.pid = pid
    // The first line names the port.
    var first: [UInt8] = []
    while first.firstIndex(of: 10) == nil {
      var byte: UInt8 = 0
      guard read(ends[0], &byte, 1) == 1 else {
        kill(pid, SIGKILL)
        var status: Int32 = 0
        waitpid(pid, &status, 0)
        throw TestFailure("the server does not start: \(String(decoding: first, as: UTF8.self))")
      }
      first.append(byte)
      // Its reports about existing data come before.
      if byte == 10, !first.starts(with: "listening".utf8) { first = [] }
    }
    guard
      let port = String(decoding: first.dropLast(), as: UTF8.self).split(separator: ":").last.flatMap({ UInt16($0) })
    else { throw TestFailure("the server names no port") }
    self.port = port
    let descriptor = ends[0]
    let (output, ended) = (Output(), try OutputEnd())
    self.ended = ended
    self.output = output
    reader = try NamedThread("chaos-output") {
      var buffer = [UInt8](repeating: 0, count: 16_384)
      while case let count = read(descriptor, &buffer, buffer.count), count > 0 {
        output.append(Array(buffer[..<count]))
      }
      close(descriptor)
      ended.counter.signal()
    }
  }

  /// The end of a server's output.
  final class Output: Sendable {
    private let bytes = Lock<[UInt8]>([])
    func append(_ more: [UInt8]) {
      bytes.withLock { bytes in
        bytes += more
        if bytes.count > 64_000 { bytes.removeFirst(bytes.count - 32_000) }
      }
    }
    var text: String { bytes.withLock { String(decoding: $0.suffix(2000), as: UTF8.self) } }
  }
  /// Signalled when the other end is closed everywhere.
  private final class OutputEnd: Sendable {
    let counter: EventCounter
    init() throws(SystemError) { counter = try EventCounter() }
  }

  deinit {
    if !isReaped.withLock({ $0 }) {
      kill(pid, SIGKILL)
      _ = reap()
    }
  }

  func signal(_ number: Int32) { kill(pid, number) }

  /// Its exit status after it has ended, or 128 and the number of the signal that ended it; nil if it does not end.
  func end() -> Int32? {
    guard waitUntilReadable(ended.counter.descriptor, limit: .seconds(30)) else { return nil }
    return reap()
  }

  private func reap() -> Int32 {
    reader.join()
    isReaped.withLock { $0 = true }
    var status: Int32 = 0
    while waitpid(pid, &status, 0) == -1 && errno == EINTR {}
    return status & 0x7F == 0 ? status >> 8 & 0xFF : 128 + status & 0x7F
  }
}
