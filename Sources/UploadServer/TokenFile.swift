// Access to the server by bearer tokens (RFC 6750), of which only hashes are stored.

internal import Digests
internal import DiskFiles
internal import EventLoops
internal import Glibc
internal import HTTPMessages
internal import ResumableServing
internal import StreamServing
internal import StreamStore

/// A file of hashed tokens. Each line has the SHA-256 of a token in hexadecimal, followed by an optional human-readable
/// name. `#` begins a comment.
///
///     printf %s "$TOKEN" | sha256sum
///
/// It is read again when it has changed. While it cannot be read, is empty or contains an error, the tokens stay
/// unchanged, and another attempt follows each second. Only on the loop's thread.
final class TokenFile {
  /// Requests within this time check the file only once.
  private let patience: Duration

  private struct Stamp: Equatable {
    var seconds = 0
    var nanoseconds = 0
    var size = 0
    var inode: UInt64 = 0
  }

  private let path: String
  private let complain: (String) -> Void
  private var hashes: [Digest]
  private var stamp: Stamp
  private var lastLook = MonotonicInstant.now

  /// The last reported error of the file.
  private var complaint: String?

  /// - Parameter complain: called when the file has become unreadable, once for each reason.
  init(
    path: String, patience: Duration = .seconds(1), complain: @escaping (String) -> Void
  ) throws(UploadServerError) {
    self.patience = patience
    self.path = path
    self.complain = complain
    stamp = Self.stamp(of: path)
    hashes = try Self.read(path)
  }

  /// Whether it has no tokens, so that nobody is admitted.
  var isEmpty: Bool { hashes.isEmpty }

  /// The hash of the token in an `Authorization` field; nil if it is not in the file.
  func credential(_ authorization: String?) -> [UInt8]? {
    guard let authorization, let token = Self.bearer(authorization) else { return nil }
    let hash = Digest(.sha256, of: Array(token.utf8).span.bytes)
    return isValid(hash) ? hash.bytes : nil
  }

  /// Whether a credential that was valid still is.
  func isValid(_ credential: [UInt8]) -> Bool { Digest(.sha256, bytes: credential).map(isValid) ?? false }

  /// Compares with all of them, even after a match, so that the time reveals nothing.
  private func isValid(_ hash: Digest) -> Bool {
    readAgain()
    return hashes.reduce(false) { found, candidate in candidate.isEqual(to: hash) || found }
  }

  /// `Bearer`, in letters of either case, and a token (RFC 6750, section 2.1). By octets, as all text from the network.
  private static func bearer(_ authorization: String) -> Substring? {
    let octets = authorization.utf8
    guard Substring(octets.prefix(7)).equals(lowercase: "bearer ") else { return nil }
    let token = octets.dropFirst(7).drop { $0 == Octet.space }
    return token.isEmpty ? nil : Substring(token)
  }

  // MARK: The file

  private func readAgain() {
    let now = MonotonicInstant.now
    guard now - lastLook >= patience else { return }
    lastLook = now
    let found = Self.stamp(of: path)
    guard found != stamp else { return }
    do throws(UploadServerError) {
      let read = try Self.read(path)
      // A program that replaces a file by writing into it empties it first.
      guard found.size > 0 else { throw .tokenFile(path, line: nil, reason: "it is empty") }
      hashes = read
      stamp = found
      complaint = nil
    } catch {
      guard complaint != error.description else { return }
      complaint = error.description
      complain("\(error). The earlier tokens stay valid until the file can be read")
    }
  }

  private static func stamp(of path: String) -> Stamp {
    var status = stat()
    guard stat(path, &status) == 0 else { return Stamp() }
    return Stamp(
      seconds: status.st_mtim.tv_sec, nanoseconds: status.st_mtim.tv_nsec, size: Int(status.st_size),
      inode: UInt64(status.st_ino))
  }

  private static func read(_ path: String) throws(UploadServerError) -> [Digest] {
    // Opening a FIFO would wait for its writer and block the server or every request.
    let descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)
    guard descriptor >= 0 else { throw unreadable(path, errno) }
    guard let file = fdopen(descriptor, "r") else {
      close(descriptor)
      throw unreadable(path, ENOMEM)
    }
    defer { fclose(file) }
    var status = stat()
    guard fstat(descriptor, &status) == 0 else { throw unreadable(path, errno) }
    // A directory can be opened but not read, which the read reports.
    guard [S_IFREG, S_IFDIR].contains(status.st_mode & S_IFMT) else {
      throw .tokenFile(path, line: nil, reason: "it is not a regular file")
    }
    var line: UnsafeMutablePointer<CChar>?
    var capacity = 0
    defer { free(line) }
    var hashes: [Digest] = []
    var number = 0
    while case let count = getline(&line, &capacity, file), count > 0, let line {
      number += 1
      let octets = UnsafeRawBufferPointer(start: line, count: count)
      let word = octets.split(omittingEmptySubsequences: true) { $0 == Octet.space || (0x09...0x0D).contains($0) }.first
      guard let word, word.first != UInt8(ascii: "#") else { continue }
      guard let bytes = Hexadecimal.bytes(word), let hash = Digest(.sha256, bytes: bytes) else {
        throw .tokenFile(path, line: number, reason: "it does not begin with 64 hexadecimal digits")
      }
      hashes.append(hash)
    }
    if ferror(file) != 0 { throw unreadable(path, errno) }
    return hashes
  }

  private static func unreadable(_ path: String, _ code: Int32) -> UploadServerError {
    .tokenFile(path, line: nil, reason: String(cString: strerror(code)))
  }
}
