// The checkpoint of a collector: the message of the log up to which all bytes are synced, and the state at that
// message. It only converts between text and values.

internal import HTTPMessages
internal import LogServing

/// One moment of a collection. The next collector restores the directory to this state, and reads the log from here
/// on, regardless of what was killed.
struct CollectorCheckpoint: Equatable, Sendable {
  /// An unfinished upload.
  struct Upload: Equatable, Sendable {
    enum Phase: String, Sendable {
      case open
      /// Its recording was closed because it was silent. Later bytes begin the next part.
      case closed
      /// It cannot be stored.
      case refused
    }

    var token: String
    var origin: UploadOrigin
    /// The offset in the upload at which its current recording begins.
    var segmentStart: UInt64
    /// The number of stored bytes of the upload.
    var offset: UInt64
    /// Whether the recording is removed when the upload is cancelled.
    var ownsFile = false
    var phase = Phase.open
    /// Whether it has passed over bytes that could not be compared, so that its messages are not purged.
    var isUncompared = false
    /// The link of its last message that counts. Nil if it is unknown, as in a checkpoint of an earlier version.
    var link: LogEntry.Link?
  }

  /// A growing recording.
  struct File: Equatable, Sendable {
    /// Its name, without part and extension.
    var base: String
    var part: Int
    /// The stream offset after its last byte.
    var length: UInt64
  }

  /// Messages that must be removed from the log.
  struct Purge: Equatable, Sendable {
    var token: String
    /// The first one that is kept.
    var sequence: UInt64
    /// The recording whose stored bytes must be compared with the received ones before: its name without extension.
    /// Nil if nothing is awaited.
    var awaited: String?
  }

  /// A message of the log.
  struct Position: Equatable, Sendable {
    var sequence: UInt64
    /// Empty if it is unknown.
    var mark: String
    /// The latest storage time of all messages up to it, in nanoseconds since 1970 by the brokers' clock. 0 if it is
    /// unknown, as in a checkpoint of an earlier version.
    var time: Int64 = 0

    /// Before the first message.
    static let beginning = Position(sequence: 0, mark: "")
  }

  /// A stream whose messages were not applied from one on, because its records cannot be read or its messages wait.
  struct Omission: Equatable, Sendable {
    /// The name of its recordings, without part and extension.
    var base: String
    /// The first message that was not applied.
    var sequence: UInt64
  }

  /// The name of the JetStream stream, and when it was created.
  var stream: String
  var created: String
  var partition: String
  /// The last message that the next collector need not read.
  var position = Position.beginning
  /// The last message that was applied or belongs to one of ``omissions``. Nil if that is the one above, because there
  /// are none.
  var applied: Position?
  /// The last message that was read before the brokers lost messages. Nil unless the log is read again up to there.
  var formerEnd: UInt64?
  var uploads: [Upload] = []
  var files: [File] = []
  var purges: [Purge] = []
  var omissions: [Omission] = []

  // MARK: Text

  private static let version: Int64 = 1
  private static let positionKeys = (sequence: "sequence", mark: "mark", time: "time")
  private static let appliedKeys = (sequence: "applied", mark: "applied-mark", time: "applied-time")

  /// A line for each value. The last line shows that none is missing. Nil if a value does not fit into its line.
  var text: String? {
    var head: [(String, BareItem)] = [
      ("collect", .integer(Self.version)), ("stream", .string(stream)), ("created", .string(created)),
      ("partition", .string(partition)),
    ]
    func add(_ position: Position, _ keys: (sequence: String, mark: String, time: String)) {
      head += [(keys.sequence, .integer(Int64(clamping: position.sequence))), (keys.mark, .string(position.mark))]
      // It has more digits than an integer of a structured field may have.
      if position.time > 0 { head.append((keys.time, .string(String(position.time)))) }
    }
    add(position, Self.positionKeys)
    if let applied { add(applied, Self.appliedKeys) }
    if let formerEnd { head.append(("former-end", .integer(Int64(clamping: formerEnd)))) }
    var lines = [Line(head)]
    lines += uploads.map(Line.init)
    lines += files.map {
      Line([
        ("file", .string($0.base)), ("part", .integer(Int64($0.part))),
        ("length", .integer(Int64(clamping: $0.length))),
      ])
    }
    lines += purges.map { purge in
      Line(
        [("purge", .string(purge.token)), ("before", .integer(Int64(clamping: purge.sequence)))]
          + (purge.awaited.map { [("awaits", .string($0))] } ?? []))
    }
    lines += omissions.map {
      Line([("omitted", .string($0.base)), ("from", .integer(Int64(clamping: $0.sequence)))])
    }
    lines.append(Line([("end", .integer(Int64(lines.count)))]))
    let texts = lines.compactMap(\.text)
    return texts.count == lines.count ? texts.joined(separator: "\n") + "\n" : nil
  }

  /// Nil if it is not a checkpoint, or an incomplete one.
  init?(parsing text: String) {
    let lines = text.split(separator: "\n").map { Line(parsing: String($0)) }
    guard let head = lines.first, head?.count("collect") == UInt64(Self.version), let stream = head?.string("stream"),
      let created = head?.string("created"), let partition = head?.string("partition"),
      let position = head?.position(Self.positionKeys),
      lines.last??.count("end") == UInt64(lines.count - 1)
    else { return nil }
    self.init(stream: stream, created: created, partition: partition)
    (self.position, applied) = (position, head?.position(Self.appliedKeys))
    formerEnd = head?.count("former-end")
    for line in lines.dropFirst().dropLast() {
      guard let line else { return nil }
      if let upload = Upload(line) {
        uploads.append(upload)
      } else if let base = line.string("file"), let part = line.count("part"), let length = line.count("length") {
        files.append(File(base: base, part: Int(clamping: part), length: length))
      } else if let token = line.string("purge"), let sequence = line.count("before") {
        purges.append(Purge(token: token, sequence: sequence, awaited: line.string("awaits")))
      } else if let base = line.string("omitted"), let sequence = line.count("from") {
        omissions.append(Omission(base: base, sequence: sequence))
      } else {
        return nil
      }
    }
  }

  init(stream: String, created: String, partition: String) {
    (self.stream, self.created, self.partition) = (stream, created, partition)
  }
}

/// One line: a structured dictionary (RFC 9651).
private struct Line {
  private var fields = StructuredDictionary()

  init(_ members: [(String, BareItem)]) { for (key, value) in members { fields.set(key, .item(Item(value))) } }

  init?(parsing text: String) {
    guard let fields = StructuredDictionary(parsing: text) else { return nil }
    self.fields = fields
  }

  init(_ upload: CollectorCheckpoint.Upload) {
    let origin = upload.origin
    self.init([
      ("upload", .string(upload.token)), ("path", .displayString(origin.path)), ("stream", .string(origin.streamID)),
      ("start", .integer(Int64(clamping: origin.streamStart))), ("live", .boolean(origin.isLive)),
      ("from", .integer(Int64(clamping: upload.segmentStart))), ("offset", .integer(Int64(clamping: upload.offset))),
      ("owns", .boolean(upload.ownsFile)), ("phase", .token(upload.phase.rawValue)),
    ])
    func set(_ key: String, _ value: BareItem?) { if let value { fields.set(key, .item(Item(value))) } }
    set("type", origin.mediaType.map { .displayString($0) })
    set("owner", origin.owner.map { .bytes($0) })
    set("description", origin.description.map { .displayString($0) })
    if upload.isUncompared { set("uncompared", .boolean(true)) }
    set("number", upload.link.map { .integer(Int64(clamping: $0.number)) })
    set("chain", upload.link.map { .string($0.digest) })
  }

  /// Nil if a value does not fit into a line.
  var text: String? { fields.serialized }

  private func value(_ key: String) -> BareItem? { if case .item(let item)? = fields[key] { item.value } else { nil } }
  func count(_ key: String) -> UInt64? {
    if case .integer(let number)? = value(key), number >= 0 { UInt64(number) } else { nil }
  }
  func string(_ key: String) -> String? { if case .string(let text)? = value(key) { text } else { nil } }
  func text(_ key: String) -> String? { if case .displayString(let text)? = value(key) { text } else { nil } }
  func token(_ key: String) -> String? { if case .token(let text)? = value(key) { text } else { nil } }
  func flag(_ key: String) -> Bool? { if case .boolean(let flag)? = value(key) { flag } else { nil } }
  func position(_ keys: (sequence: String, mark: String, time: String)) -> CollectorCheckpoint.Position? {
    guard let sequence = count(keys.sequence), let mark = string(keys.mark) else { return nil }
    return .init(sequence: sequence, mark: mark, time: string(keys.time).flatMap { Int64($0) } ?? 0)
  }
  func bytes(_ key: String) -> [UInt8]? { if case .bytes(let bytes)? = value(key) { bytes } else { nil } }
}

extension CollectorCheckpoint.Upload {
  fileprivate init?(_ line: Line) {
    guard let token = line.string("upload"), let path = line.text("path"), let streamID = line.string("stream"),
      let start = line.count("start"), let isLive = line.flag("live"), let from = line.count("from"),
      let offset = line.count("offset"), let owns = line.flag("owns"),
      let phase = line.token("phase").flatMap({ Phase(rawValue: $0) })
    else { return nil }
    self.init(
      token: token,
      origin: UploadOrigin(
        path: path, mediaType: line.text("type"), streamID: streamID, streamStart: start, owner: line.bytes("owner"),
        isLive: isLive, description: line.text("description")),
      segmentStart: from, offset: offset, ownsFile: owns, phase: phase)
    isUncompared = line.flag("uncompared") ?? false
    if let number = line.count("number"), let chain = line.string("chain") {
      link = LogEntry.Link(number: number, digest: chain)
    }
  }
}

extension LogEntry.Link {
  /// Whether a checkpoint can contain it. Anybody with access to the brokers may publish other texts as a digest.
  var isStorable: Bool {
    number <= UInt64(BareItem.largestInteger) && digest.utf8.count == 64
      && digest.utf8.allSatisfy { (0x21...0x7E).contains($0) }
  }
}
