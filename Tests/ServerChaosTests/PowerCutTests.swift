// Tests with a disk that loses unsynced data are only as reliable as that disk, which is tested here.

import NetworkTesting
import PropertyTesting
import ServerChaosTesting
import Testing

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
    let found = try outcomes(["C 1 7 ROOT/a", "S 2 7 3 abc"], of: "a", written: "one")
    #expect(found == [nil, "abc"])
  }

  @Test("bytes of both syncs exist, and the journal keeps the content of the latest sync, in any order")
  func synced() throws {
    let found = try outcomes(
      ["C 1 7 ROOT/a", "S 4 7 3 abc", "S 2 7 1 a", "D 5 ROOT", "R 6 0 ROOT/a ROOT/b"], of: "a", written: "two")
    #expect(found == ["abc", nil], "either it has its old name or its new one")
    let renamed = try outcomes(
      ["C 1 7 ROOT/a", "S 2 7 3 abc", "R 3 0 ROOT/a ROOT/b", "D 4 ROOT"], of: "b", written: "three")
    #expect(renamed == ["abc"])
  }

  @Test("a sync does not cover a name that came after it")
  func laterName() throws {
    let found = try outcomes(
      ["C 1 7 ROOT/a", "S 2 7 1 a", "D 3 ROOT", "C 4 8 ROOT/b", "S 5 8 1 b", "R 6 2 ROOT/b ROOT/a"], of: "a",
      written: "four")
    #expect(found == ["a", "b"])
  }

  @Test("of the bytes written after the last sync, any part may exist")
  func unsyncedBytes() throws {
    try TestProcess("/bin/mkdir", ["\(scratch.path)/root"]).wait()
    try scratch.write("root/a", "abcdef")
    let found = try outcomes(["C 1 7 ROOT/a", "S 2 7 3 abc", "D 3 ROOT"], of: "a", written: "five")
    #expect(found == ["abc", "abcd", "abcde", "abcdef"])
  }

  @Test("a last record that a kill has cut at any byte does not count, because its sync never returned")
  func cutRecord() throws {
    let whole = ["C 1 7 ROOT/a", "S 2 7 1 a", "D 3 ROOT"].map { $0.replacing("ROOT", with: "/r") + "\n" }.joined()
    let last = Array("S 4 7 3 abc\n".utf8)
    for length in 0...last.count {
      try scratch.write("journal", Array(whole.utf8) + last.prefix(length))
      var random = SplitMix64(state: 1)
      let target = "\(scratch.path)/cut-\(length)"
      try PowerCut(journal: "\(scratch.path)/journal", root: "/r").write(to: target, &random)
      let expected = length == last.count ? "abc" : "a"
      #expect(String(decoding: try fileContents("\(target)/a"), as: UTF8.self) == expected, "\(length) bytes")
    }
  }
}
