// Tests with a disk that loses unsynced data are only as reliable as that disk, which is tested here.

import CLinux
import Glibc
import NetworkTesting
import PropertyTesting
import ServerChaosTesting
import Testing

/// Whether the file system of the tests has extended attributes.
private let hasAttributes: Bool = {
  guard let directory = try? TemporaryDirectory() else { return false }
  return (try? PowerCut.hasAttributes(directory.path)) ?? false
}()

@Suite("Power cuts")
struct PowerCutTests {
  private let scratch: TemporaryDirectory

  init() throws { scratch = try TemporaryDirectory() }

  /// The possible contents of `root/name` after a power failure, over many of them; nil if there is no such file.
  private func outcomes(_ journal: [String], of name: String, written: String) throws -> Set<String?> {
    let root = "\(scratch.path)/root"
    try scratch.write("journal", journal.map { $0.replacing("ROOT", with: root) + "\n" }.joined())
    let cut = try PowerCut(journal: "\(scratch.path)/journal", root: root)
    var found: Set<String?> = []
    for seed in 0..<60 {
      var random = SplitMix64(state: UInt64(seed))
      let target = "\(scratch.path)/\(written)-\(seed)"
      try cut.write(to: target, &random)
      found.insert((try? fileContents("\(target)/\(name)")).map { String(decoding: $0, as: UTF8.self) })
    }
    return found
  }

  @Test("a name whose directory was never synced may be gone, and with it the synced bytes")
  func nameWithoutSync() throws {
    let found = try outcomes(["C 1 7 ROOT/a", "S 2 7 0 3 abc"], of: "a", written: "one")
    #expect(found == [nil, "abc"])
  }

  @Test("bytes of both syncs exist, and the journal keeps the content of the latest sync, in any order")
  func synced() throws {
    let found = try outcomes(
      ["C 1 7 ROOT/a", "S 4 7 0 3 abc", "S 2 7 0 1 a", "D 5 ROOT", "R 6 0 ROOT/a ROOT/b"], of: "a", written: "two")
    #expect(found == ["abc", nil], "either it has its old name or its new one")
    let renamed = try outcomes(
      ["C 1 7 ROOT/a", "S 2 7 0 3 abc", "R 3 0 ROOT/a ROOT/b", "D 4 ROOT"], of: "b", written: "three")
    #expect(renamed == ["abc"])
  }

  @Test("a sync does not cover a name that came after it")
  func laterName() throws {
    let found = try outcomes(
      ["C 1 7 ROOT/a", "S 2 7 0 1 a", "D 3 ROOT", "C 4 8 ROOT/b", "S 5 8 0 1 b", "R 6 2 ROOT/b ROOT/a"], of: "a",
      written: "four")
    #expect(found == ["a", "b"])
  }

  @Test("a file that was truncated and then renamed has nothing of its older content under the new name")
  func truncated() throws {
    try TestProcess("/bin/mkdir", ["\(scratch.path)/root"]).wait()
    try scratch.write("root/a", "xy")
    // `b` was the record `a` before, and is written again.
    let journal = ["C 1 7 ROOT/b", "S 2 7 0 3 abc", "C 3 8 ROOT/a", "S 4 8 0 3 def", "D 5 ROOT"]
    let exchange = ["T 6 7 ROOT/b", "R 7 2 ROOT/b ROOT/a"]
    #expect(try outcomes(journal + exchange, of: "a", written: "eight") == ["def", "", "x", "xy"])
    let again = try outcomes(journal + exchange + ["S 8 7 0 2 xy", "D 9 ROOT"], of: "a", written: "nine")
    #expect(again == ["xy"])
    try scratch.write("root/b", "")
    let before = try outcomes(journal + ["T 6 7 ROOT/b"], of: "b", written: "ten")
    #expect(before == ["abc", ""], "the truncation itself may be lost")
  }

  @Test("of the bytes written after the last sync, any part may exist")
  func unsyncedBytes() throws {
    try TestProcess("/bin/mkdir", ["\(scratch.path)/root"]).wait()
    try scratch.write("root/a", "abcdef")
    let found = try outcomes(["C 1 7 ROOT/a", "S 2 7 0 3 abc", "D 3 ROOT"], of: "a", written: "five")
    #expect(found == ["abc", "abcd", "abcde", "abcdef"])
  }

  @Test("a last record that a kill has cut at any byte does not count, because its sync never returned")
  func cutRecord() throws {
    let whole = ["C 1 7 ROOT/a", "S 2 7 0 1 a", "D 3 ROOT"].map { $0.replacing("ROOT", with: "/r") + "\n" }.joined()
    for (index, record) in ["S 4 7 0 3 abc\n", "S 4 7 3 3 b 3abc\n", "S 4 7 - 3 abc\n"].enumerated() {
      let last = Array(record.utf8)
      for length in 0...last.count {
        try scratch.write("journal", Array(whole.utf8) + last.prefix(length))
        var random = SplitMix64(state: 1)
        let target = "\(scratch.path)/cut-\(index)-\(length)"
        try PowerCut(journal: "\(scratch.path)/journal", root: "/r").write(to: target, &random)
        let expected = length == last.count ? "abc" : "a"
        let found = String(decoding: try fileContents("\(target)/a"), as: UTF8.self)
        #expect(found == expected, "\(length) bytes of \(record)")
      }
    }
  }

  @Test(
    "unsynced bytes of a stream exist only with the record of its owner, which may have only its attribute",
    .enabled(if: hasAttributes))
  func ownerRecord() throws {
    let root = "\(scratch.path)/root"
    try TestProcess("/bin/mkdir", ["-p", "\(root)/.owners"]).wait()
    try scratch.write("root/.owners/a", "me")
    try scratch.write("root/a.part", "abc")
    let journal = [
      "M 1 ROOT/.owners", "C 2 8 ROOT/.owners/a~", "O 3 8 2 me", "R 4 0 ROOT/.owners/a~ ROOT/.owners/a",
      "C 5 7 ROOT/a.part",
    ]
    try scratch.write("journal", journal.map { $0.replacing("ROOT", with: root) + "\n" }.joined())
    let cut = try PowerCut(journal: "\(scratch.path)/journal", root: root)
    var found: Set<[String]> = []
    for seed in 0..<500 {
      var random = SplitMix64(state: UInt64(seed))
      let target = "\(scratch.path)/owner-\(seed)"
      try cut.write(to: target, &random)
      func text(_ name: String) -> String {
        (try? fileContents("\(target)/\(name)")).map { String(decoding: $0, as: UTF8.self) } ?? "none"
      }
      found.insert([text("a.part"), text(".owners/a"), Self.attribute("user.sluice.owner", of: "\(target)/.owners/a")])
    }
    for remains in found {
      #expect((remains[1] == "none") == remains[2].isEmpty && ["", "me"].contains(remains[2]), "\(remains)")
      #expect(remains[1] != "none" || ["none", ""].contains(remains[0]), "\(remains)")
    }
    #expect(found.contains(["abc", "", "me"]), "its content is destroyed")
    #expect(found.contains(["", "none", ""]), "the directory of the owners is older")
  }

  // MARK: Zeros

  /// What may be left of `root/a` after a power failure, over many of them.
  ///
  /// - Returns: for each, the content with 0 for each zero, and the attribute after a space if there is one.
  private func remains(_ journal: [String], written: String, zeros: Bool = true) throws -> Set<String> {
    let root = "\(scratch.path)/root"
    try TestProcess("/bin/mkdir", ["-p", root]).wait()
    try scratch.write("root/a", written)
    try scratch.write("journal", journal.map { $0.replacing("ROOT", with: root) + "\n" }.joined())
    let cut = try PowerCut(journal: "\(scratch.path)/journal", root: root)
    var found: Set<String> = []
    for seed in 0..<2000 {
      var random = SplitMix64(state: UInt64(seed))
      let (content, mark) = try Self.result(of: cut, in: scratch, zeros: zeros, &random)
      let text = String(decoding: content.map { $0 == 0 ? UInt8(ascii: "0") : $0 }, as: UTF8.self)
      found.insert(mark.isEmpty ? text : "\(text) \(mark)")
    }
    return found
  }

  /// The file `a` after a power failure, and its attribute; empty for none.
  private static func result(
    of cut: PowerCut, in directory: TemporaryDirectory, zeros: Bool, _ random: inout SplitMix64
  ) throws -> (content: [UInt8], mark: String) {
    let target = "\(directory.path)/after"
    try cut.write(to: target, zeros: zeros, &random)
    defer {
      unlink("\(target)/a")
      rmdir(target)
    }
    return (try fileContents("\(target)/a"), attribute("user.sluice.synced", of: "\(target)/a"))
  }

  /// Empty for none.
  private static func attribute(_ name: String, of path: String) -> String {
    let file = open(path, O_RDONLY | O_CLOEXEC)
    defer { close(file) }
    var value = [UInt8](repeating: 0, count: 128)
    let count = fgetxattr(file, name, &value, value.count)
    return String(decoding: value.prefix(max(0, count)), as: UTF8.self)
  }

  @Test(
    "zeros may follow the synced bytes or later ones, but begin behind all that a later attribute counts",
    .enabled(if: hasAttributes))
  func zeros() throws {
    let journal = ["C 1 7 ROOT/a", "S 2 7 3 1 b 1a", "D 3 ROOT", "X 4 7 3 b 3"]
    let found = try remains(journal, written: "abcd")
    var expected = Set(
      ["a", "ab", "abc", "abcd", "a0", "a00", "a000", "ab0", "ab00", "abc0"].map { "\($0) b 1" })
    expected.formUnion(["abc b 3", "abcd b 3", "abc0 b 3"])
    #expect(found == expected)
    let plain = try remains(journal, written: "abcd", zeros: false)
    #expect(plain == ["a", "ab", "abc", "abcd"])
  }

  @Test(
    "an attribute that was removed since the last sync may be back, and no zeros follow",
    .enabled(if: hasAttributes))
  func removedMark() throws {
    let found = try remains(["C 1 7 ROOT/a", "S 2 7 3 1 b 1a", "D 3 ROOT", "X 4 7 0 "], written: "ab")
    #expect(found == ["a", "ab", "a b 1", "ab b 1"])
    let synced = try remains(["C 1 7 ROOT/a", "X 2 7 3 b 1", "X 3 7 0 ", "S 4 7 0 1 a", "D 5 ROOT"], written: "a")
    #expect(synced == ["a"])
  }

  @Test("a file has the attribute that it got before its first byte", .enabled(if: hasAttributes))
  func firstMark() throws {
    let created = ["C 1 7 ROOT/a", "D 2 ROOT", "X 3 7 3 b 0"]
    let contents = ["", "a", "ab", "0", "00", "a0"]
    #expect(try remains(created, written: "ab") == Set(contents.map { "\($0) b 0" }))
    let removed = try remains(created + ["X 4 7 0 "], written: "ab")
    #expect(removed == Set(contents[..<3].map { "\($0) b 0" } + contents[..<3]))
  }

  @Test("fdatasync(2) makes the bytes permanent, and perhaps the attribute", .enabled(if: hasAttributes))
  func dataSync() throws {
    let found = try remains(["C 1 7 ROOT/a", "X 2 7 3 b 1", "S 3 7 - 1 a", "D 4 ROOT"], written: "a")
    #expect(found == ["a", "a b 1"])
  }

  @Test("a file that was overwritten since its last sync gets no zeros", .enabled(if: hasAttributes))
  func overwritten() throws {
    let journal = ["C 1 7 ROOT/a", "S 2 7 3 2 b 2ab", "D 3 ROOT", "X 4 7 3 b 4"]
    let found = try remains(journal, written: "xycd")
    #expect(found == ["ab b 2", "xycd b 2"])
  }

  @Test(
    "zeros follow all synced and all counted bytes, and without zeros, nothing depends on attributes",
    .enabled(if: hasAttributes), arguments: Seed.several(40))
  func randomJournals(seed: Seed) throws {
    var random = seed.generator
    let root = "\(scratch.path)/root"
    let file = GrowingFile(in: root, &random)
    try TestProcess("/bin/mkdir", [root]).wait()
    try scratch.write("root/a", file.written)
    try scratch.write("journal", file.journal)
    try scratch.write("plain", file.plainJournal)
    let cut = try PowerCut(journal: "\(scratch.path)/journal", root: root)
    let plain = try PowerCut(journal: "\(scratch.path)/plain", root: root)
    for _ in 0..<20 {
      let start = random
      let (content, mark) = try Self.result(of: cut, in: scratch, zeros: true, &random)
      #expect(file.marks.contains(mark), "\(seed): \(mark)")
      let end = content.lastIndex { $0 != 0 }.map { $0 + 1 } ?? 0
      let counted = mark.split(separator: " ").last.flatMap { Int($0) } ?? 0
      #expect(end >= max(file.keptCount, counted), "\(seed): zeros from \(end)")
      #expect(content.count <= file.written.count && file.written.starts(with: content[..<end]), "\(seed)")
      var (first, second) = (start, start)
      let before = try Self.result(of: plain, in: scratch, zeros: false, &first)
      let after = try Self.result(of: cut, in: scratch, zeros: false, &second)
      #expect(after.mark.isEmpty && after.content == before.content, "\(seed)")
    }
  }
}

/// The journal of a file that a server writes, marks and syncs.
private struct GrowingFile {
  var journal: [UInt8]
  /// The same without attributes.
  var plainJournal: [UInt8]
  /// No byte is zero.
  var written: [UInt8] = []
  /// How many bytes are synced.
  var keptCount = 0
  /// The last permanent value of the attribute, and all later ones; empty for none.
  var marks = [""]
  private var number = 2

  init(in root: String, _ random: inout SplitMix64) {
    journal = Array("C 1 7 \(root)/a\nD 2 \(root)\n".utf8)
    plainJournal = journal
    for _ in 0..<Int.random(in: 1...12, using: &random) {
      switch Int.random(in: 0..<6, using: &random) {
      case 0, 1: grow(&random)
      case 2: mark("b \(written.count)")
      case 3: mark("")
      default:
        if random.chance(50) { mark("b \(written.count)") }
        if random.chance(50) { grow(&random) }
        sync(coversMark: random.chance(70))
      }
    }
  }

  private mutating func grow(_ random: inout SplitMix64) {
    for _ in 0..<Int.random(in: 1...5, using: &random) { written.append(UInt8.random(in: 1...255, using: &random)) }
  }

  private mutating func mark(_ value: String) {
    number += 1
    journal += Array("X \(number) 7 \(value.utf8.count) \(value)\n".utf8)
    marks.append(value)
  }

  private mutating func sync(coversMark: Bool) {
    number += 1
    keptCount = written.count
    if coversMark { marks = Array(marks.suffix(1)) }
    let mark = coversMark ? marks[0] : ""
    let length = coversMark ? "\(mark.utf8.count)" : "-"
    let content = written + [10]
    journal += Array("S \(number) 7 \(length) \(written.count) \(mark)".utf8)
    journal += content
    plainJournal += Array("S \(number) 7 - \(written.count) ".utf8)
    plainJournal += content
  }
}
