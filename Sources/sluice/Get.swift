// sluice get URL

internal import Downloads
internal import EventLoops
internal import Glibc
internal import HTTPMessages
internal import LiveStreaming
internal import UploadClient

enum Get {
  /// The connection options that apply to a request without content. They have their own page, because `sluice help
  /// connection` also shows the others.
  private static let more = HelpTopic(
    name: "get-options", title: "More options of sluice get",
    options: StreamOptions.connection.options.filter { option in
      ![
        "metrics", "method", "stream-id", "stall-timeout", "response-timeout", "finish-timeout", "send-buffer",
        "max-segment",
      ].contains(option.name)
    })

  static let syntax = CommandLineSyntax(
    name: "get", summary: "Downloads a file, and resumes after every interruption.", operands: ["URL"],
    options: [
      Option(
        "output", short: "o", value: "FILE",
        "file to write, or - for standard output (default: the last part of the URL, if it is safe)"),
      Option("force", "replace an existing file"),
      Option("resume", "continue an unfinished download"),
      Option("resume-file", value: "PATH", "record of the unfinished download (default: FILE.sluice)"),
      Option("abandon", "delete the part and the record of an unfinished download"),
      Option("background", "let the agent download the file, and return (see sluice transfers)"),
      Option("response-timeout", value: "T", "longest time without data from the server (default: 30s)"),
    ] + StreamOptions.shown,
    topics: [more],
    example: "sluice get http://localhost:8080/kitchen-a1.wav")

  static func run(_ values: CommandLineSyntax.Values) throws(CommandError) -> ExitCode {
    let request = try request(values)
    let progress = try ProgressKind(values)
    var configuration = try configuration(values, request)
    if values.has("background") { return try GetBackground.run(values, configuration, progress) }
    guard values["output"] != "-" else {
      if let option = ["resume", "resume-file", "abandon", "force"].first(where: { values.has($0) }) {
        throw .usage("--\(option) requires a file, and --output - is standard output. Leave one of them out.")
      }
      guard progress != .json else {
        throw .usage("--progress json and --output - both write to standard output. Choose another --progress.")
      }
      return try GetRun(values, progress, target: nil, record: nil).run(configuration)
    }
    let target = try DownloadTarget(output: values["output"], url: request.url)
    let shownURL = UploadRequest.withoutCredentials(request.url)
    let record = DownloadRecord(path: values["resume-file"] ?? target.path + ".sluice", url: shownURL)
    if [target.path, target.part].contains(where: { FileIdentity.isSame($0, record.path) }) {
      throw .usage(
        "cannot record the download in \(record.path.shellQuoted): its bytes are written to that file. Choose another path with --resume-file PATH."
      )
    }
    var status = stat()
    let isRecorded = lstat(record.path, &status) == 0
    var unfinished = try record.claim(part: target.part)
    if let complete = unfinished, complete.isComplete(at: target.path) {
      record.remove()
      guard !values.has("resume") || complete.url != shownURL else {
        Console.shared.say("\(target.path.shellQuoted) is already complete")
        return .done
      }
      unfinished = try record.claim(part: target.part)
    }
    if values.has("abandon") { return try abandon(unfinished, record, target) }
    do throws(CommandError) {
      configuration.output = .file(target.path, part: target.part)
      configuration.resumeData = try begin(unfinished, isRecorded, record, target, values, url: shownURL)
      configuration.replaces = values.has("force")
      return try GetRun(values, progress, target: target, record: record).run(configuration)
    } catch {
      // Nothing was downloaded.
      record.withdraw()
      throw error
    }
  }

  // MARK: The request

  private static func request(_ values: CommandLineSyntax.Values) throws(CommandError) -> UploadRequest {
    var request = try StreamOptions.request(values)
    request.method = "GET"
    // The download itself sets these fields.
    let reserved = [
      "range", "if-range", "if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "accept-encoding",
    ]
    if let field = request.fields.all.first(where: { reserved.contains($0.name) }) {
      throw .usage("--header \(field.rawName.shown) cannot be sent: the download sets this field itself. Leave it out.")
    }
    // The most that libcurl reads at once. The number of system calls limits the throughput.
    request.receiveBufferSize = 512 << 10
    return request
  }

  private static func configuration(
    _ values: CommandLineSyntax.Values, _ request: UploadRequest
  ) throws(CommandError) -> FileDownload.Configuration {
    var configuration = FileDownload.Configuration(request: request, output: .descriptor(STDOUT_FILENO))
    if let text = values["give-up"] { configuration.retry.giveUpAfter = try Units.duration(text, of: "give-up") }
    if let text = values["retry-ceiling"] {
      configuration.retry.maximumCeiling = try Units.duration(text, of: "retry-ceiling", atLeast: .milliseconds(1))
    }
    if let text = values["give-up-on-refusal"] {
      configuration.retry.giveUpOnRefusalAfter = try Units.duration(text, of: "give-up-on-refusal")
    }
    if let path = values["bearer-token-file"] {
      configuration.bearerToken = { StreamOptions.currentToken(inFile: path) }
    }
    return configuration
  }

  // MARK: Interrupted downloads

  /// Decides how the record affects this download.
  ///
  /// - Parameter isRecorded: whether a record existed before. Its download may not have begun.
  /// - Returns: the download to continue, or nil for a new one.
  private static func begin(
    _ unfinished: DownloadRecord.Unfinished?, _ isRecorded: Bool, _ record: DownloadRecord, _ target: DownloadTarget,
    _ values: CommandLineSyntax.Values, url: String
  ) throws(CommandError) -> DownloadResumeData? {
    try target.check(replaces: values.has("force"))
    guard let unfinished, unfinished.data.byteCount > 0, !unfinished.data.validator.isEmpty else {
      guard unfinished != nil || record.isInherited || !values.has("resume") else {
        throw nothing(to: "resume", record, target)
      }
      // A process was killed before there was anything to continue.
      if isRecorded { target.removePart(unfinished?.data) }
      if values.has("resume") {
        Console.shared.say(
          unfinished == nil
            ? "\(record.path.shellQuoted) records nothing yet: the download begins with the first byte"
            : "the unfinished download cannot be continued: starting over")
      }
      return nil
    }
    guard values.has("resume") else {
      throw .usage(
        "a download of \(UploadRequest.withoutSecrets(unfinished.url)) to \(target.path.shellQuoted) is unfinished (\(record.path.shellQuoted)). Resume it with: \(command("--resume", values, url: unfinished.url)), or delete it with: \(command("--abandon", values, url: unfinished.url))."
      )
    }
    guard unfinished.url == url else {
      throw .usage(
        "the download in \(record.path.shellQuoted) has another URL. Write \(UploadRequest.withoutSecrets(unfinished.url))."
      )
    }
    return unfinished.data
  }

  /// The error for an option that requires an unfinished download, if there is none.
  private static func nothing(to option: String, _ record: DownloadRecord, _ target: DownloadTarget) -> CommandError {
    .usage(
      "cannot \(option): \(record.path.shellQuoted) records no unfinished download to \(target.path.shellQuoted). Leave --\(option) out, or name its record with --resume-file."
    )
  }

  private static func abandon(
    _ unfinished: DownloadRecord.Unfinished?, _ record: DownloadRecord, _ target: DownloadTarget
  ) throws(CommandError) -> ExitCode {
    guard let unfinished else {
      record.withdraw()
      throw nothing(to: "abandon", record, target)
    }
    target.removePart(unfinished.data)
    record.remove()
    return .done
  }

  static func command(_ option: String, _ values: CommandLineSyntax.Values, url: String? = nil) -> String {
    var words = ["sluice", "get", option]
    if let path = values["resume-file"] { words += ["--resume-file", path.shellQuoted] }
    if let path = values["output"] { words += ["--output", path.shellQuoted] }
    return (words + [UploadRequest.shellWords(url ?? values.operands[0])]).joined(separator: " ")
  }
}

/// The target file of a download, and its part beside it.
struct DownloadTarget {
  let path: String
  var part: String { path + ".part" }

  /// - Parameters:
  ///   - output: a file, or a directory for the file. Nil means the current directory.
  ///   - url: provides the name of the file in a directory.
  init(output: String?, url: String) throws(CommandError) {
    var status = stat()
    if let output, !output.hasSuffix("/"), stat(output, &status) != 0 || status.st_mode & S_IFMT != S_IFDIR {
      path = output
      return
    }
    guard let name = Self.name(in: url) else {
      throw .usage(
        "the URL \(UploadRequest.withoutSecrets(url).shellQuoted) does not end in a safe file name. Choose a name with --output FILE."
      )
    }
    path = output.map { $0.hasSuffix("/") ? $0 + name : "\($0)/\(name)" } ?? name
  }

  /// The last component of the URL's path, decoded. Nil if it is not a suitable file name: hidden, a path to another
  /// directory, easily taken for an option, `~`, a record of this program, or with control characters.
  static func name(in url: String) -> String? {
    let start = url.firstRange(of: "://")?.upperBound ?? url.startIndex
    let path = url[start...].prefix { !"?#".contains($0) }
    guard let slash = path.lastIndex(of: "/") else { return nil }
    var octets: [UInt8] = []
    var rest = path[path.index(after: slash)...].utf8[...]
    while let octet = rest.popFirst() {
      guard octet == UInt8(ascii: "%") else {
        octets.append(octet)
        continue
      }
      let digits = rest.prefix(2)
      guard digits.count == 2, let value = UInt8(String(decoding: digits, as: UTF8.self), radix: 16) else { return nil }
      octets.append(value)
      rest = rest.dropFirst(2)
    }
    guard let name = String(validating: octets, as: UTF8.self), !name.isEmpty, name.utf8.count <= 240,
      let first = octets.first, ![UInt8](".-~".utf8).contains(first), !octets.contains(UInt8(ascii: "/")),
      name.last?.isWhitespace == false, name.first?.isWhitespace == false,
      !name.unicodeScalars.contains(where: { Self.isInvisible($0) }), !name.lowercased().hasSuffix(".sluice")
    else { return nil }
    return name
  }

  /// Whether the scalar is a control character, or changes how others are displayed.
  private static func isInvisible(_ scalar: Unicode.Scalar) -> Bool {
    switch scalar.properties.generalCategory {
    case .control, .format, .lineSeparator, .paragraphSeparator, .privateUse, .unassigned: true
    default: false
    }
  }

  /// - Throws: ``CommandError`` if an existing file must not or cannot be replaced.
  func check(replaces: Bool) throws(CommandError) {
    var status = stat()
    guard lstat(path, &status) == 0 else { return }
    guard replaces else {
      throw CommandError(
        .inputOutput, "\(path.shellQuoted) already exists. Choose another --output, or replace it with --force.")
    }
    guard status.st_mode & S_IFMT == S_IFREG else {
      throw CommandError(
        .inputOutput, "cannot replace \(path.shellQuoted): it is not a regular file. Choose another --output.")
    }
  }

  private func isSame(_ status: stat, _ data: DownloadResumeData) -> Bool {
    UInt64(status.st_ino) == data.inode
      && (data.birth == nil || data.birth == WallClock(birthOf: part, in: AT_FDCWD)?.sinceEpoch)
  }

  /// Removes the part of a download that cannot be continued, and no other file.
  ///
  /// - Parameter data: the data of the part. Nil for a part that was created and not written.
  func removePart(_ data: DownloadResumeData?) {
    let file = open(part, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)
    guard file >= 0 else { return }
    defer { close(file) }
    var status = stat()
    guard fstat(file, &status) == 0, status.st_mode & S_IFMT == S_IFREG, status.st_uid == geteuid(),
      status.st_nlink == 1, data.map({ isSame(status, $0) }) ?? (status.st_size == 0)
    else { return }
    // A running download has a lock on its part, in whichever process.
    if flock(file, LOCK_EX | LOCK_NB) != 0, errno == EWOULDBLOCK { return }
    unlink(part)
  }
}
