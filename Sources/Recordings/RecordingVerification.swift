// Compares the recordings of a directory with their sidecars, to find bytes that the disk has changed or lost.

internal import Digests
public import EventLoops
internal import Glibc
internal import JSONLines

/// A check of all recordings in a directory and its subdirectories. It changes nothing, and a server may use the
/// directory at the same time.
///
///     let summary = try RecordingVerification(directory: "recordings").run { print($0.path, $0.kind, $0.detail) }
///     if summary.problems > 0 { … }
public struct RecordingVerification: Sendable {
  /// The kinds of findings.
  public enum Kind: String, Sendable, CaseIterable {
    /// The SHA-256 of the bytes differs from that in the sidecar.
    case wrongDigest = "wrong-digest"
    /// The file is shorter or longer than the sidecar states.
    case wrongLength = "wrong-length"
    /// A file that no sidecar describes.
    case missingSidecar = "missing-sidecar"
    /// A sidecar, finished or not, that cannot be parsed, or that describes a file with another name.
    case invalidSidecar = "invalid-sidecar"
    /// A sidecar whose recording is missing.
    case missingRecording = "missing-recording"
    /// A record of gaps whose recording is missing.
    case strayGaps = "stray-gaps"
    /// A `.part` that no server and no upload will continue.
    case torn
    /// A file or a subdirectory that cannot be read.
    case unreadable
    /// Not a problem: a recording that is growing, or that an upload will continue when a server runs again.
    case unfinished
    /// Not a problem: the server is about to write the sidecar, or the next server will. Or a server is about to remove
    /// the recording.
    case pending

    /// Whether the finding is a problem.
    public var isProblem: Bool { self != .unfinished && self != .pending }
  }

  /// A finding about one file or subdirectory.
  public struct Finding: Equatable, Sendable {
    /// The kind of the finding.
    public var kind: Kind
    /// The path, relative to the directory.
    public var path: String
    /// What is wrong, in words. For a wrong length or digest, the actual and the expected value.
    public var detail: String

    /// As one line of JSON (RFC 8259) without the line feed.
    public var jsonLine: String {
      var line = JSONLine(event: kind.isProblem ? "problem" : "note")
      line.add("kind", kind.rawValue)
      line.add("file", path)
      line.add("detail", detail)
      return line.line
    }
  }

  /// The progress of the verification.
  public struct Progress: Equatable, Sendable {
    /// The number of bytes read so far.
    public var read: UInt64
    /// The total number of bytes to read.
    public var total: UInt64
  }

  /// The result of a verification.
  public struct Summary: Equatable, Sendable {
    /// The number of files that have, or should have, a sidecar.
    public var recordings = 0
    /// The number of files that match their sidecars.
    public var verified = 0
    /// The number of bytes in the verified files.
    public var bytes: UInt64 = 0
    /// The number of findings that are problems.
    public var problems = 0

    /// Creates a summary with these counts.
    public init(recordings: Int = 0, verified: Int = 0, bytes: UInt64 = 0, problems: Int = 0) {
      (self.recordings, self.verified, self.bytes, self.problems) = (recordings, verified, bytes, problems)
    }

    /// As one line of JSON (RFC 8259) without the line feed.
    public var jsonLine: String {
      var line = JSONLine(event: "verified")
      line.add("recordings", recordings)
      line.add("verified", verified)
      line.add("bytes", bytes)
      line.add("problems", problems)
      return line.line
    }
  }

  private let directory: String
  /// Waits for this number of milliseconds.
  private let pause: @Sendable (Int32) -> Void

  /// Creates a verification of the recordings in this directory.
  public init(directory: String) { self.init(directory: directory) { _ = poll(nil, 0, $0) } }

  /// - Parameter pause: waits for this number of milliseconds.
  init(directory: String, pause: @escaping @Sendable (Int32) -> Void) {
    (self.directory, self.pause) = (directory, pause)
  }

  /// Checks everything. It reads all recordings, which determines its duration.
  ///
  /// - Parameters:
  ///   - progress: called after each piece that was read.
  ///   - found: called with each finding, in the order of the paths.
  /// - Throws: ``EventLoops/SystemError`` if the directory cannot be opened. A subdirectory that cannot be read is a
  ///   finding.
  public func run(
    progress: (Progress) -> Void = { _ in }, _ found: (Finding) -> Void
  ) throws(SystemError) -> Summary {
    // Everything else is relative to it, and would be relative to the root of the file system.
    guard !directory.isEmpty else { throw SystemError(operation: "open the directory \"\"", code: ENOENT) }
    var check = DirectoryCheck(root: directory, pause: pause)
    try check.list("")
    var summary = Summary()
    var read: UInt64 = 0
    for entry in check.entries {
      let recording: RecordingFiles
      switch entry {
      case .recording(let files): recording = files
      case .unreadable(let finding):
        summary.problems += 1
        found(finding)
        continue
      }
      let before = read
      let findings = recording.check { count in
        read = before + count
        progress(Progress(read: read, total: max(read, check.byteCount)))
      }
      read = before + recording.size
      guard let findings else { continue }
      if recording.isRecording {
        summary.recordings += 1
        if findings.isEmpty {
          summary.verified += 1
          summary.bytes += recording.size
        }
      }
      for finding in findings {
        if finding.kind.isProblem { summary.problems += 1 }
        found(finding)
      }
    }
    return summary
  }
}
