// The options of a spool, and what they make of it.

internal import EventLoops
internal import Glibc
internal import LiveStreaming
internal import Spool
internal import SpooledStreams
internal import UploadClient

/// How a stream is kept on disk until the server has it.
struct SpoolOptions: Sendable {
  /// When the backlog of earlier runs is sent.
  enum Backlog: String { case first, parallel }

  let directory: String
  /// The folder in it.
  let stream: String
  let settings: SpoolSettings
  /// Whether the limit was chosen here, from the free space.
  let isLimitChosen: Bool
  let backlog: Backlog

  static let topic = HelpTopic(
    name: "spooling", title: "Options of the spool",
    options: [
      Option("spool", value: "DIR", "keep the stream in DIR until the server has it (default: in memory only)"),
      Option("spool-limit", value: "SIZE", "most bytes to keep in the spool (default: half of the free space)"),
      Option("spool-keep", value: "T", "discard what was captured longer ago than T (default: never)"),
      Option("sync-interval", value: "T", "a power cut may take the last T (default: 1s)"),
      Option(
        "backlog", value: "WHEN",
        "send what earlier runs have left: first, or parallel to the new stream (default: parallel)"),
      Option("catch-up-rate", value: "SIZE", "most bytes per second to send (default: as fast as possible)"),
    ],
    notes: [
      "With --spool, --buffer is the memory in front of the disk (default: mic 10s).",
      "The stream survives outages up to --spool-limit, SIGKILL and a power cut.",
      "The next run with the same DIR and URL sends what is left, or sluice spool drain does.",
      "One process at a time streams to a URL from a spool: --stream-id names further streams.",
      "Each run is a stream of its own; with --stream-id its name at the server is ID.TIME.",
    ])

  /// nil without `--spool`.
  init?(_ values: CommandLineSyntax.Values, _ configuration: LiveStreamConfiguration) throws(CommandError) {
    let limit = try values["spool-limit"].map { (text) throws(CommandError) in
      try Units.byteCount(text, of: "spool-limit")
    }
    if let limit, limit < Self.smallestLimit {
      throw .usage("--spool-limit \((values["spool-limit"] ?? "").shown): too small. Choose at least 1MiB.")
    }
    var settings = SpoolSettings(limit: UInt64(limit ?? 0))
    if let text = values["sync-interval"] {
      settings.syncInterval = try Units.duration(
        text, of: "sync-interval", atLeast: .milliseconds(10), atMost: .seconds(3600))
    }
    settings.retention = try values["spool-keep"].map { (text) throws(CommandError) in
      try Units.duration(text, of: "spool-keep", atLeast: .seconds(60))
    }
    settings.evicts = configuration.overflow == .dropOldest
    guard let backlog = Backlog(rawValue: values["backlog"] ?? "parallel") else {
      throw .usage("--backlog \((values["backlog"] ?? "").shown): unknown. Choose first or parallel.")
    }
    if values.has("spool"), configuration.request.method == "PUT" {
      throw .usage("--spool requires another method than PUT: each run would replace what the one before has stored.")
    }
    guard let directory = values["spool"] else {
      for name in ["spool-limit", "spool-keep", "sync-interval", "backlog", "catch-up-rate"] where values.has(name) {
        throw .usage("--\(name) requires --spool DIR. Name the directory, or leave --\(name) out.")
      }
      return nil
    }
    isLimitChosen = limit == nil
    self.directory = directory
    stream = values["stream-id"] ?? Self.stream(of: configuration.request.url)
    if isLimitChosen { settings.limit = try Self.half(ofFreeSpaceAt: directory, stream) }
    self.settings = settings
    self.backlog = backlog
  }

  /// For what is in the spool already.
  init(directory: String, stream: String) {
    (self.directory, self.stream) = (directory, stream)
    settings = SpoolSettings(limit: .max)
    (isLimitChosen, backlog) = (false, .first)
  }

  private static let smallestLimit = 1 << 20

  /// What `--spool` changes of the stream itself.
  static func adapt(_ configuration: inout LiveStreamConfiguration, _ values: CommandLineSyntax.Values)
    throws(CommandError)
  {
    if let text = values["catch-up-rate"] {
      configuration.request.maximumSendRate = try Units.byteCount(text, of: "catch-up-rate")
    }
    guard values.has("spool") else { return }
    // What another run has left has that name already.
    if let id = values["stream-id"] {
      let time = WallClock.now.iso8601.prefix(19).filter { $0 != "-" && $0 != ":" }
      let digits = String(UInt16.random(in: 0x1000 ... .max), radix: 16)
      configuration.streamID = "\(id.prefix(42)).\(time)Z-\(digits)"
    }
  }

  /// A folder's name: what can be read of the URL, and what tells it from others.
  private static func stream(of url: String) -> String {
    let url = UploadRequest.withoutCredentials(url)
    let place = url.drop { $0 != ":" }.drop { $0 == ":" || $0 == "/" }
    let readable = place.prefix { $0 != "?" && $0 != "#" }.map { character -> Character in
      character.isASCII && (character.isLetter || character.isNumber || character == "-") ? character : "_"
    }
    // Not a secret, only a difference: FNV-1a.
    let sum = url.utf8.reduce(UInt32(0x811c_9dc5)) { ($0 ^ UInt32($1)) &* 0x0100_0193 }
    return "\(String(readable.prefix(50)))-\(String(sum, radix: 16))"
  }

  /// Half of what is free, and of what earlier runs have taken.
  private static func half(ofFreeSpaceAt directory: String, _ stream: String) throws(CommandError) -> UInt64 {
    let taken = ((try? SpoolFolder.stretches(in: "\(directory)/\(stream)")) ?? []).reduce(UInt64(0)) { sum, path in
      var status = stat()
      return stat(path, &status) == 0 ? sum + UInt64(max(0, status.st_blocks)) * 512 : sum
    }
    var path = directory
    var status = statvfs()
    while statvfs(path, &status) != 0 {
      guard errno == ENOENT, path != "/", path != "." else {
        throw CommandError(
          .inputOutput, "--spool \(directory.shown): \(String(cString: strerror(errno))). Name a directory on a disk.")
      }
      let parent = path.lastIndex(of: "/").map { String(path[..<$0]) } ?? "."
      path = parent.isEmpty ? "/" : parent
    }
    let free = UInt64(status.f_bavail).multipliedReportingOverflow(by: UInt64(status.f_frsize))
    return max(UInt64(smallestLimit), (free.overflow ? .max : free.partialValue.addingSaturated(taken)) / 2)
  }

  /// Opens the spool.
  func open() throws(CommandError) -> StreamSpool {
    do throws(SpoolError) {
      return try StreamSpool(directory: directory, stream: stream, settings: settings) { event in
        Console.shared.say(SpoolReport.line(event))
      }
    } catch {
      throw SpoolReport.commandError(error)
    }
  }
}
