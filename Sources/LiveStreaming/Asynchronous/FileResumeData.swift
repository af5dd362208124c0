// The data with which a later process continues the upload of a file.

public import ResumableUploads

/// Identifies an unfinished upload at a server and its file.
///
/// Store it as ``text``, or encode it. Keep it as secret as the upload's URL, which may be the only credential that the
/// server requires.
public struct FileResumeData: Equatable, Sendable {
  /// The file's absolute path.
  public let path: String
  /// The upload resource at the server.
  public let upload: ResumeData
  /// The version of the file. The upload of a changed file cannot be continued.
  let version: String

  private static let firstLine = "sluice-file-upload 1"

  init(path: String, version: String, upload: ResumeData) {
    (self.path, self.version, self.upload) = (path, version, upload)
  }

  /// Reads ``text``. Returns nil for any other text.
  public init?(_ text: String) {
    // The path comes last: it may contain line ends.
    let lines = text.split(separator: "\n", maxSplits: 3, omittingEmptySubsequences: false)
    guard lines.count == 4, lines[0] == Self.firstLine, let upload = ResumeData(String(lines[2])), !lines[3].isEmpty
    else { return nil }
    self.init(path: String(lines[3]), version: String(lines[1]), upload: upload)
  }

  /// The resume data as a string that ``init(_:)`` reads, in this process or a later one.
  public var text: String {
    // This text can always represent ASCII. One URL is from libcurl, and the other was encoded before the upload.
    "\(Self.firstLine)\n\(version)\n\(upload.text ?? "")\n\(path)"
  }
}

extension FileResumeData: Codable {
  /// Reads what ``encode(to:)`` wrote.
  public init(from decoder: any Decoder) throws {
    let container = try decoder.singleValueContainer()
    guard let data = FileResumeData(try container.decode(String.self)) else {
      throw DecodingError.dataCorruptedError(in: container, debugDescription: "not the resume data of a file")
    }
    self = data
  }

  /// Writes ``text``.
  public func encode(to encoder: any Encoder) throws {
    var container = encoder.singleValueContainer()
    try container.encode(text)
  }
}
