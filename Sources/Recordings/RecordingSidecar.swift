// The metadata of a recording: a small JSON file beside it, which exists as long as the recording.

package import Digests
internal import JSONLines

/// The content of `NAME.sidecar`, which describes the recording `NAME.wav`, `NAME.txt` or similar.
///
/// `docs/sidecar.md` describes each member.
public struct RecordingSidecar: Equatable, Sendable {
  /// The extension of a sidecar's name. No recording has it.
  public static let fileExtension = ".sidecar"
  /// The version of the format.
  public static let version = 1

  /// How the recording ended.
  public enum State: String, Sendable {
    /// The sender ended the stream.
    case complete
    /// The sender did not return, and the server closed the recording.
    case interrupted
    /// The recording reached its limit, and the stream continues in the next part.
    case split
  }

  /// A file's length and its SHA-256 in hexadecimal.
  public struct Content: Equatable, Sendable {
    /// The file's length.
    public var bytes: UInt64
    /// The SHA-256 in hexadecimal. Nil if it is unknown.
    public var sha256: String?

    /// Creates the content of a file.
    public init(bytes: UInt64, sha256: String? = nil) { (self.bytes, self.sha256) = (bytes, sha256) }
  }

  /// A line of the recording's `.gaps`.
  public struct Gap: Equatable, Sendable {
    /// The stream offset of the first missing byte.
    public var offset: UInt64
    /// The number of missing bytes.
    public var length: UInt64
    /// The reason, in words.
    public var cause: String

    /// Creates a gap in a recording.
    public init(offset: UInt64, length: UInt64, cause: String) {
      (self.offset, self.length, self.cause) = (offset, length, cause)
    }
  }

  /// A step of the sender's wall clock.
  public struct ClockStep: Equatable, Sendable {
    /// The stream offset of the newest byte when the sender noticed the step.
    public var offset: UInt64
    /// The size of the step. Negative if the clock went back.
    public var milliseconds: Int64

    /// Creates a step of the clock.
    public init(offset: UInt64, milliseconds: Int64) { (self.offset, self.milliseconds) = (offset, milliseconds) }
  }

  /// The name of the recording's file, which is in the same directory.
  public var file: String
  /// The `Stream-ID`. Nil if it is no longer known.
  public var stream: String?
  /// The number of this recording among those of the stream, beginning with 1.
  public var part = 1
  /// The stream offset of the first byte after a header that the server copied from an earlier recording.
  public var offset: UInt64 = 0
  /// How the recording ended.
  public var state = State.complete
  /// Whether the sender announced no length.
  public var isLive = true
  /// The start of the recording (RFC 3339), by the sender's wall clock if it is known, otherwise by the server's.
  public var started: String?
  /// Whether ``started`` is by the sender's clock.
  public var startedBySender = false
  /// The time when the server completed the recording, by the server's wall clock (RFC 3339).
  public var ended: String?
  /// Whether the server's clock was synchronized at ``ended`` (adjtimex(2)). Nil if the server could not determine it.
  public var isClockSynchronized: Bool?
  /// The time when a server with a synchronized clock first saw the recording, if ``ended`` cannot be trusted (RFC
  /// 3339).
  public var firstSeen: String?
  /// The path of the link to the recording whose name has its start time, relative to the directory.
  public var link: String?
  /// The file before the sizes in its header were corrected. In an unfinished sidecar, its digest is that of the bytes
  /// as they arrived, if it is known.
  public var received: Content?
  /// The file in its current form. Its digest is nil if the file is damaged and its header was corrected.
  public var stored: Content?
  /// Whether the stored bytes differed from the received ones when the server finished the sidecar.
  public var isDamaged = false
  /// The header as it was received, if the stored one differs.
  public var receivedHead: [UInt8] = []
  /// The number of missing bytes.
  public var missing: UInt64 = 0
  /// The gaps, in the order of their offsets.
  public var gaps: [Gap] = []
  /// The steps of the sender's clock, in the order of their offsets.
  public var clockSteps: [ClockStep] = []
  /// The device from which the sender recorded.
  public var device: String?
  /// The sample format in ALSA's notation, such as `S16_LE`.
  public var format: String?
  /// Frames per second.
  public var rate: Int?
  /// Samples per frame.
  public var channels: Int?
  /// The sender's software and its version.
  public var software: String?
  /// The server's software and its version.
  public var server: String?

  /// Creates a sidecar with only the file's name.
  public init(file: String) { self.file = file }

  /// Whether the server has read the recording and added the digests.
  package var isFinished: Bool { stored?.sha256 != nil || isDamaged }

  /// Adds the digests of a recording that the server has read.
  ///
  /// If the received bytes had another digest, the recording is damaged. The sidecar then keeps that digest, so that
  /// each comparison with the file fails until the file is restored.
  package mutating func finish(_ digests: (received: Digest, stored: Digest)) {
    let arrived = received?.sha256 ?? digests.received.hexadecimal
    isDamaged = arrived != digests.received.hexadecimal
    received?.sha256 = arrived
    if !isDamaged {
      stored?.sha256 = digests.stored.hexadecimal
    } else if receivedHead.isEmpty {
      stored?.sha256 = arrived
    }
  }

  /// The name of the sidecar for a file name. Nil for a name without an extension.
  public static func name(for file: String) -> String? {
    guard let dot = file.lastIndex(of: "."), dot != file.startIndex else { return nil }
    return file[..<dot] + fileExtension
  }

  // MARK: Writing

  /// The sidecar as JSON, with one member per line.
  public var text: String {
    var members: [(key: String, value: String)] = []
    func add(_ key: String, _ text: String?) { if let text { members.append((key, JSONLine.quote(text))) } }
    func add(_ key: String, _ number: (some FixedWidthInteger)?) {
      if let number { members.append((key, String(number))) }
    }
    func add(_ key: String, _ content: Content?) {
      guard let content else { return }
      let digest = content.sha256.map { ", \"sha-256\": \(JSONLine.quote($0))" } ?? ""
      members.append((key, "{\"bytes\": \(content.bytes)\(digest)}"))
    }
    func add(_ key: String, _ objects: [String]) {
      members.append((key, objects.isEmpty ? "[]" : "[\n    " + objects.joined(separator: ",\n    ") + "\n  ]"))
    }
    add("version", Self.version)
    add("file", file)
    add("stream", stream)
    add("part", part)
    add("offset", offset)
    add("state", state.rawValue)
    members.append(("live", isLive ? "true" : "false"))
    add("started", started)
    if started != nil { add("started_by", startedBySender ? "sender" : "server") }
    add("ended", ended)
    if let isClockSynchronized { members.append(("clock_synchronized", isClockSynchronized ? "true" : "false")) }
    add("first_seen", firstSeen)
    add("link", link)
    add("received", received)
    add("stored", stored)
    if isDamaged { members.append(("damaged", "true")) }
    if !receivedHead.isEmpty { add("received_head", Hexadecimal.text(receivedHead)) }
    add("missing", missing)
    add(
      "gaps",
      gaps.map { "{\"offset\": \($0.offset), \"length\": \($0.length), \"cause\": \(JSONLine.quote($0.cause))}" })
    add("clock_steps", clockSteps.map { "{\"offset\": \($0.offset), \"milliseconds\": \($0.milliseconds)}" })
    add("device", device)
    add("format", format)
    add("rate", rate)
    add("channels", channels)
    add("software", software)
    add("server", server)
    return "{\n" + members.map { "  \"\($0.key)\": \($0.value)" }.joined(separator: ",\n") + "\n}\n"
  }

  // MARK: Reading

  /// Reads a sidecar. A missing member keeps its default, and an unknown member is ignored.
  ///
  /// - Throws: ``SidecarError`` if the text is not JSON, not an object, of a later version, or if a member has the
  ///   wrong type.
  public init(parsing text: [UInt8]) throws(SidecarError) {
    let json = try SidecarJSON(text)
    guard let version = try json.integer("version"), version == Self.version else {
      throw SidecarError(problem: "\"version\" is not \(Self.version)")
    }
    guard let file = try json.text("file"), !file.isEmpty, !file.utf8.contains(UInt8(ascii: "/")), file.first != "."
    else { throw SidecarError(problem: "\"file\" is not the name of a file in the same directory") }
    self.init(file: file)
    stream = try json.text("stream")
    part = Int(clamping: try json.count("part") ?? 1)
    offset = try json.count("offset") ?? 0
    if let text = try json.text("state") {
      guard let state = State(rawValue: text) else { throw SidecarError(problem: "\"state\" is unknown") }
      self.state = state
    }
    isLive = try json.flag("live") ?? true
    started = try json.text("started")
    startedBySender = try json.text("started_by") == "sender"
    ended = try json.text("ended")
    isClockSynchronized = try json.flag("clock_synchronized")
    firstSeen = try json.text("first_seen")
    link = try json.text("link")
    func content(_ key: String) throws(SidecarError) -> Content? {
      guard let object = try json.object(key) else { return nil }
      guard let bytes = try object.count("bytes") else { throw SidecarError(problem: "\"\(key)\" has no \"bytes\"") }
      return Content(bytes: bytes, sha256: try object.text("sha-256"))
    }
    received = try content("received")
    stored = try content("stored")
    isDamaged = try json.flag("damaged") ?? false
    if let text = try json.text("received_head") {
      guard let head = Hexadecimal.bytes(text.utf8) else {
        throw SidecarError(problem: "\"received_head\" is not hexadecimal")
      }
      receivedHead = head
    }
    missing = try json.count("missing") ?? 0
    for gap in try json.objects("gaps") {
      gaps.append(
        Gap(
          offset: try gap.count("offset") ?? 0, length: try gap.count("length") ?? 0, cause: try gap.text("cause") ?? ""
        ))
    }
    for step in try json.objects("clock_steps") {
      clockSteps.append(
        ClockStep(offset: try step.count("offset") ?? 0, milliseconds: try step.integer("milliseconds") ?? 0))
    }
    device = try json.text("device")
    format = try json.text("format")
    rate = try json.count("rate").map { Int(clamping: $0) }
    channels = try json.count("channels").map { Int(clamping: $0) }
    software = try json.text("software")
    server = try json.text("server")
  }
}

/// The reason why a sidecar cannot be read.
public struct SidecarError: Error, Equatable, Sendable, CustomStringConvertible {
  /// The problem, in words.
  public var problem: String
  /// The problem, in words.
  public var description: String { problem }
}
