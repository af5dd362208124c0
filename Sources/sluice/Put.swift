// sluice put FILE URL

internal import EventLoops
internal import Glibc
internal import LiveStreaming
internal import ResumableUploads
internal import StreamBuffers
internal import UploadClient

enum Put {
  static let syntax = CommandLineSyntax(
    name: "put", summary: "Uploads a file, and resumes after every interruption.", operands: ["FILE", "URL"],
    options: [
      Option("resume", "continue an unfinished upload of this file"),
      Option("resume-file", value: "PATH", "record of the unfinished upload (default: FILE.sluice)"),
      Option("abandon", "delete an unfinished upload of this file from the server"),
      Option("background", "let the agent upload the file, and return (see sluice transfers)"),
      Option("content-type", value: "TYPE", "media type of the file (default: application/octet-stream)"),
    ] + StreamOptions.shown,
    topics: [StreamOptions.resuming, StreamOptions.connection],
    notes: ["If the path of URL is empty or ends in /, the name of the file is appended."],
    example: "sluice put film.mkv http://localhost:8080/archive/ --digest sha-256")

  static func run(_ values: CommandLineSyntax.Values) throws(CommandError) -> ExitCode {
    let path = values.operands[0]
    if isURL(path), !isURL(values.operands[1]) {
      throw .usage(
        "FILE and URL are in the wrong order. Write: sluice put \(values.operands[1].shellOperand) \(UploadRequest.shellWords(path))"
      )
    }
    var request = try StreamOptions.request(values, url: UploadRequest.appending(nameOf: path, to: values.operands[1]))
    let choosesMethod = !values.has("method")
    if choosesMethod { request.method = "PUT" }
    request.fields.addDefault("Content-Type", try StreamOptions.contentType(values))
    // The most that libcurl sends at once. The number of system calls limits the throughput.
    request.uploadBufferSize = 512 << 10
    var configuration = try StreamOptions.configuration(
      values, request: request, bytesPerSecond: 1_000_000, buffer: .bytes(1), overflow: .wait)
    configuration.mayUsePOST = choosesMethod
    if !values.has("roll-over-bytes") { configuration.rollOver.size = .max }
    let progress = try ProgressKind(values)
    if values.has("background") { return try PutBackground.run(values, configuration, progress) }
    let recordPath = values["resume-file"] ?? path + ".sluice"
    if FileIdentity.isSame(path, recordPath) {
      throw .usage(
        "cannot record the upload in \(recordPath.shellQuoted): it is the file to upload. Choose another path with --resume-file PATH."
      )
    }

    let digest = try StreamOptions.digest(values)
    let signals: Signals
    do throws(SystemError) { signals = try Signals() } catch { throw CommandError(machine: error) }
    let file: UploadFile
    do throws(UploadFileError) {
      do throws(UploadFileError) {
        // The digest of a large file takes minutes.
        file = try signals.endProcess { () throws(UploadFileError) in try UploadFile(path: path, digest: digest) }
      } catch .unreadable(let error) where values.has("abandon") && error.code == ENOENT {
        // An abandoned file is not read, so any file can replace one that no longer exists.
        file = try UploadFile(path: recordPath)
      }
    } catch {
      if case .unknownSize = error, !values.has("resume"), !values.has("abandon") {
        return try stream(path, values, configuration, progress, signals)
      }
      throw CommandError(error, path: path, url: values.operands[1])
    }
    let record = UploadRecord(path: recordPath, version: file.version)
    configuration.resumeData = try begin(record, file, values, target: request.url)
    if let data = configuration.resumeData { configuration.streamID = data.streamID ?? configuration.streamID }
    return try upload(file, configuration, record, values, progress, signals)
  }

  private static func upload(
    _ file: UploadFile, _ configuration: LiveStreamConfiguration, _ record: UploadRecord,
    _ values: CommandLineSyntax.Values, _ progress: ProgressKind, _ signals: Signals
  ) throws(CommandError) -> ExitCode {
    let bar = TransferBar(total: file.size)
    var run = StreamRun(url: configuration.request.url, progress: progress, metrics: values["metrics"])
    run.action = .uploading
    run.tokenPlace = StreamOptions.tokenPlace(values)
    run.signals = signals
    run.endsAtOnce = true
    run.digest = configuration.digest
    let abandons = values.has("abandon")
    run.observe = { note($0, record, isAbandoned: abandons) }
    run.statusLine = { bar.line($0, width: Console.width) }
    if abandons { (run.conclude, run.report) = (concludeAbandoned, abandoned) } else { run.report = uploaded }
    let code: ExitCode
    do throws(CommandError) {
      code = try run.run(configuration) { (configuration, session) in
        let streamer = LiveStreamer(file, configuration: configuration, session: session)
        if abandons { streamer.abandon() }
        return streamer
      }
    } catch {
      // Nothing was sent.
      if configuration.resumeData == nil { record.withdraw() }
      throw error
    }
    if code != .done, code == .interrupted || record.isKept, progress != .json {
      Console.shared.say(record.advice(resumingWith: command("--resume", values)))
    }
    return code
  }

  /// Uploads a file of unknown size, such as one in procfs, once and as `pipe` does.
  private static func stream(
    _ path: String, _ values: CommandLineSyntax.Values, _ chosen: LiveStreamConfiguration, _ progress: ProgressKind,
    _ signals: Signals
  ) throws(CommandError) -> ExitCode {
    var configuration = chosen
    configuration.buffer = .bytes(Pipe.bufferSize)
    Pipe.adapt(&configuration)
    let source: DescriptorSource
    do throws(SystemError) {
      // Open until the process ends.
      let descriptor = try signals.endProcess { () throws(SystemError) in
        try retryingInterrupts("open") { open(path, O_RDONLY | O_CLOEXEC) }
      }
      source = try DescriptorSource(descriptor: descriptor, name: path)
    } catch {
      throw CommandError(.unreadable(error), path: path, url: values.operands[1])
    }
    var run = StreamRun(url: configuration.request.url, progress: progress, metrics: values["metrics"])
    run.action = .uploading
    run.tokenPlace = StreamOptions.tokenPlace(values)
    run.signals = signals
    run.finishTimeout = try StreamOptions.finishTimeout(values)
    run.digest = configuration.digest
    run.report = uploaded
    return try run.run(source, configuration)
  }

  private static func isURL(_ operand: String) -> Bool {
    let start = operand.prefix(8).lowercased()
    return start.hasPrefix("http://") || start.hasPrefix("https://")
  }

  // MARK: Interrupted uploads

  /// Claims the record, and decides how it affects this upload.
  ///
  /// - Returns: the upload to continue or to abandon, or nil for a new one.
  private static func begin(
    _ record: UploadRecord, _ file: UploadFile, _ values: CommandLineSyntax.Values, target: String
  ) throws(CommandError) -> ResumeData? {
    let isWanted = values.has("resume") || values.has("abandon")
    guard let unfinished = try record.claim() else {
      guard isWanted else { return nil }
      // An earlier process was killed before it recorded anything.
      if values.has("resume"), record.isInherited {
        Console.shared.say("\(record.path.shellQuoted) records nothing yet: the upload begins with the first byte")
        return nil
      }
      record.withdraw()
      throw .usage(
        "cannot resume or abandon: \(record.path.shellQuoted) records no unfinished upload of \(file.path.shellQuoted). Leave --resume or --abandon out, or name its record with --resume-file."
      )
    }
    let recorded = unfinished.data.target
    let shown = UploadRequest.withoutSecrets(recorded)
    let isSameFile = file.version.isSame(asDescribed: unfinished.version)
    let isSameTarget = recorded == UploadRequest.withoutCredentials(target)
    guard isWanted else {
      // The user's URL, to which the name of the file may be appended, stays as it was written.
      let url = isSameTarget ? values.operands[1] : recorded
      throw .usage(
        "an upload of \(values.operands[0].shellQuoted) to \(shown) is unfinished (\(record.path.shellQuoted))"
          + (isSameFile
            ? ". Resume it with: \(command("--resume", values, url: url)), or abandon it with: "
            : ", and the file has changed since. Abandon it with: ") + command("--abandon", values, url: url)
          + ". For another upload of the file, choose another record with --resume-file PATH.")
    }
    guard isSameTarget else {
      throw .usage("the upload in \(record.path.shellQuoted) has another URL. Write \(shown).")
    }
    guard isSameFile || values.has("abandon") else {
      throw CommandError(
        .inputOutput,
        "\(file.path.shellQuoted) has changed since its upload was interrupted. Abandon the upload with: \(command("--abandon", values)). Then upload the file again without --resume."
      )
    }
    return unfinished.data
  }

  /// Keeps the record in line with the reported events.
  ///
  /// - Parameter isAbandoned: whether the upload is to be deleted. Its file may have changed, and the record must keep
  ///   the version that was uploaded.
  private static func note(_ event: LiveStreamEvent, _ record: UploadRecord, isAbandoned: Bool) {
    switch event {
    case .upload(.created(let data)):
      // The upload can continue without the record, as long as this process runs. So the error is only reported.
      if let error = record.write(data) {
        let remedy = SystemError.remedy(forLimit: error.code) ?? "Choose another path with --resume-file."
        Console.shared.say(
          "cannot write \(record.path.shellQuoted): \(error.reason). The upload continues, but it cannot be resumed after an interruption. \(remedy)"
        )
      }
    case .ended(let summary):
      switch (summary.error?.kind, summary.resumeData) {
      case (_?, let data?):
        // It may not have been possible before. The obstacle was reported then. The same state is not written again.
        if !isAbandoned { _ = record.write(data) }
      case (.cancelled?, nil): record.reset()
      // Nothing is left to continue: the upload is complete, finally refused, or unknown to the server.
      default: record.remove()
      }
    default: break
    }
  }

  private static func command(_ option: String, _ values: CommandLineSyntax.Values, url: String? = nil) -> String {
    var words = ["sluice", "put", option]
    if let path = values["resume-file"] { words += ["--resume-file", path.shellQuoted] }
    words.append(values.operands[0].shellOperand)
    return (words + [UploadRequest.shellWords(url ?? values.operands[1])]).joined(separator: " ")
  }

  // MARK: Reports

  private static func uploaded(_ summary: StreamSummary) -> (lines: [String], code: ExitCode) {
    var lines = StreamReport.lines(summary, action: .uploading)
    if summary.error == nil, let response = summary.response {
      lines += words(of: response).map { "the server: \($0)" }
    }
    return (lines, ExitCode(summary))
  }

  /// The response of a user's handler: the first lines of a short text, without characters that control a terminal.
  static func words(of response: HTTPResponse) -> [String] {
    guard response["Content-Type"]?.lowercased().hasPrefix("text/plain") ?? false, let text = response.text else {
      return []
    }
    return text.split(whereSeparator: \.isNewline).prefix(5).map { line in
      let printable = String(line.prefix(200)).filter { character in
        !character.unicodeScalars.contains(where: isUnprintable)
      }
      return line.count > 200 ? printable + "..." : printable
    }
  }

  /// The end of an upload to abandon. It is a success if the server has deleted the upload.
  private static func concludeAbandoned(_ summary: StreamSummary) -> StreamSummary {
    var concluded = summary
    if summary.resumeData == nil {
      concluded.error = nil
    } else if summary.error?.kind == .cancelled {
      let reason = summary.response.map { "it answered \($0.status)" } ?? "it could not be reached, or did not answer"
      let data = summary.resumeData
      let origin = data.flatMap { UploadRequest.origin(of: $0.upload) }
      let isElsewhere = origin != data.flatMap { UploadRequest.origin(of: $0.target) }
      let advice =
        isElsewhere && summary.response == nil
        ? "Its Location leads to \(origin ?? ""). Use --location keep to ask the host of your URL."
        : "Try again later."
      concluded.error = LiveStreamError(.unreachable, "the server has not deleted the upload: \(reason). \(advice)")
    }
    return concluded
  }

  private static func abandoned(_ summary: StreamSummary) -> (lines: [String], code: ExitCode) {
    if let error = summary.error { return (["sluice: \(error.description)"], ExitCode(summary)) }
    if let status = summary.response?.status, [404, 410].contains(status) {
      return (["the server no longer had the upload (it answered \(status))"], .done)
    }
    return (["the server has deleted the upload"], .done)
  }
}

extension CommandError {
  fileprivate init(_ error: UploadFileError, path: String, url: String) {
    let streamed = "sluice pipe \(UploadRequest.shellWords(url))"
    let reason =
      switch error {
      case .unreadable(let error) where error.code == ENOENT && path.contains("\u{FFFD}"):
        "its name is not valid UTF-8. Rename it, or stream it with: \(streamed) < FILE"
      case .unreadable(let error):
        "\(error.reason). \(SystemError.remedy(forLimit: error.code) ?? "Name a file that exists and is readable.")"
      case .directory:
        "it is a directory. Name a file. To upload the whole directory: tar c \(path.shellOperand) | \(streamed)"
      case .notRegular:
        "it is not a regular file, so it can be read only once. Stream it with: \(streamed) < \(path.shellQuoted)"
      case .unknownSize: "its size is unknown, so its upload cannot be resumed. Leave --resume and --abandon out."
      case .changed(let change): "it changed while it was read: \(change). Try again when it no longer changes."
      }
    let code: ExitCode =
      switch error {
      case .changed: .inputOutput
      case .unreadable(let error) where SystemError.remedy(forLimit: error.code) != nil: .inputOutput
      default: .noInput
      }
    self.init(code, "cannot upload \(path.shellQuoted): \(reason)")
  }
}
