// A real server on a loopback port with its own directory. Tests can wait for its events.

import CLinux
import EventLoops
import Glibc
import NetworkTesting
import SyncGate
import UploadServer

final class TestServer {
  let server: UploadServer
  let directory: TemporaryDirectory
  let events: EventLog<ServerEvent>
  /// What must live as long as the server.
  var support: AnyObject?
  var address: ListenAddress { server.localAddresses[0] }

  init(
    in directory: TemporaryDirectory = TemporaryDirectory(), listen: String = "127.0.0.1:0",
    _ change: (inout UploadServer.Configuration) -> Void = { _ in }, routes: (UploadServer) -> Void = { _ in }
  ) throws {
    self.directory = directory
    let events = try EventLog<ServerEvent>()
    self.events = events
    var configuration = UploadServer.Configuration(listen: [try ListenAddress(listen)], directory: directory.path) {
      events.append($0)
    }
    // All tests can run with several threads; `make test` runs both variants.
    configuration.threads = getenv("SLUICE_SERVER_THREADS").flatMap { Int(String(cString: $0)) } ?? 1
    change(&configuration)
    server = try UploadServer(configuration: configuration)
    routes(server)
    try server.start()
  }

  deinit { stop() }

  /// Stops the server without waiting for clients to read their answers.
  func stop() {
    server.drain(within: .zero)
    server.waitUntilEnded()
  }

  func connect() throws -> RawClient { try RawClient(address) }

  /// The head of a chunked request.
  static func head(
    _ path: String = "/t", id: String? = "a", offset: Int? = nil, type: String = "text/plain",
    framing: String = "Transfer-Encoding: chunked", more: String = ""
  ) -> String {
    "POST \(path) HTTP/1.1\r\nHost: h\r\nContent-Type: \(type)\r\n\(framing)\r\n\(more)"
      + (id.map { "Stream-ID: \($0)\r\n" } ?? "") + (offset.map { "Stream-Offset: \($0)\r\n" } ?? "") + "\r\n"
  }
}

extension EventLog<ServerEvent> {
  /// Waits until this many events of a kind have occurred, and returns the last of them.
  @discardableResult
  func wait(_ kind: ServerEvent.Kind, count: Int = 1) throws -> ServerEvent {
    try wait("\(kind) event number \(count)") { events in
      let found = events.filter { $0.kind == kind }
      return found.count >= count ? found[count - 1] : nil
    }
  }
}

/// A directory that is removed with its contents after the test, or when its process exits.
final class TemporaryDirectory {
  let path: String
  init(in parent: String = "/tmp") {
    var template = Array("\(parent)/sluice-server-test.XXXXXX".utf8CString)
    path = template.withUnsafeMutableBufferPointer { buffer in
      mkdtemp(buffer.baseAddress!).map { String(cString: $0) } ?? "/nonexistent"
    }
    RemovalAtExit.include(path)
  }
  deinit {
    _ = try? Command.run("rm", ["-rf", path])
    RemovalAtExit.exclude(path)
  }

  func write(_ name: String, _ bytes: [UInt8]) throws {
    guard let file = fopen("\(path)/\(name)", "w") else { throw TestFailure(name) }
    fwrite(bytes, 1, bytes.count, file)
    fclose(file)
  }
  /// A copy of what its server would leave if it were killed now.
  func copyOfKilled() throws -> TemporaryDirectory {
    let copy = TemporaryDirectory()
    // If the server replaces a file meanwhile, the copy may lack both the earlier and the later one. The times of
    // directories show it, even if the later one has the number of the earlier one.
    let copying = """
      list() { find '\(path)' -type d -printf '%i %T@ %p\\n' -o -printf '%i %p\\n' | sort; }
      for attempt in $(seq 50); do
        find '\(copy.path)' -mindepth 1 -delete
        before=$(list)
        cp -r --preserve=xattr '\(path)/.' '\(copy.path)' 2>/dev/null
        [ "$before" = "$(list)" ] && exec rm -f '\(copy.path)/.sluice.lock'
      done
      exit 1
      """
    guard try Command.run("sh", ["-c", copying]) == 0 else { throw TestFailure("no copy of \(path)") }
    return copy
  }
  func contents(_ name: String) throws -> [UInt8] { try asTest { try fileContents(path + "/" + name) } }
  func text(_ name: String) throws -> String { String(decoding: try contents(name), as: UTF8.self) }
  func exists(_ name: String) -> Bool { asTest { access(path + "/" + name, F_OK) == 0 } }

  /// The names in the directory, without the lock and without sidecars, which have their own tests.
  var names: [String] { asTest { listed } }

  private var listed: [String] {
    guard let directory = opendir(path) else { return [] }
    defer { closedir(directory) }
    var names: [String] = []
    while let entry = readdir(directory) {
      let name = withUnsafeBytes(of: &entry.pointee.d_name) { String(decoding: $0.prefix { $0 != 0 }, as: UTF8.self) }
      if ![".", "..", ".sluice.lock"].contains(name), !name.contains(".sidecar") { names.append(name) }
    }
    return names.sorted()
  }

  /// Runs calls to the disk that are the test's own. Only those of the server are counted, and fail.
  private func asTest<Value>(_ body: () throws -> Value) rethrows -> Value {
    disk_faults_exempt_begin()
    defer { disk_faults_exempt_end() }
    return try body()
  }
}

/// A tmpfs for a test in a separate process. It disappears with the process, however that ends.
final class SmallDisk {
  private let path: String

  static let isPossible = (try? Command.run("unshare", ["--mount", "true"])) == 0

  /// Must be created before the test starts its first thread: only threads that start later see it.
  init(at path: String, _ options: String = "size=1m") throws {
    self.path = path
    guard own_mounts_begin() == 0 else { throw TestFailure("unshare: \(String(cString: strerror(errno)))") }
    try mount(["-t", "tmpfs", "-o", options, "none", path])
  }

  func resize(_ size: String) throws { try mount(["-o", "remount,size=\(size)", path]) }

  private func mount(_ arguments: [String]) throws {
    guard try Command.run("mount", arguments) == 0 else { throw TestFailure("mount \(arguments)") }
  }

  deinit { _ = try? Command.run("umount", ["-l", path]) }
}

/// Runs programs of the system.
enum Command {
  /// Starts a program found in `PATH`. Its output goes to `output` if given, and is discarded otherwise.
  static func spawn(_ name: String, _ arguments: [String], input: String = "/dev/null", output: String = "/dev/null")
    throws -> pid_t
  {
    var actions = posix_spawn_file_actions_t()
    posix_spawn_file_actions_init(&actions)
    defer { posix_spawn_file_actions_destroy(&actions) }
    posix_spawn_file_actions_addopen(&actions, 0, input, O_RDONLY, 0)
    posix_spawn_file_actions_addopen(&actions, 1, output, O_WRONLY | O_CREAT | O_TRUNC, 0o644)
    posix_spawn_file_actions_adddup2(&actions, 1, 2)
    var vector: [UnsafeMutablePointer<CChar>?] = ([name] + arguments).map { strdup($0) } + [nil]
    defer { for pointer in vector { free(pointer) } }
    // Test threads block signals. A child inherits this, and could then not be ended by a signal.
    var attributes = posix_spawnattr_t()
    posix_spawnattr_init(&attributes)
    defer { posix_spawnattr_destroy(&attributes) }
    var none = sigset_t()
    sigemptyset(&none)
    posix_spawnattr_setsigmask(&attributes, &none)
    posix_spawnattr_setflags(&attributes, Int16(POSIX_SPAWN_SETSIGMASK))
    var pid = pid_t()
    let status = posix_spawnp(&pid, name, &actions, &attributes, &vector, environ)
    guard status == 0 else { throw TestFailure("\(name): \(String(cString: strerror(status)))") }
    return pid
  }

  static func wait(_ pid: pid_t) -> Int32 {
    var status: Int32 = 0
    while waitpid(pid, &status, 0) == -1 && errno == EINTR {}
    return status & 0x7F == 0 ? status >> 8 & 0xFF : 128 + status & 0x7F
  }

  /// Runs a program to its end and returns its exit status.
  @discardableResult
  static func run(_ name: String, _ arguments: [String], input: String = "/dev/null", output: String = "/dev/null")
    throws -> Int32
  {
    wait(try spawn(name, arguments, input: input, output: output))
  }
}
