// The content of a disk after a power failure: all synced data, and whatever else the kernel may have written by then.

internal import Glibc
internal import NetworkTesting
package import PropertyTesting

/// Reconstructs a directory from a journal of the forgetful disk (`Tests/ForgetfulDisk`).
///
/// The names of each directory are those of some moment between its last sync and the end. The kernel writes such
/// changes in order, but one directory may be older than another. A file has its last synced content, its last written
/// content, or that content as far as it extends the synced one. ext4 can also leave zeros after the synced content,
/// which `SyncedMarkTests` imitates.
package struct PowerCut {
  private struct Synced {
    var number = 0
    var content: [UInt8] = []
  }

  private enum Change {
    case add(name: String, inode: UInt64)
    case remove(name: String)
    case makeDirectory(name: String)
    case exchange(name: String, with: String)
    case rename(from: String, to: String)
  }

  private let root: String
  /// Numbered changes in each directory, in order. A change between two directories is an addition and a removal.
  private var changes: [String: [(number: Int, change: Change)]] = [:]
  private var syncedNames: [String: Int] = [:]
  private var synced: [UInt64: Synced] = [:]
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
      // The numbers and paths of a record are words. The content of a sync follows the fourth.
      if letter == UInt8(ascii: "S") {
        var words: [Substring] = []
        var position = rest.startIndex
        for _ in 0..<4 {
          guard let end = rest[position...].firstIndex(of: UInt8(ascii: " ")) else { return }
          words.append(Substring(decoding: rest[position..<end], as: UTF8.self))
          position = end + 1
        }
        guard let number = Int(words[1]), let inode = UInt64(words[2]), let count = Int(words[3]) else {
          throw TestFailure("the journal cannot be read at \(words)")
        }
        // SIGKILL has cut the last record, so its sync never returned.
        guard position + count < rest.endIndex else { return }
        if number >= synced[inode]?.number ?? 0 {
          synced[inode] = Synced(number: number, content: Array(rest[position..<(position + count)]))
        }
        rest = rest[(position + count + 1)...]
        continue
      }
      guard let end = rest.firstIndex(of: 10) else { return }
      apply(String(decoding: rest[..<end], as: UTF8.self).split(separator: " ").map(String.init))
      rest = rest[(end + 1)...]
    }
  }

  private mutating func apply(_ words: [String]) {
    guard words.count >= 3, let number = Int(words[1]), let path = words.last else { return }
    switch words[0] {
    case "D": syncedNames[path] = max(syncedNames[path] ?? -1, number)
    case "C", "L":
      guard let inode = UInt64(words[2]) else { return }
      // The number of a removed file may be reused for a new one.
      if words[0] == "C" { synced[inode] = nil }
      names[path] = inode
      add(number, path, .add(name: Self.name(path), inode: inode))
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
  package func write(to target: String, _ random: inout SplitMix64) throws {
    try write(root, to: target, &random)
  }

  private func write(_ directory: String, to target: String, _ random: inout SplitMix64) throws {
    guard mkdir(target, 0o700) == 0 else { throw TestFailure("mkdir \(target)") }
    let all = changes[directory] ?? []
    let certain = all.prefix { $0.number < syncedNames[directory] ?? -1 }.count
    // Sometimes only the synced changes, and sometimes all.
    let last =
      switch Int.random(in: 0..<3, using: &random) {
      case 0: certain
      case 1: all.count
      default: Int.random(in: certain...all.count, using: &random)
      }
    var files: [String: UInt64] = [:]
    var directories: Set<String> = []
    for (_, change) in all[..<last] {
      switch change {
      case .add(let name, let inode): files[name] = inode
      case .remove(let name): files[name] = nil
      case .makeDirectory(let name): directories.insert(name)
      case .exchange(let name, let other): (files[name], files[other]) = (files[other], files[name])
      case .rename(let old, let new): (files[old], files[new]) = (nil, files[old])
      }
    }
    for (name, inode) in files.sorted(by: { $0.key < $1.key }) {
      let content = self.content(of: inode, &random)
      let file = open("\(target)/\(name)", O_WRONLY | O_CREAT | O_CLOEXEC, 0o600)
      guard file >= 0, content.isEmpty || Glibc.write(file, content, content.count) == content.count else {
        throw TestFailure("writing \(target)/\(name)")
      }
      close(file)
    }
    for name in directories.sorted() { try write("\(directory)/\(name)", to: "\(target)/\(name)", &random) }
  }

  private func content(of inode: UInt64, _ random: inout SplitMix64) -> [UInt8] {
    let kept = synced[inode]?.content ?? []
    guard let path = inodes[inode], let written = try? fileContents(path) else { return kept }
    switch Int.random(in: 0..<3, using: &random) {
    case 0: return kept
    case 1: return written
    default:
      guard written.starts(with: kept) else { return Bool.random(using: &random) ? kept : written }
      return Array(written.prefix(Int.random(in: kept.count...written.count, using: &random)))
    }
  }
}
