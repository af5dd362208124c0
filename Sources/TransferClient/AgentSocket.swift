// The agent's socket: a path that only this user can reach, with peers of this user.

internal import CLinux
package import EventLoops
internal import Glibc

package enum AgentSocket {
  /// Connects to the agent.
  ///
  /// - Returns: a blocking descriptor.
  /// - Throws: ``AgentError/notRunning(_:)`` if nothing listens; ``AgentError/notPrivate(_:_:)`` if another user could
  ///   have made the socket, or listens there.
  package static func connect(_ path: String, in directory: String) throws(AgentError) -> Int32 {
    do throws(AgentError) {
      try AgentLocation.checkPrivateDirectory(directory)
    } catch .system(_, let error) where error.code == ENOENT {
      throw .notRunning(path)
    }
    let descriptor = try make(flags: 0, path)
    do throws(AgentError) {
      do throws(SystemError) {
        try with(path) { (address, length) throws(SystemError) in
          try retryingInterrupts("connect") { Glibc.connect(descriptor, address, length) }
        }
      } catch {
        if error.code == ENOENT || error.code == ECONNREFUSED { throw AgentError.notRunning(path) }
        throw AgentError.system(path, error)
      }
      guard peerUser(of: descriptor) == geteuid() else { throw .notPrivate(path, "another user listens there") }
      return descriptor
    } catch {
      close(descriptor)
      throw error
    }
  }

  /// Listens, and replaces a socket that nobody listens on. Only for the holder of the database's lock.
  ///
  /// - Returns: a non-blocking descriptor, and the socket's file.
  package static func listen(
    _ path: String, in directory: String
  ) throws(AgentError) -> (descriptor: Int32, file: File) {
    try AgentLocation.makePrivateDirectory(directory)
    let descriptor = try make(flags: Int32(SOCK_NONBLOCK.rawValue), path)
    do throws(AgentError) {
      var status = stat()
      if lstat(path, &status) == 0 {
        guard status.st_mode & S_IFMT == S_IFSOCK else { throw .notPrivate(path, "it is not a socket") }
        guard status.st_uid == geteuid() else { throw .notPrivate(path, "another user owns it") }
        // The agent that listens there may have another database. No other agent can have this one.
        if let other = try? connect(path, in: directory) {
          close(other)
          throw .inUse(path)
        }
        unlink(path)
      }
      do throws(SystemError) {
        try with(path) { (address, length) throws(SystemError) in
          try retryingInterrupts("bind") { bind(descriptor, address, length) }
        }
        // The directory already keeps others out while the mode is still the umask's.
        try retryingInterrupts("chmod") { chmod(path, 0o600) }
        try retryingInterrupts("listen") { Glibc.listen(descriptor, 64) }
        try retryingInterrupts("lstat") { lstat(path, &status) }
      } catch {
        throw AgentError.system(path, error)
      }
      return (descriptor, File(path: path, device: status.st_dev, inode: status.st_ino))
    } catch {
      close(descriptor)
      throw error
    }
  }

  /// The next program that has connected; nil if there is none. It does not block.
  ///
  /// - Throws: ``SystemError`` if there is no descriptor or memory for a connection.
  package static func accept(_ listener: Int32) throws(SystemError) -> Int32? {
    while true {
      do throws(SystemError) {
        return try retryingInterrupts("accept4") {
          accept4(listener, nil, nil, Int32(SOCK_NONBLOCK.rawValue | SOCK_CLOEXEC.rawValue))
        }
      } catch {
        if error.code == EAGAIN { return nil }
        // It has disconnected before it was accepted.
        if error.code != ECONNABORTED { throw error }
      }
    }
  }

  /// The file of a socket that was created here.
  package struct File: Sendable {
    let path: String
    let device: dev_t
    let inode: ino_t

    /// Removes it, unless another file has taken its place.
    package func remove() {
      var status = stat()
      guard lstat(path, &status) == 0, status.st_dev == device, status.st_ino == inode else { return }
      unlink(path)
    }
  }

  /// The user of the process at the other end, according to the kernel (unix(7)); nil if it does not report one.
  package static func peerUser(of descriptor: Int32) -> UInt32? { peer(of: descriptor)?.user }

  static func peer(of descriptor: Int32) -> (process: Int32, user: UInt32)? {
    // struct ucred, which Glibc's module omits: process, user, group.
    var credentials: (process: Int32, user: UInt32, group: UInt32) = (0, UInt32.max, UInt32.max)
    var length = socklen_t(MemoryLayout.size(ofValue: credentials))
    guard getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &credentials, &length) == 0 else { return nil }
    return (credentials.process, credentials.user)
  }

  private static func make(flags: Int32, _ path: String) throws(AgentError) -> Int32 {
    do throws(SystemError) {
      return try retryingInterrupts("socket") {
        socket(AF_UNIX, Int32(SOCK_STREAM.rawValue) | Int32(SOCK_CLOEXEC.rawValue) | flags, 0)
      }
    } catch {
      throw .system(path, error)
    }
  }

  private static func with(
    _ path: String, _ body: (UnsafePointer<sockaddr>, socklen_t) throws(SystemError) -> Void
  ) throws(SystemError) {
    var name = sockaddr_un()
    name.sun_family = sa_family_t(AF_UNIX)
    let bytes = Array(path.utf8)
    let fits = withUnsafeMutableBytes(of: &name.sun_path) { room in
      // With the terminating NUL.
      guard bytes.count < room.count else { return false }
      room.copyBytes(from: bytes)
      return true
    }
    guard fits else { throw SystemError(operation: "use a path of more than 107 bytes", code: ENAMETOOLONG) }
    let failure = withUnsafePointer(to: &name) { pointer in
      pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) { pointer -> SystemError? in
        do throws(SystemError) {
          try body(pointer, socklen_t(MemoryLayout<sockaddr_un>.size))
          return nil
        } catch {
          return error
        }
      }
    }
    if let failure { throw failure }
  }
}
