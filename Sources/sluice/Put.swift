// sluice put FILE URL

internal import EventLoops
internal import Glibc
internal import LiveStreaming
internal import ResumableUploads
internal import StreamBuffers
internal import Synchronization
internal import UploadClient

enum Put {
  static let syntax = CommandLineSyntax(
    name: "put", summary: "Uploads a file, and goes on after every interruption.", operands: ["FILE", "URL"],
    options: [
      Option("resume", "go on with an upload of this file that was interrupted"),
      Option("resume-file", value: "PATH", "where that is remembered (default FILE.sluice)"),
      Option("abandon", "let the server forget such an upload instead"),
      Option("content-type", value: "TYPE", "what the bytes are (default application/octet-stream)"),
    ] + StreamOptions.shown,
    connectionOptions: StreamOptions.resuming + StreamOptions.connection,
    example: "sluice put recording.wav http://localhost:8080/archive/ --digest sha-256")

  static func run(_ values: CommandLineSyntax.Values) throws(CommandError) -> ExitCode {
    let path = values.operands[0]
    let digest = try StreamOptions.digest(values)
    let file: UploadFile
    do throws(SystemError) {
      file = try UploadFile(path: path, digest: digest)
    } catch {
      throw CommandError(
        .inputOutput, "\(path) cannot be uploaded (\(error.reason)): name a file, or use sluice pipe for anything else")
    }
    var request = try StreamOptions.request(values, url: url(values.operands[1], path))
    let choosesMethod = !values.has("method")
    if choosesMethod { request.method = "PUT" }
    request.fields.addDefault("Content-Type", values["content-type"] ?? "application/octet-stream")
    // As much as libcurl takes at once: for throughput, system calls are what counts.
    request.uploadBufferSize = 512 << 10
    var configuration = try StreamOptions.configuration(
      values, request: request, bytesPerSecond: 1_000_000, buffer: .bytes(1), overflow: .wait)
    configuration.mayUsePOST = choosesMethod
    let memory = ResumeFile(path: values["resume-file"] ?? path + ".sluice", file: file)
    if values.has("resume") || values.has("abandon") { configuration.resumeData = try memory.read(target: request.url) }
    if let data = configuration.resumeData { configuration.streamID = data.streamID ?? configuration.streamID }
    if !values.has("roll-over-bytes") { configuration.rollOver.size = .max }

    let progress = try ProgressKind(values)
    let bar = TransferBar(total: file.size)
    var run = StreamRun(url: request.url, progress: progress, metrics: values["metrics"])
    run.endsAtOnce = true
    run.observe = { memory.note($0) }
    run.statusLine = { bar.line($0, width: Console.width) }
    let abandons = values.has("abandon")
    if abandons { run.report = abandoned }
    let code = try run.run(configuration) { (configuration, session) in
      let streamer = LiveStreamer(file, configuration: configuration, session: session)
      if abandons { streamer.abandon() }
      return streamer
    }
    if code != .done, memory.isThere, progress != .json {
      Console.shared.say(
        "go on with: sluice put --resume \(path) \(UploadRequest.withoutCredentials(values.operands[1]))")
    }
    return code
  }

  /// The end of an upload that was to be abandoned: it is a success if the server has forgotten it.
  private static func abandoned(_ summary: StreamSummary) -> (lines: [String], code: ExitCode) {
    if summary.resumeData == nil { return (["the server has forgotten the upload"], .done) }
    if summary.error?.kind != .cancelled { return (StreamReport.lines(summary), ExitCode(summary.error)) }
    let reason = summary.response.map { "it answered \($0.status)" } ?? "it could not be reached, or did not answer"
    return (["sluice: the server has not forgotten the upload: \(reason); try again later"], .unavailable)
  }

  /// As curl's `-T`: a URL that ends in a slash is a place for files, and the file's name belongs behind it.
  private static func url(_ url: String, _ path: String) -> String {
    guard url.hasSuffix("/") else { return url }
    let name = path.split(separator: "/").last.map(String.init) ?? path
    return url + name.utf8.map(percentEncoded).joined()
  }

  /// Unreserved characters as they are (RFC 3986, section 2.3).
  private static func percentEncoded(_ octet: UInt8) -> String {
    switch octet {
    case UInt8(ascii: "a")...UInt8(ascii: "z"), UInt8(ascii: "A")...UInt8(ascii: "Z"),
      UInt8(ascii: "0")...UInt8(ascii: "9"):
      return String(Unicode.Scalar(octet))
    case _ where "-._~".utf8.contains(octet): return String(Unicode.Scalar(octet))
    default:
      let digits = String(octet, radix: 16, uppercase: true)
      return "%" + (digits.count < 2 ? "0" : "") + digits
    }
  }
}

/// The file in which an interrupted upload is remembered: the resume data, and which state of the file they belong to.
///
/// Written as soon as there is an upload resource, so that not even a killed process forgets it, and removed when the upload
/// is complete. As secret as the upload's URL, so nobody else may read it.
private final class ResumeFile: Sendable {
  private let path: String
  /// Size and time of change: what must be the same for the bytes to be taken for the same.
  private let identity: String
  /// Whether what it holds is this process's upload, and not that of another that was interrupted.
  private let isOurs = Mutex(false)

  init(path: String, file: UploadFile) {
    self.path = path
    identity = "size=\(file.size), modified=\(file.modified.seconds), nanoseconds=\(file.modified.nanoseconds)"
  }

  var isThere: Bool { access(path, F_OK) == 0 }

  func note(_ event: LiveStreamEvent) {
    switch event {
    case .upload(.created(let data)): write(data)
    case .ended(let summary):
      // Nothing to go on with: done, refused for good, or forgotten by the server.
      if summary.error == nil || (summary.resumeData == nil && isOurs.withLock { $0 }) { unlink(path) }
    default: break
    }
  }

  private func write(_ data: ResumeData) {
    guard let text = data.text else { return }
    let temporary = path + ".new"
    // A file that somebody else made keeps its owner and its permissions.
    unlink(temporary)
    let descriptor = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0o600)
    let bytes = Array("\(text)\n\(identity)\n".utf8)
    let isWritten =
      descriptor >= 0 && bytes.withUnsafeBytes { Glibc.write(descriptor, $0.baseAddress, $0.count) } == bytes.count
    // Without it the upload goes on as long as this process does: no reason to end it, but one to say so.
    guard isWritten, close(descriptor) == 0, rename(temporary, path) == 0 else {
      Console.shared.say(
        "\(path) cannot be written (\(String(cString: strerror(errno)))): an interrupted upload will not be remembered; choose another with --resume-file"
      )
      return
    }
    isOurs.withLock { $0 = true }
  }

  func read(target: String) throws(CommandError) -> ResumeData {
    guard let stream = fopen(path, "r") else {
      throw .usage(
        "there is no upload of this file to go on with (\(path): \(String(cString: strerror(errno)))): leave --resume out, or name its file with --resume-file"
      )
    }
    defer { fclose(stream) }
    var bytes = [UInt8](repeating: 0, count: 16 * 1024)
    let count = fread(&bytes, 1, bytes.count, stream)
    let lines = String(decoding: bytes[..<count], as: UTF8.self).split(separator: "\n")
    guard lines.count == 2, let data = ResumeData(String(lines[0])) else {
      throw CommandError(
        .inputOutput, "\(path) does not hold what an upload is gone on with: remove it and upload anew")
    }
    guard lines[1] == identity else {
      throw CommandError(
        .inputOutput, "the file has changed since its upload was interrupted: upload it anew, without --resume")
    }
    guard data.target == UploadRequest.withoutCredentials(target) else {
      throw .usage("the upload in \(path) goes to \(UploadRequest.withoutCredentials(data.target)): give that URL")
    }
    isOurs.withLock { $0 = true }
    return data
  }
}
