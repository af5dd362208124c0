// Tests what `RecordingRetention` removes and what it never removes: random directories against a simple model, each
// state in which a killed server can leave a removal, and a full disk.

import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import Recordings
import Synchronization
import Testing

@testable import DiskFiles
@testable import ResumableServing
@testable import StreamServing
@testable import StreamStore
@testable import UploadServer

@Suite("Retention of recordings")
struct RetentionTests {
  // MARK: Which recordings

  @Test("free space that is no number, or negative, requests nothing, and a name without a number is a first part")
  func oddValues() {
    for percent in [Double.nan, -Double.infinity, -1, 0] {
      #expect(RecordingRetention.FreeSpace.percent(percent).bytes(of: 1000) == 0, "\(percent)")
    }
    #expect(RecordingRetention.FreeSpace.percent(.infinity).bytes(of: 1000) == 0)
    for (name, part) in [("s", 1), ("s~", 1), ("s~x", 1), ("s~2", 2), ("s~1~2", 1)] {
      let recording = RetentionLedger.Recording(fileBase: name, owner: nil, since: nil, size: 0, room: 0)
      #expect(recording.place.stream == "s" && recording.place.part == part, "\(name)")
    }
  }

  @Test(
    "the oldest are removed first, exactly as the rules require, and no owner loses one because of another's",
    arguments: Seed.several(20))
  func ledger(_ seed: Seed) throws {
    var random = seed.generator
    for _ in 0..<200 {
      let recordings = (0..<Int.random(in: 0...12, using: &random)).map { number in
        let size = random.chance(5) ? .max : UInt64.random(in: 0...50, using: &random)
        return RetentionLedger.Recording(
          // The parts of a stream come in numerical order, not by name: ~10 follows ~9.
          fileBase: number % 2 == 0 ? "r\(number)" : "s~\(number + 2)",
          owner: [nil, [1], [2]].randomElement(using: &random)!,  // not empty
          since: random.chance(90) ? Int64.random(in: 0...(random.chance(50) ? 3 : 100_000), using: &random) : nil,
          size: size, room: random.chance(30) ? UInt64.random(in: 0...size, using: &random) : size)
      }
      var rules = RecordingRetention()
      if random.chance(50) { rules.longestAge = .seconds(Int.random(in: 0...100, using: &random)) }
      if random.chance(50) { rules.largestSize = UInt64.random(in: 0...200, using: &random) }
      if random.chance(50) { rules.leastSize = UInt64.random(in: 0...100, using: &random) }
      let now = random.chance(5) ? [Int64.min, .max, 0][Int.random(in: 0..<3, using: &random)] : 100_000
      let lacking = random.chance(50) ? UInt64.random(in: 0...150, using: &random) : 0
      var ledger = RetentionLedger()
      for recording in recordings.shuffled(using: &random) { ledger.insert(recording) }
      let removals = ledger.removals(rules, at: now, lacking: lacking)
      let context: Comment = "\(seed) \(rules) now \(now) lacking \(lacking): \(recordings)"
      Self.check(removals, recordings, rules, now, lacking, context)
      var other = RetentionLedger()
      for recording in recordings { other.insert(recording) }
      #expect(other.removals(rules, at: now, lacking: lacking) == removals, context)
    }
  }

  private static func sum(_ recordings: [RetentionLedger.Recording]) -> UInt128 {
    recordings.reduce(0) { $0 + UInt128($1.size) }
  }

  private static func check(
    _ removals: [RetentionLedger.Removal], _ recordings: [RetentionLedger.Recording], _ rules: RecordingRetention,
    _ now: Int64, _ lacking: UInt64, _ context: Comment
  ) {
    var left = recordings
    let least = UInt128(rules.leastSize)
    func queue(_ owner: [UInt8]?) -> [RetentionLedger.Recording] {
      func key(_ recording: RetentionLedger.Recording) -> (Int64, Int, String) {
        let isPart = recording.fileBase.hasPrefix("s~")
        return (recording.since ?? .max, isPart ? Int(recording.fileBase.dropFirst(2)) ?? 0 : 0, recording.fileBase)
      }
      return left.filter { $0.owner == owner }.sorted { key($0) < key($1) }
    }
    /// The recording that may be removed next, and the total size of its owner's recordings.
    func next(_ owner: [UInt8]?) -> (recording: RetentionLedger.Recording, size: UInt128)? {
      let queue = queue(owner)
      guard let first = queue.first, first.since != nil, sum(Array(queue.dropFirst())) >= least else { return nil }
      return (first, sum(queue))
    }
    func isOld(_ recording: RetentionLedger.Recording) -> Bool {
      guard let age = rules.longestAge, let since = recording.since else { return false }
      return Double(now) - Double(since) > age.seconds * 1000
    }
    func isTooMuch(_ size: UInt128) -> Bool { rules.largestSize.map { size > $0 } ?? false }
    let owners: [[UInt8]?] = [nil, [1], [2]]
    var freed: UInt128 = 0
    for removal in removals {
      guard let (expected, size) = next(removal.recording.owner) else {
        Issue.record("\(removal) may not go: \(context)")
        return
      }
      #expect(expected == removal.recording, context)
      switch removal.cause {
      case .age: #expect(isOld(removal.recording), context)
      case .size: #expect(!isOld(removal.recording) && isTooMuch(size), context)
      case .freeSpace:
        #expect(freed < lacking, context)
        #expect(owners.compactMap { next($0)?.size }.allSatisfy { $0 <= size }, context)
      }
      freed += UInt128(removal.recording.room)
      left.removeAll { $0 == removal.recording }
    }
    for (recording, size) in owners.compactMap({ next($0) }) {
      #expect(!isOld(recording) && !isTooMuch(size) && freed >= lacking, context)
    }
  }

  // MARK: A directory

  /// A recording in a directory, with everything that determines whether it is removed.
  private struct Stored: CustomStringConvertible {
    enum Oddity: CaseIterable {
      case none, noSidecar, noDigest, otherLength, growing, pending, otherFile, link, laterFormat
    }

    var base: String
    var fileExtension: String
    var owner: UInt8?
    /// The age at the time of the test, in seconds.
    var age: Int64
    var isTrusted: Bool?
    var seenAge: Int64?
    var size: Int
    var oddity = Oddity.none
    var hasGaps: Bool
    /// Whether another program has a file at the name of its gaps.
    var hasStranger: Bool

    var description: String {
      "\(base)\(fileExtension) of \(owner ?? 0), \(age) s, trusted \(isTrusted.map { "\($0)" } ?? "-"), seen "
        + "\(seenAge.map { "\($0)" } ?? "-"), \(size) bytes, \(oddity)"
    }

    /// Sorts the parts of a stream in order: r1~2 comes before r12.
    var place: (String, Int) {
      let pieces = base.split(separator: "~")
      return (String(pieces[0]), pieces.count > 1 ? 2 : 1)
    }

    /// The age in seconds according to a trusted clock; nil if no clock could be trusted.
    var keptFor: Int64? { seenAge ?? (isTrusted == true && age >= 0 ? age : nil) }

    /// - Parameter hole: the size of the hole after its own bytes.
    func write(_ directory: TemporaryDirectory, hole: Int = 0) throws {
      let (path, bytes) = (directory.path, [UInt8](repeating: 7, count: size))
      if oddity == .link {
        symlink("/etc/hostname", "\(path)/\(base)\(fileExtension)")
      } else {
        try directory.write(base + fileExtension, bytes)
        if hole > 0 { truncate("\(path)/\(base)\(fileExtension)", size + hole) }
      }
      if hasGaps { try directory.write(base + ".gaps", Array("{\"offset\":0,\"length\":1,\"cause\":\"x\"}\n".utf8)) }
      if hasStranger { try directory.write(base + ".gaps", Array("stranger".utf8)) }
      if oddity == .growing { try directory.write(base + ".part", bytes) }
      if let owner {
        mkdir(path + "/.owners", 0o700)
        try directory.write(".owners/\(base.split(separator: "~")[0])", [UInt8](repeating: owner, count: 32))
      }
      var sidecar = RecordingSidecar(file: (oddity == .otherFile ? "other" : base) + fileExtension)
      let time = RetentionTests.time
      sidecar.ended = WallClock(seconds: time - age).iso8601
      sidecar.isClockSynchronized = isTrusted
      sidecar.firstSeen = seenAge.map { WallClock(seconds: time - $0).iso8601 }
      let digest = oddity == .noDigest ? nil : String(repeating: "0", count: 64)
      sidecar.stored = .init(bytes: UInt64(size + hole + (oddity == .otherLength ? 1 : 0)), sha256: digest)
      var text = sidecar.text
      if oddity == .laterFormat { text.replace("\"version\": 1", with: "\"version\": 2") }
      if oddity == .pending {
        // The recording is still being finished when the server examines it.
        sidecar.stored = .init(bytes: UInt64(size + hole) + 1)
        try directory.write(".\(base).sidecar", Array(sidecar.text.utf8))
      }
      if oddity != .noSidecar { try directory.write(base + ".sidecar", Array(text.utf8)) }
    }

    init(_ number: Int, _ random: inout SplitMix64) {
      owner = [nil, 1, 2][number / 2 % 3]
      // Without its first part and its log, a stream has lost its owner.
      base = "r\(number)" + (owner == nil && number % 2 == 1 ? "~2" : "")
      fileExtension = [".wav", ".txt", ".opus", ".bin"].randomElement(using: &random)!  // not empty
      age = Int64.random(in: -50...1000, using: &random)
      isTrusted = [true, true, true, false, nil].randomElement(using: &random)!  // not empty
      seenAge = random.chance(20) ? Int64.random(in: 0...1000, using: &random) : nil
      size = Int.random(in: 0...1000, using: &random)
      if random.chance(30) { oddity = Oddity.allCases.randomElement(using: &random)! }  // not empty
      hasGaps = random.chance(50)
      hasStranger = !hasGaps && random.chance(30)
    }
  }

  /// 2026-11-22T00:00:00Z
  fileprivate static let time: Int64 = 1_795_305_600

  /// The recordings that the rules remove, one at a time.
  private static func removed(_ all: [Stored], _ rules: RecordingRetention, byOwner: Bool = true) -> Set<String> {
    var left = all.filter { $0.oddity == .none }
    var removed: Set<String> = []
    while true {
      let next = left.first { candidate in
        let own = left.filter { !byOwner || $0.owner == candidate.owner }
        let oldest = own.max { a, b in
          let (left, right) = (a.keptFor ?? 0, b.keptFor ?? 0)
          return left != right ? left < right : a.place > b.place
        }
        let size = own.reduce(0) { $0 + UInt64($1.size) }
        guard oldest?.base == candidate.base, size - UInt64(candidate.size) >= rules.leastSize else { return false }
        return rules.longestAge.map { Double(candidate.keptFor ?? 0) > $0.seconds } ?? false
          || rules.largestSize.map { size > $0 } ?? false
      }
      guard let next else { return removed }
      removed.insert(next.base)
      left.removeAll { $0.base == next.base }
    }
  }

  /// Starts a server, and returns after it has examined its recordings at least once.
  private static func served(
    _ directory: TemporaryDirectory, _ rules: RecordingRetention, requiresTokens: Bool = true,
    isSynchronized: Bool = true, looks: Int = 3,
    _ check: (TestServer) throws -> Void = { _ in }
  ) throws {
    let asked = Counter()
    let other = TemporaryDirectory()
    try other.write("tokens", [])
    let test = try TestServer(in: directory) {
      if requiresTokens { $0.tokenFile = other.path + "/tokens" }
      $0.retention = rules
      $0.maintenancePause = .milliseconds(5)
      $0.retentionClock = RetentionState.Clock(
        now: { WallClock(seconds: Self.time) },
        isSynchronized: { () -> Bool? in
          asked.add()
          return isSynchronized
        })
    }
    // The server does not examine recordings while it removes some.
    try waitUntil("the server has looked") { asked.value >= looks }
    try check(test)
    test.stop()
  }

  @Test("recordings that others remove are forgotten, although nothing is to be removed", arguments: Seed.several(3))
  func vanished(_ seed: Seed) throws {
    var random = seed.generator
    let directory = TemporaryDirectory()
    let recordings = (0..<12).map { number in
      var recording = Stored(number, &random)
      recording.oddity = .none
      return recording
    }
    for recording in recordings { try recording.write(directory) }
    let time = Self.time
    let retention = RetentionState(
      RecordingRetention(freeSpace: .bytes(1)), .init(now: { WallClock(seconds: time) }, isSynchronized: { true }))
    let store = try FileStore(in: directory, hasSidecars: true, retention: retention)
    func known() throws -> [RetentionLedger.Recording] {
      let answers = try EventLog<[RetentionLedger.Recording]>()
      store.worker.executeSlice { answers.append(Array(retention.ledger.recordings.values)) }
      return try answers.wait("the ledger") { $0.first }
    }
    store.beginRetention { _ in }
    // Until all have a time, the store rewrites sidecars, and one that is removed meanwhile would return.
    try waitUntil("all are listed") {
      let known = try known()
      return known.count == 12 && known.allSatisfy { $0.since != nil }
    }
    var left = Set(recordings.map(\.base))
    for recording in recordings where random.chance(60) {
      left.remove(recording.base)
      let endings = [recording.fileExtension, ".sidecar"]
      for ending in random.chance(50) ? endings : [endings[Int.random(in: 0...1, using: &random)]] {
        try #require(unlink("\(directory.path)/\(recording.base)\(ending)") == 0)
      }
    }
    for _ in 0..<FileStore.idleLooks { store.applyRetention() }
    try waitUntil("the others are forgotten") { try Set(known().map(\.fileBase)) == left }
  }

  @Test(
    "a server removes the recordings that the rules select, with gaps and sidecar, and nothing else",
    arguments: Seed.several(25))
  func product(_ seed: Seed) throws {
    var random = seed.generator
    let directory = TemporaryDirectory()
    let all = (0..<Int.random(in: 1...14, using: &random)).map { Stored($0, &random) }
    for stored in all { try stored.write(directory) }
    var rules = RecordingRetention(leastSize: random.chance(40) ? UInt64.random(in: 0...2000, using: &random) : 0)
    if random.chance(60) { rules.longestAge = .seconds(Int.random(in: 0...1000, using: &random)) }
    if random.chance(60) { rules.largestSize = UInt64.random(in: 0...3000, using: &random) }
    let (isSynchronized, requiresTokens) = (random.chance(80), random.chance(70))
    let before = Set(directory.allNames)
    let expected = Self.removed(all, rules, byOwner: requiresTokens)
    let context: Comment = "\(seed) \(rules) synchronized \(isSynchronized) tokens \(requiresTokens): \(all)"
    try Self.served(directory, rules, requiresTokens: requiresTokens, isSynchronized: isSynchronized) { test in
      let hasUndated = all.contains { $0.oddity == .none && $0.keptFor == nil }
      // Others than retention ask for the clock, too, so it may not have looked yet.
      if !isSynchronized, !expected.isEmpty || rules.longestAge != nil && hasUndated {
        try waitUntil("it warns") { test.events.all.contains { $0.reason?.contains("clock") == true } }
      }
      let removed = test.events.all.filter { $0.kind == .removed }
      let warnings = test.events.all.filter { $0.kind == .warning && $0.reason?.contains("clock") == true }
      if isSynchronized {
        #expect(Set(removed.compactMap { $0.file?.split(separator: ".").first.map(String.init) }) == expected, context)
        #expect(removed.count == expected.count && warnings.isEmpty, context)
        for event in removed {
          let stored = try #require(all.first { $0.base + $0.fileExtension == event.file })
          #expect(event.bytes == UInt64(stored.size) && event.reason != nil, context)
        }
      } else {
        #expect(removed.isEmpty && warnings.count <= 1, context)
        // Their age is unknown.
        if rules.longestAge != nil, hasUndated { #expect(warnings.count == 1, context) }
        // The server warns about recordings that it would remove if the clock were right.
        if !expected.isEmpty { #expect(warnings.count == 1, context) }
      }
    }
    var left = before
    for stored in all where isSynchronized && expected.contains(stored.base) {
      for name in [stored.base + stored.fileExtension, stored.base + ".sidecar"] { left.remove(name) }
      if !stored.hasStranger { left.remove(stored.base + ".gaps") }
    }
    #expect(Set(directory.allNames).subtracting([".removing"]) == left, context)
    #expect(!directory.exists(".removing") || directory.allNames(in: ".removing").isEmpty, context)
    guard isSynchronized else { return }
    // From now on each server knows their age.
    for stored in all where stored.oddity == .none && stored.keptFor == nil && !expected.contains(stored.base) {
      let sidecar = try RecordingSidecar(parsing: try directory.contents(stored.base + ".sidecar"))
      #expect(sidecar.firstSeen == "2026-11-22T00:00:00.000Z", context)
    }
    try Self.served(directory, rules, requiresTokens: requiresTokens) { test in
      #expect(test.events.all.filter { $0.kind == .removed } == [], context)
    }
  }

  @Test("a recording of a running stream is removed only when it is complete, and its stream continues")
  func live() throws {
    let directory = TemporaryDirectory()
    let head = StreamedHead.all[0]
    let (seconds, asked) = (Counter(), Counter())
    let test = try TestServer(in: directory) {
      $0.retention = RecordingRetention(longestAge: .seconds(100))
      $0.maintenancePause = .milliseconds(5)
      $0.split = RecordingSplit(size: 1)
      $0.split?.leastLength = 400
      $0.retentionClock = RetentionState.Clock(
        now: { WallClock(seconds: Self.time + Int64(seconds.value)) },
        isSynchronized: { () -> Bool? in
          asked.add()
          return true
        })
    }
    let stream = head.bytes + [UInt8](repeating: 3, count: 4 * 1000)
    let location = try test.create("/k.wav", ["Stream-ID: a", "Content-Type: audio/wav"])
    try test.append(location, at: 0, Array(stream[..<1000]))
    try waitUntil("two are finished") { directory.exists("k-a.sidecar") && directory.exists("k-a~2.sidecar") }
    #expect(directory.names.contains("k"), "links")
    let looked = asked.value
    try waitUntil("the server looks again") { asked.value > looked + 2 }
    #expect(!test.events.all.contains { $0.kind == .removed })
    for _ in 0..<101 { seconds.add() }
    _ = try test.events.wait(.removed, count: 2)
    #expect(test.events.all.filter { $0.kind == .removed }.map(\.file) == ["k-a.wav", "k-a~2.wav"])
    try test.append(location, at: 1000, completes: true, Array(stream[1000...]))
    let ended = try test.events.wait(.ended)
    #expect(ended.bytes == UInt64(stream.count))
    for _ in 0..<101 { seconds.add() }
    try waitUntil("all are removed, with their links") { directory.names.allSatisfy { $0.hasPrefix(".") } }
  }

  // MARK: Killed servers

  /// The steps of a removal that a server may have done when it was killed.
  private static let steps: [[String]] = [
    ["mkdir"], ["move", "k-a.sidecar"], ["move", "k-a.gaps"], ["move", "k-a.txt"], ["unlink", "k-a.sidecar"],
    ["unlink", "k-a.gaps"], ["unlink", "k-a.txt"],
  ]

  /// The same on a disk that has no room for a directory.
  private static let stepsWithoutRoom = [
    ["move", "k-a.sidecar", ".k-a.sidecar"], ["move", "k-a.gaps", ".k-a.gaps"], ["unlink", "k-a.txt"],
    ["unlink", ".k-a.gaps"], ["unlink", ".k-a.sidecar"],
  ]

  /// A removal, and the number of steps after which the server was killed.
  struct KilledRemoval: CustomTestStringConvertible, Sendable {
    var done: Int
    var hasRoom: Bool
    var testDescription: String { "\(done) steps\(hasRoom ? "" : ", without room")" }

    static let all =
      (0...steps.count).map { Self(done: $0, hasRoom: true) }
      + (0...stepsWithoutRoom.count).map { Self(done: $0, hasRoom: false) }
  }

  @Test(
    "a removal that a killed server has begun is undone while the recording is in its place, and completed otherwise",
    arguments: KilledRemoval.all, [false, true])
  func halfRemoved(_ removal: KilledRemoval, _ isReplaced: Bool) throws {
    let directory = TemporaryDirectory()
    _ = try VerificationTests.Recording.withHole.store(in: directory)
    let removing = removal.hasRoom ? ".removing/" : ""
    for step in (removal.hasRoom ? Self.steps : Self.stepsWithoutRoom).prefix(removal.done) {
      switch step[0] {
      case "mkdir": mkdir("\(directory.path)/\(removing)", 0o700)
      case "move":
        let name = step.last ?? ""
        #expect(rename("\(directory.path)/\(step[1])", "\(directory.path)/\(removing)\(name)") == 0)
      default: #expect(unlink("\(directory.path)/\(removing)\(step[1])") == 0)
      }
    }
    func verified() throws -> RecordingVerification.Summary {
      try RecordingVerification(directory: directory.path).run { #expect(!$0.kind.isProblem, "\($0)") }
    }
    // While files are being moved, a listing shows only some of them.
    if !removal.hasRoom { _ = try verified() }
    let isMoved = removal.done > (removal.hasRoom ? 3 : 2)
    let test = try TestServer(in: directory)
    // The name is free as soon as the recording is removed.
    if isReplaced, isMoved { try test.plain("/k.txt", id: "a", offset: 100, Array("new".utf8)) }
    try waitUntil("nothing is half removed") {
      (!directory.exists(".removing") || directory.allNames(in: ".removing").isEmpty)
        && ![".k-a.sidecar", ".k-a.gaps"].contains { directory.exists($0) }
    }
    test.stop()
    let names = directory.allNames.filter { !$0.hasPrefix(".") }
    if isMoved {
      #expect(names == (isReplaced ? ["k-a.gaps", "k-a.part"] : []))
    } else {
      #expect(names == ["k-a.gaps", "k-a.sidecar", "k-a.txt"])
      #expect(try verified().verified == 1)
    }
  }

  // MARK: A disk that runs full

  @Test(
    "on a disk with too little free space, the largest owner loses the oldest recordings, as few as necessary",
    .enabled(if: SmallDisk.isPossible, "mounting a small tmpfs needs CAP_SYS_ADMIN"))
  func freeSpace() async {
    await #expect(processExitsWith: .success) {
      let directory = TemporaryDirectory()
      let disk = try SmallDisk(at: directory.path, "size=8m")
      try withExtendedLifetime(disk) {
        var random = Seed(1).generator
        for number in 0..<12 {
          var stored = Stored(2 * (number < 8 ? 3 * number : 3 * number + 1), &random)
          (stored.age, stored.isTrusted, stored.seenAge) = (Int64(1000 - number), true, nil)
          (stored.size, stored.oddity) = (500_000, .none)
          try stored.write(directory)
        }
        // Six of eight megabytes are used, four of them by other files. Three must be free.
        let rules = RecordingRetention(freeSpace: .percent(36))
        try RetentionTests.served(directory, rules, looks: 10) { test in
          let removed = test.events.all.filter { $0.kind == .removed }.compactMap(\.file)
          try require(removed.count == 2, "two are enough: \(removed)")
          try require(removed.allSatisfy { ["r0", "r6"].contains($0.prefix { $0 != "." }) }, "the oldest: \(removed)")
        }
        // Recordings with holes take less disk space than their length. One examination continues until there is room.
        for number in 0..<3 {
          var stored = Stored(36 + 2 * number, &random)
          (stored.age, stored.isTrusted, stored.seenAge) = (2000 - Int64(number), true, nil)
          (stored.owner, stored.size, stored.oddity) = (1, 0, .none)
          try stored.write(directory, hole: 100_000_000)
        }
        let looks = Counter()
        let test = try TestServer(in: directory) {
          $0.retention = RecordingRetention(freeSpace: .percent(50))
          $0.retentionClock = RetentionState.Clock(
            now: { WallClock(seconds: RetentionTests.time) },
            isSynchronized: { () -> Bool? in
              looks.add()
              return true
            })
        }
        _ = try test.events.wait(.removed, count: 5)
        test.stop()
        try require(looks.value == 1, "\(looks.value) looks")
        // If a lower bound leaves nothing to remove, the server reports it once.
        let strict = RecordingRetention(freeSpace: .bytes(7_000_000), leastSize: 10_000_000)
        try RetentionTests.served(directory, strict, looks: 10) { test in
          let said = test.events.all.compactMap(\.reason).filter { $0.contains("free space") }
          try require(said.count == 1, "\(said)")
          try require(!test.events.all.contains { $0.kind == .removed }, "nothing is removed")
        }
      }
    }
  }
}

private final class Counter: Sendable {
  private let count = Atomic(0)
  var value: Int { count.load(ordering: .acquiring) }
  func add() { count.wrappingAdd(1, ordering: .acquiringAndReleasing) }
}

extension TemporaryDirectory {
  /// All names except those of the lock and the directories.
  fileprivate var allNames: [String] { allNames(in: ".") }

  fileprivate func allNames(in directory: String) -> [String] {
    guard let stream = opendir("\(path)/\(directory)") else { return [] }
    defer { closedir(stream) }
    var names: [String] = []
    while let entry = readdir(stream) {
      let name = withUnsafeBytes(of: &entry.pointee.d_name) { String(decoding: $0.prefix { $0 != 0 }, as: UTF8.self) }
      if ![".", "..", ".sluice.lock", ".owners", ".uploads", ".parts"].contains(name) { names.append(name) }
    }
    return names.sorted()
  }
}
