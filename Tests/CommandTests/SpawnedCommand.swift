// Starts the command with descriptors that the test chooses: closed ones, a terminal, or a pipe that is never read.

import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import TestRigs

/// A running `sluice` whose outputs are read only if the test reads them. It is killed when the last reference is
/// released.
final class SpawnedCommand {
  let pid: pid_t
  private var status: Int32?

  /// - Parameters:
  ///   - descriptors: the files for its descriptors 0, 1 and 2; nil for a closed one. The caller still owns them.
  ///   - environment: variables, as `NAME=value`, that take precedence over those of the test.
  init(_ arguments: [String], _ descriptors: [Int32?], environment: [String] = []) throws {
    _ = AlsaConfiguration.path
    let program = try sluicePath()
    // Duplicates the descriptors first because a source may be one of the three that are replaced.
    let sources = descriptors.map { $0.map { fcntl($0, F_DUPFD_CLOEXEC, 20) } }
    defer { for case let source? in sources { close(source) } }
    var actions = posix_spawn_file_actions_t()
    posix_spawn_file_actions_init(&actions)
    defer { posix_spawn_file_actions_destroy(&actions) }
    for (number, source) in zip(Int32(0)..., sources) {
      if let source {
        posix_spawn_file_actions_adddup2(&actions, source, number)
      } else {
        posix_spawn_file_actions_addclose(&actions, number)
      }
    }
    var vector: [UnsafeMutablePointer<CChar>?] = ([program] + arguments).map { strdup($0) } + [nil]
    defer { for text in vector { free(text) } }
    // getenv(3) finds the first variable of a name.
    let own = environment.map { strdup($0) }
    defer { for text in own { free(text) } }
    var inherited = 0
    while environ[inherited] != nil { inherited += 1 }
    var variables = own + (0...inherited).map { environ[$0] }
    var pid = pid_t()
    let code = posix_spawn(&pid, program, &actions, nil, &vector, &variables)
    guard code == 0 else { throw TestFailure("\(program): \(String(cString: strerror(code)))") }
    self.pid = pid
  }

  deinit {
    guard status == nil else { return }
    kill(pid, SIGKILL)
    var raw: Int32 = 0
    while waitpid(pid, &raw, 0) == -1, errno == EINTR {}
  }

  func signal(_ number: Int32) { if status == nil { kill(pid, number) } }

  /// Its exit status, or 128 plus the number of the signal that ended it. Fails the test if it does not end in time.
  func wait(limit: Duration = .seconds(60)) throws -> Int32 {
    if let status { return status }
    let deadline = MonotonicInstant.now + limit
    var raw: Int32 = 0
    // Polls because pidfd_open(2) is missing before glibc 2.36.
    while waitpid(pid, &raw, WNOHANG) == 0 {
      guard MonotonicInstant.now < deadline else { throw TestFailure("the command does not end") }
      poll(nil, 0, 5)
    }
    let result = raw & 0x7F == 0 ? raw >> 8 & 0xFF : 128 + raw & 0x7F
    status = result
    return result
  }
}

/// A terminal: `outer` delivers what a program writes into `inner`. It is read only if the test reads it.
final class Terminal {
  let outer: Int32
  let inner: Int32

  init() throws {
    outer = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC)
    // TIOCSPTLCK and TIOCGPTN are missing in Glibc's module. They unlock the inner end and return its number.
    var (locked, number) = (Int32(0), Int32(0))
    guard outer >= 0, ioctl(outer, 0x4004_5431, &locked) == 0, ioctl(outer, 0x8004_5430, &number) == 0 else {
      throw TestFailure("no terminal: \(String(cString: strerror(errno)))")
    }
    inner = open("/dev/pts/\(number)", O_RDWR | O_NOCTTY | O_CLOEXEC)
    guard inner >= 0 else { throw TestFailure("no terminal: \(String(cString: strerror(errno)))") }
    var size = winsize(ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0)
    _ = ioctl(inner, UInt(TIOCSWINSZ), &size)
  }

  deinit {
    close(inner)
    close(outer)
  }

  /// Ctrl-S and Ctrl-Q, as a user presses them.
  func stopOutput() throws { try send(0x13) }
  func startOutput() throws { try send(0x11) }

  private func send(_ key: UInt8) throws {
    var key = key
    guard write(outer, &key, 1) == 1 else { throw TestFailure("the terminal takes no key") }
  }

  /// Fills the terminal until it accepts no more bytes, like a connection that hangs.
  func fill() { fillUp(inner) }
}

/// Writes into a descriptor until it accepts no more bytes.
func fillUp(_ descriptor: Int32) {
  let flags = fcntl(descriptor, F_GETFL)
  _ = fcntl(descriptor, F_SETFL, flags | O_NONBLOCK)
  let bytes = [UInt8](repeating: UInt8(ascii: "x"), count: 4096)
  for size in [4096, 1] {
    while Glibc.write(descriptor, bytes, size) > 0 {}
  }
  _ = fcntl(descriptor, F_SETFL, flags)
}

/// The ends of a pipe for a child process of a test.
final class TestPipe {
  private(set) var reading: Int32
  let writing: Int32

  init() throws {
    var ends: [Int32] = [-1, -1]
    guard pipe(&ends) == 0 else { throw TestFailure("pipe: \(String(cString: strerror(errno)))") }
    for end in ends { _ = fcntl(end, F_SETFD, FD_CLOEXEC) }
    (reading, writing) = (ends[0], ends[1])
  }

  deinit {
    closeReading()
    close(writing)
  }

  func closeReading() {
    if reading >= 0 { close(reading) }
    reading = -1
  }

  /// Reads until `done` returns true or the stream ends.
  func read(until done: ([UInt8]) -> Bool) throws -> [UInt8] {
    var bytes: [UInt8] = []
    var buffer = [UInt8](repeating: 0, count: 65_536)
    while !done(bytes) {
      guard waitUntilReadable(reading, limit: .seconds(60)) else { throw TestFailure("nothing more came") }
      let count = Glibc.read(reading, &buffer, buffer.count)
      if count <= 0 { return bytes }
      bytes += buffer[..<count]
    }
    return bytes
  }
}

/// Polls until `condition` holds, where no event reports it.
func eventually(_ what: String, _ condition: () throws -> Bool) throws {
  let deadline = MonotonicInstant.now + .seconds(60)
  while try !condition() {
    guard MonotonicInstant.now < deadline else { throw TestFailure("\(what) did not come") }
    poll(nil, 0, 20)
  }
}

/// The number of dropped lines of output, according to the metrics at a Unix domain socket.
func droppedLineCount(_ socket: String) throws -> Int {
  let curl = try TestProcess("curl", ["-s", "--unix-socket", socket, "http://localhost/metrics"])
  _ = try curl.wait()
  let line = curl.output.first { $0.hasPrefix("sluice_output_lines_dropped_total ") }
  return line.flatMap { Int($0.split(separator: " ")[1]) } ?? 0
}
