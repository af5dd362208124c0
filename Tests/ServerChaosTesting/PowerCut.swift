// The content of a disk after a power failure: all synced data, and whatever else the kernel may have written by then.

internal import CLinux
internal import Glibc
internal import NetworkTesting
package import PropertyTesting

/// Reconstructs a directory from a journal of the forgetful disk (`Tests/ForgetfulDisk`).
///
/// The names of each directory are those of some moment between its last sync and the end. The kernel writes such
/// changes in order, but one directory may be older than another. A file has its last synced content, its last written
/// content, or that content as far as it extends the synced one. Bytes that no sync has covered exist only if all names
/// do that are older than their file, because the size of a file follows them in the journal of the file system.
///
/// A file that was truncated has nothing of its older content if any later change of its directory exists, such as its
/// new name, because the truncation precedes that change in that journal.
///
/// A file has its attribute `user.sluice.owner` wherever it has a name, because the server sets it before it gives the
/// file its final name, and both are in that journal.
///
/// With zeros, a file may also end with zeros after its synced content or after a piece of the later bytes, but not
/// beyond its written length. ext4 (data=ordered) leaves such files. Each file then has its mark, the attribute
/// `user.sluice.synced`: the last synced value or a later one. The bytes up to the size in a later value exist, because
/// they were written to the device before the attribute was set. The first value exists in any case if it counts no
/// bytes, because it is older than the first byte. A file whose attribute was removed has no zeros here, because the
/// server promises nothing about them.
package struct PowerCut {
  /// A value of a file's attribute; empty for none.
  private struct Mark {
    var number = -1
    var value: [UInt8] = []

    /// Up to where the file is synced, in bytes.
    var size: Int { String(decoding: value, as: UTF8.self).split(separator: " ").last.flatMap { Int($0) } ?? 0 }
  }

  private struct Synced {
    var number = 0
    var content: [UInt8] = []
    /// At the last sync that covered it.
    var mark = Mark()
  }

  private enum Change {
    case add(name: String, inode: UInt64)
    case remove(name: String)
    case makeDirectory(name: String)
    case exchange(name: String, with: String)
    case rename(from: String, to: String)
  }

  /// The names on the disk.
  private struct Names {
    /// How many changes of each directory are on the disk.
    var counts: [String: Int]
    /// The number of the first change that is not.
    var firstMissing: Int
    /// The number of the last change of each directory that is.
    var last: [String: Int] = [:]
  }

  /// Identifies the boot of the machine that ends with the power failure.
  static let bootBefore = "00000000-0000-4000-8000-000000000001"

  private static let attribute = "user.sluice.synced"
  private static let ownerAttribute = "user.sluice.owner"

  private let root: String
  /// Numbered changes in each directory, in order. A change between two directories is an addition and a removal.
  private var changes: [String: [(number: Int, change: Change)]] = [:]
  private var syncedNames: [String: Int] = [:]
  private var synced: [UInt64: Synced] = [:]
  /// All values of each file's attribute, in order.
  private var marks: [UInt64: [Mark]] = [:]
  /// The owner that each file states in an attribute; empty for none.
  private var owners: [UInt64: [UInt8]] = [:]
  /// When each file was last truncated.
  private var truncated: [UInt64: Int] = [:]
  /// The number of the change that created each file.
  private var created: [UInt64: Int] = [:]
  /// The final path of each inode, to find its last written content.
  private var inodes: [UInt64: String] = [:]
  /// All names while the journal is read.
  private var names: [String: UInt64] = [:]

  package init(journal: String, root: String) throws {
    self.root = root
    try read(try fileContents(journal)[...])
    for (path, inode) in names { inodes[inode] = path }
  }

  private mutating func read(_ journal: ArraySlice<UInt8>) throws {
    var rest = journal
    while let letter = rest.first {
      // The numbers and paths of a record are words. An attribute and the content of a sync follow the last one.
      let (isSync, isOwner) = (letter == UInt8(ascii: "S"), letter == UInt8(ascii: "O"))
      if isSync || isOwner || letter == UInt8(ascii: "X") {
        var words: [Substring] = []
        var position = rest.startIndex
        for _ in 0..<(isSync ? 5 : 4) {
          guard let end = rest[position...].firstIndex(of: UInt8(ascii: " ")) else { return }
          words.append(Substring(decoding: rest[position..<end], as: UTF8.self))
          position = end + 1
        }
        // fdatasync(2) does not cover the attribute.
        let hasMark = words[3] != "-"
        guard let number = Int(words[1]), let inode = UInt64(words[2]), let markCount = hasMark ? Int(words[3]) : 0,
          let count = isSync ? Int(words[4]) : 0
        else { throw TestFailure("the journal cannot be read at \(words)") }
        let (start, end) = (position + markCount, position + markCount + count)
        // SIGKILL has cut the last record, so its sync never returned.
        guard end < rest.endIndex else { return }
        let mark = Mark(number: number, value: Array(rest[position..<start]))
        if isSync {
          apply(number, inode, hasMark ? mark : nil, Array(rest[start..<end]))
        } else if isOwner {
          owners[inode] = mark.value
        } else {
          marks[inode, default: []].append(mark)
        }
        rest = rest[(end + 1)...]
        continue
      }
      guard let end = rest.firstIndex(of: 10) else { return }
      apply(String(decoding: rest[..<end], as: UTF8.self).split(separator: " ").map(String.init))
      rest = rest[(end + 1)...]
    }
  }

  /// Applies a sync. Those of a file may be recorded in any order.
  private mutating func apply(_ number: Int, _ inode: UInt64, _ mark: Mark?, _ content: [UInt8]) {
    var synced = synced[inode] ?? Synced()
    if number >= synced.number { (synced.number, synced.content) = (number, content) }
    if let mark, number >= synced.mark.number { synced.mark = mark }
    self.synced[inode] = synced
  }

  private mutating func apply(_ words: [String]) {
    guard words.count >= 3, let number = Int(words[1]), let path = words.last else { return }
    switch words[0] {
    case "D": syncedNames[path] = max(syncedNames[path] ?? -1, number)
    case "C", "L":
      guard let inode = UInt64(words[2]) else { return }
      // The number of a removed file may be reused for a new one.
      if words[0] == "C" {
        (synced[inode], marks[inode], owners[inode], truncated[inode]) = (nil, nil, nil, nil)
        created[inode] = number
      }
      names[path] = inode
      add(number, path, .add(name: Self.name(path), inode: inode))
    case "T":
      if let inode = UInt64(words[2]) { truncated[inode] = number }
    case "U":
      names[path] = nil
      add(number, path, .remove(name: Self.name(path)))
    case "M": add(number, path, .makeDirectory(name: Self.name(path)))
    case "R":
      let old = words[3]
      let exchanges = words[2] == "2"
      let moved = names[old]
      if Self.directory(old) == Self.directory(path) {
        add(
          number, path,
          exchanges
            ? .exchange(name: Self.name(old), with: Self.name(path))
            : .rename(from: Self.name(old), to: Self.name(path)))
      } else if let moved {
        add(number, path, .add(name: Self.name(path), inode: moved))
        add(number, old, .remove(name: Self.name(old)))
      }
      (names[old], names[path]) = (exchanges ? names[path] : nil, moved)
    default: break
    }
  }

  private mutating func add(_ number: Int, _ path: String, _ change: Change) {
    changes[Self.directory(path), default: []].append((number, change))
  }

  private static func directory(_ path: String) -> String {
    String(path[..<(path.lastIndex(of: "/") ?? path.startIndex)])
  }
  private static func name(_ path: String) -> String {
    String(path[(path.index(after: path.lastIndex(of: "/") ?? path.startIndex))...])
  }

  // MARK: The result

  /// Writes the disk's content to a new directory.
  ///
  /// - Parameter zeros: whether files may end with zeros, and have their attributes. Without effect if the file system
  ///   of `target` has no such attributes, because a server cannot protect itself from the zeros there.
  package func write(to target: String, zeros: Bool = false, _ random: inout SplitMix64) throws {
    try makeDirectory(target)
    let names = drawNames(&random)
    try write(root, to: target, names, zeros: zeros && Self.hasAttributes(target), &random)
  }

  /// Often, all directories are as they were at one moment.
  private func drawNames(_ random: inout SplitMix64) -> Names {
    let end = (changes.values.compactMap { $0.last?.number }.max() ?? -1) + 1
    let synced = min(syncedNames.values.max() ?? 0, end)
    let moment = random.chance(50) ? Self.draw(from: synced, to: end, &random) : nil
    var names = Names(counts: [:], firstMissing: .max)
    for (directory, all) in changes.sorted(by: { $0.key < $1.key }) {
      let certain = all.prefix { $0.number < syncedNames[directory] ?? -1 }.count
      let count =
        if let moment {
          max(certain, all.prefix { $0.number < moment }.count)
        } else {
          Self.draw(from: certain, to: all.count, &random)
        }
      names.counts[directory] = count
      if count > 0 { names.last[directory] = all[count - 1].number }
      if count < all.count { names.firstMissing = min(names.firstMissing, all[count].number) }
    }
    return names
  }

  /// Sometimes only what is synced, and sometimes all.
  private static func draw(from synced: Int, to end: Int, _ random: inout SplitMix64) -> Int {
    switch Int.random(in: 0..<3, using: &random) {
    case 0: synced
    case 1: end
    default: Int.random(in: synced...end, using: &random)
    }
  }

  private func makeDirectory(_ path: String) throws {
    guard mkdir(path, 0o700) == 0 else { throw TestFailure("mkdir \(path)") }
  }

  /// Whether files in an existing directory can have the attribute.
  package static func hasAttributes(_ path: String) throws -> Bool {
    let directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
    guard directory >= 0 else { throw TestFailure("opening \(path)") }
    defer { close(directory) }
    guard fsetxattr(directory, attribute, "0", 1, 0) == 0 else {
      if [ENOTSUP, ENOSYS].contains(errno) { return false }
      throw TestFailure("fsetxattr \(path): \(String(cString: strerror(errno)))")
    }
    return fremovexattr(directory, attribute) == 0
  }

  /// Up to where a growing file is marked as synced, and whether that was before the power failure. If so, no server
  /// has opened it since and removed the bytes after that. Nil if it has no mark.
  static func mark(of path: String) -> (size: Int, isFromBefore: Bool)? {
    let file = open(path, O_RDONLY | O_CLOEXEC)
    defer { close(file) }
    var value = [UInt8](repeating: 0, count: 128)
    let count = fgetxattr(file, attribute, &value, value.count)
    guard count > 0 else { return nil }
    let words = String(decoding: value[..<count], as: UTF8.self).split(separator: " ")
    guard words.count == 2, let size = Int(words[1]) else { return nil }
    return (size, words[0] == bootBefore)
  }

  private func write(
    _ directory: String, to target: String, _ names: Names, zeros: Bool, _ random: inout SplitMix64
  ) throws {
    var files: [String: UInt64] = [:]
    var directories: Set<String> = []
    for (_, change) in (changes[directory] ?? []).prefix(names.counts[directory] ?? 0) {
      switch change {
      case .add(let name, let inode): files[name] = inode
      case .remove(let name): files[name] = nil
      case .makeDirectory(let name): directories.insert(name)
      case .exchange(let name, let other): (files[name], files[other]) = (files[other], files[name])
      case .rename(let old, let new): (files[old], files[new]) = (nil, files[old])
      }
    }
    for (name, inode) in files.sorted(by: { $0.key < $1.key }) {
      let (content, mark) = remains(of: inode, in: directory, names, zeros: zeros, &random)
      let owner = owners[inode] ?? []
      let file = open("\(target)/\(name)", O_WRONLY | O_CREAT | O_CLOEXEC, 0o600)
      guard file >= 0, content.isEmpty || Glibc.write(file, content, content.count) == content.count,
        mark.isEmpty || fsetxattr(file, Self.attribute, mark, mark.count, 0) == 0,
        owner.isEmpty || fsetxattr(file, Self.ownerAttribute, owner, owner.count, 0) == 0
      else { throw TestFailure("writing \(target)/\(name)") }
      close(file)
    }
    for name in directories.sorted() {
      try makeDirectory("\(target)/\(name)")
      try write("\(directory)/\(name)", to: "\(target)/\(name)", names, zeros: zeros, &random)
    }
  }

  /// The content of a file and its mark. Without zeros, no file has a mark.
  private func remains(
    of inode: UInt64, in directory: String, _ names: Names, zeros: Bool, _ random: inout SplitMix64
  ) -> (content: [UInt8], mark: [UInt8]) {
    var synced = synced[inode] ?? Synced()
    if let truncated = truncated[inode], synced.number < truncated, truncated < names.last[directory] ?? -1 {
      synced.content = []
    }
    let mayBeLonger = created[inode] ?? 0 < names.firstMissing
    let written = mayBeLonger ? inodes[inode].flatMap { try? fileContents($0) } : nil
    guard zeros else { return (content(synced.content, written, &random), []) }
    let isExtended = written?.starts(with: synced.content) ?? false
    // A file that was removed, truncated or overwritten cannot show all that a later value counts.
    let present = isExtended ? written?.count ?? 0 : min(synced.content.count, written?.count ?? .max)
    let beginning = marks[inode]?.first.flatMap { !$0.value.isEmpty && $0.size == 0 ? $0 : nil }
    let first = synced.mark.number < 0 ? beginning ?? synced.mark : synced.mark
    let later = (marks[inode] ?? []).filter { $0.number > first.number && $0.size <= present }
    let mark = later.isEmpty || random.chance(30) ? first : later[Int.random(in: later.indices, using: &random)]
    var certain = synced.content
    if let written, isExtended, mark.size > certain.count { certain = Array(written.prefix(mark.size)) }
    let isMarked = marks[inode]?.last.map { !$0.value.isEmpty } ?? true
    if let written, isExtended, isMarked, certain.count < written.count, random.chance(25) {
      // Often, none of the later bytes exist.
      let end = random.chance(50) ? certain.count : Int.random(in: certain.count..<written.count, using: &random)
      let count = Int.random(in: 1...(written.count - end), using: &random)
      return (Array(written.prefix(end)) + [UInt8](repeating: 0, count: count), mark.value)
    }
    return (content(certain, written, &random), mark.value)
  }

  /// - Parameters:
  ///   - kept: the bytes that certainly exist.
  ///   - written: the last written content; nil if it is unknown.
  private func content(_ kept: [UInt8], _ written: [UInt8]?, _ random: inout SplitMix64) -> [UInt8] {
    guard let written else { return kept }
    switch Int.random(in: 0..<3, using: &random) {
    case 0: return kept
    case 1: return written
    default:
      guard written.starts(with: kept) else { return Bool.random(using: &random) ? kept : written }
      return Array(written.prefix(Int.random(in: kept.count...written.count, using: &random)))
    }
  }
}
