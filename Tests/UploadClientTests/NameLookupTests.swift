// How many name lookups may keep running, against a simple model of their threads.

import Glibc
import PropertyTesting
import Testing

@testable import UploadClient

@Suite("Abandoned name lookups")
struct NameLookupTests {
  /// Threads of lookups that run, and of abandoned ones.
  private final class Threads {
    var running = 0
    var left = 0
  }

  @Test("at most the limit stay running, and none is refused without need", arguments: Seed.several(5))
  func limit(seed: Seed) {
    var random = seed.generator
    for _ in 0..<100 {
      let threads = Threads()
      let lookups = NameLookups { threads.running + threads.left }
      for _ in 0..<200 {
        switch Int.random(in: 0..<5, using: &random) {
        case 0, 1:
          let mayBegin = threads.left < NameLookups.limit
          let begins = lookups.begin()
          #expect(begins == mayBegin, "\(seed)")
          if begins { threads.running += 1 }
        case 2 where threads.running > 0:
          lookups.end()
          threads.running -= 1
        case 3 where threads.running > 0:
          lookups.abandon()
          threads.running -= 1
          threads.left += 1
        default:
          if threads.left > 0, random.chance(50) { threads.left -= 1 }
        }
      }
    }
  }

  @Test("a process without /proc refuses nothing permanently")
  func uncounted() {
    let lookups = NameLookups { nil }
    for _ in 0..<3 * NameLookups.limit {
      #expect(lookups.begin())
      lookups.abandon()
    }
  }

  @Test("threads are counted by their name")
  func threads() {
    #expect(NameLookups.threadCount() ?? -1 >= 0)
  }

  @Test("counting threads leaks no descriptor")
  func descriptors() {
    let before = openCommFiles()
    for _ in 0..<50 { #expect(NameLookups.threadCount() != nil) }
    #expect(openCommFiles() - before < 25)
  }

  /// How many descriptors belong to a thread's name or to the list of threads.
  private func openCommFiles() -> Int {
    (0..<Int32(4096)).count { descriptor in
      var target = [UInt8](repeating: 0, count: 256)
      let length = readlink("/proc/self/fd/\(descriptor)", &target, target.count)
      let path = String(decoding: target.prefix(max(0, length)), as: UTF8.self)
      return path.hasSuffix("/comm") || path.hasSuffix("/task")
    }
  }
}
