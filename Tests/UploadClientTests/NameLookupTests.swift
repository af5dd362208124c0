// How many name lookups may keep running, against a simple model of their threads.

import EventLoops
import Glibc
import NetworkTesting
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

  @Test("threads are counted by their name, without the one that counts")
  func threads() throws {
    let counts = try EventLog<Int?>()
    let mayEnd = try EventCounter()
    let descriptor = mayEnd.descriptor
    // Not the name of other tests' threads.
    let name = "test-lookups"
    var threads: [NamedThread] = []
    for number in 0..<4 {
      threads.append(
        try NamedThread(name) {
          counts.append(NameLookups.threadCount())
          _ = waitUntilReadable(descriptor)
        })
      try counts.wait("the count") { $0.count > number ? true : nil }
    }
    mayEnd.signal()
    for thread in threads { thread.join() }
    withExtendedLifetime(mayEnd) {}
    #expect(counts.all == [0, 1, 2, 3])
  }

  @Test("threads can be counted in a process without standard input")
  func withoutStandardInput() async {
    await #expect(processExitsWith: .success) {
      close(0)
      let isCounted = NameLookups.threadCount() != nil
      exit(isCounted ? EXIT_SUCCESS : EXIT_FAILURE)
    }
  }

  @Test("an abandoned lookup counts once, and one that has ended does not")
  func abandoned() {
    let lookups = NameLookups { 0 }
    for count in 1..<NameLookups.limit {
      #expect(lookups.begin() && lookups.begin())
      lookups.end()
      lookups.abandon()
      #expect(lookups.abandoned == count)
    }
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
