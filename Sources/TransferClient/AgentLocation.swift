// The paths of the agent's database and socket, and whether they belong to this user alone.

package import EventLoops
internal import Glibc

/// The agent of one user: one database, one socket.
package struct AgentLocation: Equatable, Sendable {
  /// The directory of the database.
  package var directory: String
  package var socket: String

  package init(directory: String, socket: String) { (self.directory, self.socket) = (directory, socket) }

  /// `$XDG_STATE_HOME/sluice` (default: `~/.local/state/sluice`), and `$XDG_RUNTIME_DIR/sluice/agent.sock`. Without a
  /// runtime directory, the socket is beside the database. Relative paths are ignored, as the XDG Base Directory
  /// Specification requires.
  ///
  /// - Returns: nil if the environment names no directory.
  package init?(environment variable: (String) -> String?) {
    func directory(_ name: String) -> String? {
      variable(name).flatMap { $0.utf8.first == UInt8(ascii: "/") ? $0 : nil }
    }
    guard let state = directory("XDG_STATE_HOME") ?? directory("HOME").map({ $0 + "/.local/state" }) else { return nil }
    self.directory = state + "/sluice"
    socket = (directory("XDG_RUNTIME_DIR").map { $0 + "/sluice" } ?? self.directory) + "/agent.sock"
  }

  /// The location from this process's environment. A job of cron(8), whose environment does not name the runtime
  /// directory, finds the same socket as others, because systemd makes that directory under a known name.
  package static var current: AgentLocation? {
    AgentLocation { name in
      if let value = getenv(name) { return String(cString: value) }
      let known = "/run/user/\(geteuid())"
      return name == "XDG_RUNTIME_DIR" && (try? checkPrivateDirectory(known)) != nil ? known : nil
    }
  }

  /// The directory of the socket.
  package var socketDirectory: String {
    socket.lastIndex(of: "/").map { $0 == socket.startIndex ? "/" : String(socket[..<$0]) } ?? "."
  }

  /// Creates a directory that only this user may enter, and its parents.
  ///
  /// - Throws: ``AgentError/notPrivate(_:_:)`` if others may enter or own it, ``AgentError/system(_:_:)``.
  package static func makePrivateDirectory(_ path: String) throws(AgentError) {
    var parents: [String] = []
    var parent = path[...]
    while let slash = parent.lastIndex(of: "/"), slash != parent.startIndex {
      parent = parent[..<slash]
      parents.append(String(parent))
    }
    for parent in parents.reversed() { mkdir(parent, 0o700) }
    if mkdir(path, 0o700) != 0, errno != EEXIST { throw .system(path, .last("mkdir")) }
    try checkPrivateDirectory(path)
  }

  /// - Throws: ``AgentError``, like ``makePrivateDirectory(_:)``, and if the directory does not exist.
  package static func checkPrivateDirectory(_ path: String) throws(AgentError) {
    var status = stat()
    guard lstat(path, &status) == 0 else { throw .system(path, .last("lstat")) }
    guard status.st_mode & S_IFMT == S_IFDIR else { throw .notPrivate(path, "it is not a directory") }
    guard status.st_uid == geteuid() else { throw .notPrivate(path, "another user owns it") }
    guard status.st_mode & 0o077 == 0 else { throw .notPrivate(path, "other users have access to it") }
  }
}

/// Why no agent can be reached, or none can begin.
package enum AgentError: Error, Equatable, Sendable {
  /// The environment has neither `HOME` nor `XDG_STATE_HOME`.
  case noLocation
  case system(String, SystemError)
  /// A directory or socket does not belong to this user alone, with the reason.
  case notPrivate(String, String)
  /// Another process is the agent.
  case inUse(String)
  /// The database cannot be used, with the reason.
  case database(String, String)
  /// The database that the agent uses is no longer at its path.
  case databaseMoved(String)
  /// No agent listens.
  case notRunning(String)
  /// No agent could be started, or it ended at once, with the reason.
  case notStarted(String)
  /// The connection ended before the answer arrived.
  case disconnected
  /// The agent refuses an order, with the reason.
  case refused(AgentAnswer.Refusal, String)
  /// The agent does not answer in time, or its answer is invalid.
  case noAnswer
}
