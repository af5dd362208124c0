// The options of a spool, and the configuration that follows from them.

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
  /// The folder within the directory.
  let stream: String
  let settings: SpoolSettings
  /// A human-readable description of the values from which the limit was computed. Nil if the user has chosen it.
  let limitReason: String?
  let backlog: Backlog

  static let topic = HelpTopic(
    name: "spooling", title: "Options of the spool",
    options: [
      Option("spool", value: "DIR", "keep the stream in DIR until the server has it (default: in memory only)"),
      Option("spool-limit", value: "SIZE", "maximum size of the spool (default: half of the free space)"),
      Option("spool-keep", value: "T", "discard data that was captured more than T ago (default: never)"),
      Option("sync-interval", value: "T", "time between syncs; a power cut may lose data of the last T (default: 1s)"),
      Option(
        "backlog", value: "WHEN",
        "send data of earlier runs: first, or parallel to the new stream (default: parallel)"),
      Option("catch-up-rate", value: "SIZE", "highest sending rate in bytes per second (default: as fast as possible)"),
    ],
    notes: [
      "With --spool, --buffer sets the size of the memory buffer before the disk.",
      "Its default for mic is 4 times --sync-interval, but at least 10s and at most 60s.",
      "The stream survives SIGKILL, a power cut, and outages that fit in --spool-limit.",
      "The next run with the same DIR and URL sends the remaining data.",
      "sluice spool drain also sends it.",
      "Only one process at a time can stream to a URL from a spool.",
      "Use --stream-id to name more streams.",
      "Each run is a separate stream.",
      "With --stream-id, its name at the server is ID.TIME.",
    ])

  /// Nil without `--spool`.
  init?(_ values: CommandLineSyntax.Values, _ configuration: LiveStreamConfiguration) throws(CommandError) {
    let limit = try values["spool-limit"].map { (text) throws(CommandError) in
      try Units.byteCount(text, of: "spool-limit")
    }
    if let limit, limit < Self.smallestLimit {
      throw .usage("--spool-limit \((values["spool-limit"] ?? "").shown): too small. Choose at least 1MiB.")
    }
    var settings = SpoolSettings(limit: UInt64(limit ?? 0))
    settings.syncInterval = try Self.syncInterval(values) ?? settings.syncInterval
    settings.retention = try values["spool-keep"].map { (text) throws(CommandError) in
      try Units.duration(text, of: "spool-keep", atLeast: .seconds(60))
    }
    settings.evicts = configuration.overflow == .dropOldest
    guard let backlog = Backlog(rawValue: values["backlog"] ?? "parallel") else {
      throw .usage("--backlog \((values["backlog"] ?? "").shown): unknown. Choose first or parallel.")
    }
    if values.has("spool"), configuration.request.method == "PUT" {
      throw .usage(
        "--spool requires a method other than PUT: each run would replace the recording of the run before. Leave --method out."
      )
    }
    guard let directory = values["spool"] else {
      for name in ["spool-limit", "spool-keep", "sync-interval", "backlog", "catch-up-rate"] where values.has(name) {
        throw .usage("--\(name) requires --spool DIR. Name the directory, or leave --\(name) out.")
      }
      return nil
    }
    try Self.checkRate(configuration.request, values)
    self.directory = directory
    stream = values["stream-id"] ?? Self.stream(of: configuration.request.url)
    if limit == nil {
      let half = try Self.half(ofFreeSpaceAt: directory, stream)
      let most = Self.mostInLargestFile(besides: configuration.buffer.byteCount)
      guard most >= UInt64(Self.smallestLimit) else {
        throw CommandError(
          .inputOutput,
          "the limit of this process for a file is too small for a spool. Raise the limit with ulimit -f\(values.has("buffer") ? ", or choose a smaller --buffer" : "")."
        )
      }
      settings.limit = max(min(half, most), UInt64(Self.smallestLimit))
      limitReason =
        most < half ? "as much as the limit of this process for a file allows (ulimit -f)" : "half of the free space"
    } else {
      limitReason = nil
    }
    self.settings = settings
    self.backlog = backlog
  }

  /// For data that is already in the spool.
  init(directory: String, stream: String) {
    (self.directory, self.stream) = (directory, stream)
    settings = SpoolSettings(limit: .max)
    (limitReason, backlog) = (nil, .first)
  }

  private static let smallestLimit = 1 << 20

  private static func syncInterval(_ values: CommandLineSyntax.Values) throws(CommandError) -> Duration? {
    try values["sync-interval"].map { (text) throws(CommandError) in
      try Units.duration(text, of: "sync-interval", atLeast: .milliseconds(10), atMost: .seconds(3600))
    }
  }

  /// How long a microphone's memory buffer before the disk lasts by default. Nil without `--spool`.
  ///
  /// A quarter of it goes to the disk at once. With less than a sync interval in it, the file system would write its
  /// journal between two syncs as well.
  static func memory(_ values: CommandLineSyntax.Values) throws(CommandError) -> Duration? {
    guard values.has("spool") else { return nil }
    return min(max(.seconds(10), (try syncInterval(values) ?? .zero) * 4), .seconds(60))
  }

  /// Applies the changes that `--spool` makes to the stream itself.
  static func adapt(_ configuration: inout LiveStreamConfiguration, _ values: CommandLineSyntax.Values)
    throws(CommandError)
  {
    if let text = values["catch-up-rate"] {
      configuration.request.maximumSendRate = try Units.byteRate(text, of: "catch-up-rate")
    }
    guard values.has("spool") else { return }
    if !values.has("buffer") {
      // A stretch's file has room for the content of the buffer besides the limit. The rest is for the limit.
      let half = mostInLargestFile(besides: 0) / 2
      if UInt64(configuration.buffer.byteCount) > half { configuration.buffer = .bytes(Int(clamping: half)) }
    }
    // A stream that another run left already has that name.
    if let id = values["stream-id"] {
      let time = WallClock.now.iso8601.prefix(19).filter { $0 != "-" && $0 != ":" }
      let digits = String(UInt16.random(in: 0x1000 ... .max), radix: 16)
      configuration.streamID = "\(id.prefix(42)).\(time)Z-\(digits)"
    }
  }

  /// Refuses a rate at which a healthy transfer would count as stalled.
  ///
  /// - Parameter request: the request as the stream sends it, with the final size of its buffer.
  static func checkRate(_ request: UploadRequest, _ values: CommandLineSyntax.Values) throws(CommandError) {
    let smallest = smallestRate(of: request)
    guard let rate = request.maximumSendRate, rate < smallest else { return }
    throw .usage(
      "--catch-up-rate \((values["catch-up-rate"] ?? "").shown): too low for --stall-timeout \(values["stall-timeout"] ?? Units.brief(request.limits.unacknowledged)). Choose at least \(Units.brief(bytes: smallest)), or a longer --stall-timeout."
    )
  }

  /// At a limited rate, libcurl sends a whole buffer at once, and then nothing until the next one. This pause must be
  /// shorter than the stall timeout. A quarter of the timeout is reserved, because the line or this machine may be
  /// late.
  static func smallestRate(of request: UploadRequest) -> Int {
    let limit = request.limits.unacknowledged
    guard limit > .zero else { return 1 }
    // Fits, because a buffer has at most some megabytes, and the limit is at least a nanosecond.
    return Int((Double(request.uploadBufferSize) / (limit.seconds * 0.75)).rounded(.up))
  }

  /// The name of a folder: the readable part of the URL, and a checksum that distinguishes URLs.
  private static func stream(of url: String) -> String {
    let url = UploadRequest.withoutCredentials(url)
    let place = url.drop { $0 != ":" }.drop { $0 == ":" || $0 == "/" }
    let readable = place.prefix { $0 != "?" && $0 != "#" }.map { character -> Character in
      character.isASCII && (character.isLetter || character.isNumber || character == "-") ? character : "_"
    }
    // Distinguishes URLs and needs no secrecy: FNV-1a.
    let sum = url.utf8.reduce(UInt32(0x811c_9dc5)) { ($0 ^ UInt32($1)) &* 0x0100_0193 }
    return "\(String(readable.prefix(50)))-\(String(sum, radix: 16))"
  }

  /// Half of the sum of the free space and the space that earlier runs use.
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
    return (free.overflow ? .max : free.partialValue.addingSaturated(taken)) / 2
  }

  /// The largest limit for which the file of a stretch stays within RLIMIT_FSIZE.
  private static func mostInLargestFile(besides buffer: Int) -> UInt64 {
    let most = SpoolFile.capacityOfLargestFile
    return most - min(most, StreamSpool.sizeBesidesLimit(buffer: buffer))
  }

  /// Whether a buffer of this size leaves no space for the smallest limit, and a smaller buffer would.
  static func isTooLarge(buffer: Int) -> Bool {
    let smallest = UInt64(smallestLimit)
    return mostInLargestFile(besides: buffer) < smallest && mostInLargestFile(besides: 0) >= smallest
  }

  /// Opens the spool.
  ///
  /// - Parameters:
  ///   - outcome: learns whether bytes of earlier runs may be lost.
  ///   - progress: how the events of the spool are shown.
  func open(_ outcome: BacklogOutcome, _ progress: ProgressKind) throws(CommandError) -> StreamSpool {
    TruncatedBuffer.explain()
    do throws(SpoolError) {
      return try StreamSpool(directory: directory, stream: stream, settings: settings) { event in
        outcome.report {
          if progress == .json {
            Console.shared.put(SpoolReport.jsonLine(event, time: WallClock.now.iso8601), isRoutine: false)
          }
          // An operator reads it, too, because bytes may be at risk.
          Console.shared.say(SpoolReport.line(event))
        }
        if event.reportsDoubt { outcome.noteDoubt() }
      }
    } catch {
      throw SpoolReport.commandError(error)
    }
  }
}
