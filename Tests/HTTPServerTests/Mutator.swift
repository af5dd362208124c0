// Mutated requests from a seed, so that a failure can be repeated, and the corpus that they are made from.

import Glibc
import NetworkTesting
import PropertyTesting

struct Mutator {
  private var generator: SplitMix64

  /// Elements of request smuggling.
  private static let fragments: [[UInt8]] = [
    "\r", "\n", "\r\n", "\r\n\r\n", " ", "\t", ":", ";", ",", "0", "ffffffffffffffff", "-1", "chunked", "\0", "%00",
    "Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n", "Host: x\r\n", "0\r\n\r\n", "5\r\nhello\r\n",
    "GET / HTTP/1.1\r\n", "HTTP/1.0", "Expect: 100-continue\r\n", "\u{7f}",
  ].map { Array($0.utf8) }

  init(_ seed: Seed) { generator = seed.generator }

  mutating func mutate(_ seeds: [[UInt8]]) -> [UInt8] {
    var octets = pick(seeds)
    for _ in 0..<Int.random(in: 0...4, using: &generator) {
      let place = Int.random(in: 0...octets.count, using: &generator)
      let end = min(octets.count, place + Int.random(in: 0...8, using: &generator))
      switch Int.random(in: 0..<6, using: &generator) {
      case 0: octets.replaceSubrange(place..<end, with: [UInt8.random(in: 0...255, using: &generator)])
      case 1: octets.removeSubrange(place..<end)
      case 2: octets.insert(contentsOf: pick(Self.fragments), at: place)
      case 3: octets.insert(contentsOf: octets[place..<end], at: place)
      case 4: octets.append(contentsOf: pick(seeds))
      default: if place < octets.count { octets[place] ^= 1 << UInt8.random(in: 0..<8, using: &generator) }
      }
    }
    return octets
  }

  /// Up to six positions, in order, at which to split `count` octets.
  mutating func cuts(_ count: Int) -> [Int] {
    (0..<Int.random(in: 1...6, using: &generator)).map { _ in Int.random(in: 0...count, using: &generator) }.sorted()
  }

  private mutating func pick(_ list: [[UInt8]]) -> [UInt8] { list[Int.random(in: 0..<list.count, using: &generator)] }
}

/// The files of `Corpus/`: complete requests of real clients, and textbook attacks.
enum Corpus {
  static func files(_ filePath: String = #filePath) throws -> [(name: String, octets: [UInt8])] {
    let folder = filePath.prefix(upTo: filePath.lastIndex(of: "/") ?? filePath.startIndex) + "/Corpus"
    guard let directory = opendir(String(folder)) else { throw TestFailure("no folder \(folder)") }
    defer { closedir(directory) }
    var files: [(String, [UInt8])] = []
    while let entry = readdir(directory) {
      let name = withUnsafePointer(to: &entry.pointee.d_name) {
        $0.withMemoryRebound(to: CChar.self, capacity: 256) { String(cString: $0) }
      }
      guard name.hasSuffix(".http") else { continue }
      files.append((name, try fileContents("\(folder)/\(name)")))
    }
    return files.sorted { $0.0 < $1.0 }
  }
}
