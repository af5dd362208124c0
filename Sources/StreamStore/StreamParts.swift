// The recordings of a stream that has several. Each such stream has a log, because operators move recordings away.

internal import DiskFiles
internal import EventLoops
internal import Glibc
internal import HTTPMessages
internal import StreamServing

/// Who has written to a growing recording besides the uploads that the next server finds.
enum OtherWriters: Equatable, Sendable {
  case nobody
  /// Uploads of one owner that were cancelled or refused.
  case discarded(UploadOwner)
  case anyone

  /// Whether only uploads of this owner have written to the recording.
  func areOnly(_ owner: UploadOwner) -> Bool {
    switch self {
    case .nobody: true
    case .discarded(let other): other == owner
    case .anyone: false
    }
  }

  func joined(by others: OtherWriters) -> OtherWriters {
    if others == .nobody { return self }
    return self == .nobody || self == others ? others : .anyone
  }
}

/// One recording of a stream, as described in the stream's log.
struct RecordingPart: Equatable, Sendable {
  /// The largest number that is read from the name of a file.
  static let largestNumber = 1_000_000

  /// The number of the part, from 1.
  var number = 1
  /// The name of its file once it no longer grows.
  var file: String
  var streamID: String?
  /// The stream offset of the first byte after the copied header.
  var start: UInt64 = 0
  /// The stream offset of the first byte that was received for it. Bytes before that were copied from the previous
  /// part.
  var firstReceived: UInt64 = 0
  /// How many bytes at the beginning of the file are a header that no client has sent.
  var headerLength: UInt64 = 0
  /// The stream offset at which the server closed it; nil if it did not.
  var end: UInt64?
  /// How many bytes it received, which a closed recording counts against the quotas.
  var count: UInt64 = 0
  var owner: UploadOwner?
  /// The beginning of the next part, if that needs its own header.
  var head: [UInt8] = []
  /// Whether it ended because it reached its limit. The next part, and uploads, continue where it ends.
  var isSplit = false
  /// Who else has written to it, or may have. It is removed only with an upload of the same owner.
  var otherWriters = OtherWriters.nobody
  /// Whether it is being removed, with the recordings into which the stream was divided before.
  var isDiscarded = false
  /// How many bytes of the stream were missing before this part, in holes of the previous parts and between them. The
  /// bytes between the last of them and this one are not included.
  var missingBefore: UInt64 = 0
  /// What is known of the previous parts, if the last of them was split; nil otherwise.
  var series: Series?

  /// Parts that follow one another without a gap.
  struct Series: Equatable, Sendable {
    /// The stream offset at which the first of them starts.
    var start: UInt64
    /// The stream offset after the last hole; 0 if there is none.
    var holesEnd: UInt64
  }

  /// The stream offset from which on uploads are continued.
  var seriesStart: UInt64 { series?.start ?? start }
  /// The extension of its file name, with the dot; empty if there is none.
  var finalExtension: String { StreamName.parts(ofFile: file[...]).map { String($0.finalExtension) } ?? "" }

  /// The same recording, which grows again.
  var reopened: RecordingPart {
    var part = self
    (part.end, part.count, part.isSplit, part.head) = (nil, 0, false, [])
    return part
  }

  init(file: String) { self.file = file }

  /// A structured dictionary; nil if a value cannot be represented in one.
  var text: String? {
    var fields = StructuredDictionary()
    func set(_ key: String, _ value: BareItem) { fields.set(key, .item(Item(value))) }
    func set(_ key: String, _ number: UInt64) { set(key, .integer(Int64(clamping: number))) }
    func set(_ owner: UploadOwner, client: String, credential key: String) {
      set(client, .displayString(owner.address))
      if let credential = owner.credential { set(key, .bytes(credential)) }
    }
    set("part", UInt64(number))
    set("file", .string(file))
    if let streamID { set("stream", .string(streamID)) }
    set("start", start)
    set("first", firstReceived)
    set("header", headerLength)
    // A request may begin at the largest integer, and its bytes follow. The recording must be closed nevertheless.
    if let end { set("end", min(end, UInt64(BareItem.largestInteger))) }
    set("count", count)
    if let owner { set(owner, client: "client", credential: "credential") }
    if !head.isEmpty { set("head", .bytes(head)) }
    if isSplit { set("split", .boolean(true)) }
    switch otherWriters {
    case .nobody: break
    case .discarded(let owner): set(owner, client: "discarder", credential: "discarder-credential")
    case .anyone: set("shared", .boolean(true))
    }
    if isDiscarded { set("discarded", .boolean(true)) }
    if missingBefore > 0 || series != nil { set("missing", missingBefore) }
    if let series {
      set("series", series.start)
      set("holes", series.holesEnd)
    }
    return fields.serialized
  }

  init?(parsing text: String) {
    guard let fields = StructuredDictionary(parsing: text) else { return nil }
    func value(_ key: String) -> BareItem? { if case .item(let item)? = fields[key] { item.value } else { nil } }
    func count(_ key: String) -> UInt64? {
      if case .integer(let number)? = value(key), number >= 0 { UInt64(number) } else { nil }
    }
    func client(_ key: String, credential: String) -> UploadOwner? {
      guard case .displayString(let address)? = value(key) else { return nil }
      if case .bytes(let bytes)? = value(credential) { return UploadOwner(credential: bytes, address: address) }
      return UploadOwner(address: address)
    }
    let series = count("series").map { Series(start: $0, holesEnd: count("holes") ?? 0) }
    guard let number = count("part"), (1...UInt64(Self.largestNumber)).contains(number),
      case .string(let file)? = value("file"),
      let start = count("start"), let first = count("first"), let header = count("header"), let count = count("count")
    else { return nil }
    self.init(file: file)
    self.number = Int(number)
    (self.start, firstReceived, headerLength, self.count) = (start, first, header, count)
    if case .integer(let end)? = value("end"), end >= 0 { self.end = UInt64(end) }
    if case .string(let id)? = value("stream") { streamID = id }
    owner = client("client", credential: "credential")
    if case .bytes(let head)? = value("head") { self.head = head }
    if case .boolean(true)? = value("split") { isSplit = true }
    if case .boolean(true)? = value("shared") {
      otherWriters = .anyone
    } else if let owner = client("discarder", credential: "discarder-credential") {
      otherWriters = .discarded(owner)
    }
    if case .boolean(true)? = value("discarded") { isDiscarded = true }
    if case .integer(let missing)? = value("missing"), missing >= 0 { missingBefore = UInt64(missing) }
    self.series = series
  }
}

extension StreamName {
  /// The files of the stream's recording with this number, from 1.
  func recording(_ number: Int) -> StreamName {
    var name = self
    name.part = number
    return name
  }

  /// The files of the last recording in the log of the stream, or of the first one if there is no log.
  func lastRecording(_ log: [RecordingPart]) -> StreamName { recording(log.last?.number ?? 1) }
}

extension [RecordingPart] {
  /// The last line about each recording, by its number. It has the recording's current state.
  var current: [Int: RecordingPart] {
    var current: [Int: RecordingPart] = [:]
    for part in self { current[part.number] = part }
    return current
  }

  /// The stream offset at which the recordings end that were closed before the one with that number; 0 if there are
  /// none.
  func closedEnd(before number: Int) -> UInt64 {
    closedParts.values.filter { $0.number < number }.compactMap(\.end).max() ?? 0
  }

  /// The stream offsets in `range` that none of these recordings contained when it was closed.
  func notReceived(in range: Range<UInt64>) -> [Range<UInt64>] {
    var held: [Range<UInt64>] = []
    // A close that failed has left a line that a later one corrects.
    for part in current.values {
      if let end = part.end, part.start < end { held.append(part.start..<end) }
    }
    return [range].subtracting(held)
  }
}

/// The directory `.parts` of a store. It has a file for each stream with a closed recording, with a line for each
/// event. Streams that end by themselves have none.
struct StreamParts: Sendable {
  /// Begins with a dot, unlike the names of streams.
  static let directoryName = ".parts"
  private let parent: Int32
  private let files: OpenFiles

  /// - Parameter parent: the store's directory, which stays open for longer than this object.
  init(in parent: Int32, _ files: OpenFiles) {
    self.parent = parent
    self.files = files
  }

  /// The path relative to the store's directory.
  static func path(_ base: String) -> String { "\(directoryName)/\(base)" }

  /// All lines about a stream, the newest last. A line that a crash has cut short is skipped.
  func lines(of base: String) throws(SystemError) -> [RecordingPart] {
    let path = Self.path(base)
    let text: [UInt8]
    do throws(SystemError) {
      text = try files.contents(of: path, in: parent, limit: RegularFile.maximumLogSize)
    } catch {
      if error.isMissing { return [] }
      throw error
    }
    return String(decoding: text, as: UTF8.self).split(separator: "\n").compactMap {
      RecordingPart(parsing: String($0))
    }
  }

  /// Adds a line for each of `parts`, all of them or none. Returns how long the log was before.
  @discardableResult
  func append(_ parts: RecordingPart..., to base: String) throws(SystemError) -> Int {
    let path = Self.path(base)
    let text = parts.compactMap(\.text).joined(separator: "\n")
    guard parts.allSatisfy({ $0.text != nil }) else { throw SystemError(operation: "write \(path)", code: EFBIG) }
    let descriptor = try files.openRegular(path) {
      var attempts = 0
      while true {
        attempts += 1
        let isThere = mkdirat(parent, Self.directoryName, 0o700) == 0 || errno == EEXIST
        let reason = errno
        let descriptor = openat(parent, path, O_WRONLY | O_APPEND | O_CREAT | RegularFile.flags, 0o600)
        // Another loop may have removed the empty directory in between: ``forget(_:)``. A symbolic link that leads
        // nowhere gives the same error each time.
        if descriptor < 0, errno == ENOENT, isThere, attempts < 100 { continue }
        if descriptor < 0, errno == ENOENT, !isThere { errno = reason }
        return descriptor
      }
    }
    defer { close(descriptor) }
    let length = try retryingInterrupts("lseek \(path)") { lseek(descriptor, 0, SEEK_END) }
    do throws(SystemError) {
      // A line feed in front as well: half a line of a server that died must not spoil this one.
      try writeAll(Array("\n\(text)\n".utf8), to: descriptor, "write \(path)")
    } catch {
      cut(base, to: length)
      throw error
    }
    return length
  }

  /// Takes back lines that were added.
  ///
  /// - Parameter length: of the log before. An empty one is removed.
  func cut(_ base: String, to length: Int) {
    guard length > 0 else { return (try? forget(base)) ?? () }
    guard let descriptor = try? RegularFile.open(Self.path(base), in: parent, O_WRONLY) else { return }
    ftruncate(descriptor, off_t(length))
    close(descriptor)
  }

  /// Replaces the log of a stream, as a whole or not at all.
  func rewrite(_ parts: [RecordingPart], of base: String, isSynced: Bool) throws(SystemError) {
    let path = Self.path(base)
    // The file is not in the directory of the logs, where every file is a log.
    let new = ".\(base).parts~"
    let lines = parts.compactMap(\.text)
    guard lines.count == parts.count else { throw SystemError(operation: "write \(path)", code: EFBIG) }
    let text = lines.joined(separator: "\n") + "\n"
    let descriptor = try files.openRegular(new, in: parent, O_WRONLY | O_TRUNC | O_CREAT)
    defer { close(descriptor) }
    do throws(SystemError) {
      try writeAll(Array(text.utf8), to: descriptor, "write \(new)")
      if isSynced { try retryingInterrupts("fdatasync \(new)") { fdatasync(descriptor) } }
      try retryingInterrupts("rename \(new)") { renameat(parent, new, parent, path) }
    } catch {
      unlinkat(parent, new, 0)
      throw error
    }
  }

  /// When the log of a stream was last written, in seconds of the wall clock; nil if it has none.
  func time(of base: String) -> Int64? {
    var status = stat()
    guard fstatat(parent, Self.path(base), &status, AT_SYMLINK_NOFOLLOW) == 0 else { return nil }
    return Int64(status.st_mtim.tv_sec)
  }

  /// The streams that have a log; nil if there are none.
  func names() throws(SystemError) -> DirectoryNames? { try .ifThere(Self.directoryName, in: parent) }

  /// Removes the log of a stream, if there is one.
  func forget(_ base: String) throws(SystemError) {
    let path = Self.path(base)
    do throws(SystemError) {
      try retryingInterrupts("remove \(path)") { unlinkat(parent, path, 0) }
    } catch {
      if error.isMissing { return }
      throw error
    }
    // Only the last one can.
    unlinkat(parent, Self.directoryName, AT_REMOVEDIR)
  }
}
