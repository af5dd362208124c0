// What a later process needs to continue the upload of a file.

public import ResumableUploads

/// Names an unfinished upload at a server, and the file that it is an upload of.
///
/// Keep it as ``text``, or encode it. It is as secret as the upload's URL, which may be all that the server asks for.
public struct FileResumeData: Equatable, Sendable {
  /// The file's absolute path.
  public let path: String
  /// The upload at the server.
  public let upload: ResumeData
  /// The file's state. A file that has changed cannot be continued.
  let version: String

  private static let firstLine = "sluice-file-upload 1"

  init(path: String, version: String, upload: ResumeData) {
    (self.path, self.version, self.upload) = (path, version, upload)
  }

  /// Reads ``text``. It fails, and returns nil, for any other text.
  public init?(_ text: String) {
    // The path comes last: it may contain line ends.
    let lines = text.split(separator: "\n", maxSplits: 3, omittingEmptySubsequences: false)
    guard lines.count == 4, lines[0] == Self.firstLine, let upload = ResumeData(String(lines[2])), !lines[3].isEmpty
    else { return nil }
    self.init(path: String(lines[3]), version: String(lines[1]), upload: upload)
  }

  /// The same as a text that ``init(_:)`` reads, in this process or a later one.
  public var text: String {
    // A URL that came from libcurl is ASCII, which this text can always hold.
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
