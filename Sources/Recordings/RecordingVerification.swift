// Compares the recordings of a directory with their sidecars: has the disk what the server had received?

internal import Digests
public import EventLoops
internal import Glibc
internal import JSONLines

/// One look at all recordings of a directory and of the directories in it. It changes nothing, and a server may be at
/// work there.
///
///     let summary = try RecordingVerification(directory: "recordings").run { print($0.path, $0.kind, $0.detail) }
///     if summary.problems > 0 { … }
public struct RecordingVerification: Sendable {
  /// What was found.
  public enum Kind: String, Sendable, CaseIterable {
    /// The bytes are not those that the sidecar has the SHA-256 of.
    case wrongDigest = "wrong-digest"
    /// The file is shorter or longer than the sidecar says.
    case wrongLength = "wrong-length"
    /// A file that no sidecar describes.
    case missingSidecar = "missing-sidecar"
    /// A sidecar that cannot be understood, or that describes a file of another name.
    case invalidSidecar = "invalid-sidecar"
    /// A sidecar whose recording is not there.
    case missingRecording = "missing-recording"
    /// A record of gaps whose recording is not there.
    case strayGaps = "stray-gaps"
    /// A `.part` that no server and no upload will continue.
    case torn
    /// A file that cannot be read.
    case unreadable
    /// No problem: a recording that grows, or that an upload continues when a server is back.
    case unfinished
    /// No problem: the server is about to write the sidecar, or the next one will.
    case pending

    /// Whether something is wrong.
    public var isProblem: Bool { self != .unfinished && self != .pending }
  }

  /// Something about one file.
  public struct Finding: Equatable, Sendable {
    /// What was found.
    public var kind: Kind
    /// Relative to the directory.
    public var path: String
    /// What was found, and what should have been.
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

  /// How far the verification has come.
  public struct Progress: Equatable, Sendable {
    /// Bytes that were read so far, and that are to be read.
    public var read: UInt64
    /// How many bytes are to be read in all.
    public var total: UInt64
  }

  /// What was found in all.
  public struct Summary: Equatable, Sendable {
    /// Files that are, or should be, described by a sidecar.
    public var recordings = 0
    /// Those that are what their sidecars say.
    public var verified = 0
    /// Bytes of the verified ones.
    public var bytes: UInt64 = 0
    /// Findings that are problems.
    public var problems = 0

    /// A summary with these counts.
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

  /// A verification of the recordings in this directory.
  public init(directory: String) { self.directory = directory }

  /// Looks at everything. Takes as long as it takes to read all recordings.
  ///
  /// - Parameters:
  ///   - progress: called after each piece that was read.
  ///   - found: told each finding, in the order of the paths.
  /// - Throws: ``EventLoops/SystemError`` if the directory cannot be read.
  public func run(
    progress: (Progress) -> Void = { _ in }, _ found: (Finding) -> Void
  ) throws(SystemError) -> Summary {
    var check = DirectoryCheck(root: directory)
    try check.list("")
    var summary = Summary()
    var read: UInt64 = 0
    for recording in check.recordings {
      let before = read
      let findings = recording.check { count in
        read = before + count
        progress(Progress(read: read, total: max(read, check.byteCount)))
      }
      read = before + recording.size
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
