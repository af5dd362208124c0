// The limits of the process, to the descriptor. Each test that changes them has its own process.

import Glibc
import NetworkTesting
import Testing
import UploadClient

@testable import LoadTesting

@Suite("The limits of the process")
struct ProcessLimitsTests {
  private static func limits() -> rlimit {
    var limit = rlimit()
    getrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit)
    return limit
  }

  private static func set(_ soft: Int, _ hard: Int) {
    var limit = rlimit(rlim_cur: rlim_t(soft), rlim_max: rlim_t(hard))
    setrlimit(__rlimit_resource_t(RLIMIT_NOFILE.rawValue), &limit)
  }

  /// The number of open descriptors.
  private static var openCount: Int { (0..<Int32(4096)).count { fcntl($0, F_GETFD) >= 0 } }

  private static func check(_ condition: Bool, _ claim: String) throws {
    if !condition { throw TestFailure(claim) }
  }

  private static func refusal(_ needed: Int) -> LoadError? {
    do throws(LoadError) {
      try ProcessLimits.reserve(descriptors: needed)
      return nil
    } catch {
      return error
    }
  }

  @Test("the soft limit is raised if necessary, and a hard limit that is too low by one is reported")
  func reserve() async {
    await #expect(processExitsWith: .success) {
      /// What does not hold; nil if all does.
      func failure(_ open: Int) -> String? {
        ProcessLimitsTests.set(open + 100, 1000)
        // As many as there are.
        if ProcessLimitsTests.refusal(100) != nil { return "100 are there" }
        if ProcessLimitsTests.limits().rlim_cur != open + 100 { return "the limit is not raised" }
        if ProcessLimitsTests.openCount != open { return "nothing stays open" }
        let missing = ProcessLimitsTests.refusal(1001 - open)
        if missing != .tooFewDescriptors(needed: 1001, limit: 1000) { return "one is missing" }
        if ProcessLimitsTests.refusal(1000 - open) != nil { return "all that are allowed" }
        return ProcessLimitsTests.limits().rlim_cur == 1000 ? nil : "the limit is raised"
      }
      // Other threads of the process may open or close a descriptor meanwhile. What stays open each time is a failure.
      var failures: [String] = []
      while failures.count < 10, let failure = failure(ProcessLimitsTests.openCount) { failures.append(failure) }
      try ProcessLimitsTests.check(failures.count < 10, "\(failures)")
      // The descriptors cannot be counted then, so only the standard streams are assumed.
      ProcessLimitsTests.set(0, 103)
      try ProcessLimitsTests.check(
        ProcessLimitsTests.refusal(101) == .tooFewDescriptors(needed: 104, limit: 103), "one is missing again")
      try ProcessLimitsTests.check(ProcessLimitsTests.refusal(100) == nil, "the standard streams")
    }
  }

  @Test("a load test needs a descriptor for each connection, and some more")
  func needed() async {
    await #expect(processExitsWith: .success) {
      ProcessLimitsTests.set(60, 60)
      func needed(_ change: (inout LoadConfiguration) -> Void) -> Int? {
        var configuration = LoadConfiguration(request: UploadRequest(url: "https://127.0.0.1:9/"))
        configuration.streams = 1000
        change(&configuration)
        // Other threads of the process may open or close a descriptor meanwhile.
        for _ in 0..<10 {
          let open = ProcessLimitsTests.openCount
          do throws(LoadError) { _ = try LoadTest(configuration) } catch {
            guard case .tooFewDescriptors(let needed, 60) = error else { return nil }
            if ProcessLimitsTests.openCount == open { return needed - open }
          }
        }
        return nil
      }
      let usual = needed { $0.threads = 3 }
      try ProcessLimitsTests.check(usual == 1000 + 20 + 48 + 64, "\(usual ?? 0) for 1000 streams")
      let part = needed { $0.part = (2, 3) }
      try ProcessLimitsTests.check(part == 333 + 6 + 16 + 64, "\(part ?? 0) for a part")
      let shared = needed {
        ($0.threads, $0.streamsPerConnection) = (3, 30)
        $0.request.httpVersion = .http2
      }
      // 34 connections, and one more for each other thread.
      try ProcessLimitsTests.check(shared == 36 + 0 + 48 + 64, "\(shared ?? 0) for shared connections")
      let arriving = needed {
        $0.sendsRequestPerMessage = true
        $0.arrivals = .init(rate: 5)
        ($0.threads, $0.streams) = (4, 3)
        $0.arrivals?.maximumUnderWay = 600
      }
      try ProcessLimitsTests.check(arriving == 600 + 12 + 64 + 64, "\(arriving ?? 0) for arrivals")
      let few = needed {
        $0.sendsRequestPerMessage = true
        $0.arrivals = .init(rate: 5)
        $0.arrivals?.maximumUnderWay = 600
        $0.maximumConnectionCount = 50
      }
      try ProcessLimitsTests.check(few == 50 + 1 + 16 + 64, "\(few ?? 0) for a limited number of connections")
    }
  }

  @Test("a process that has no standard input can use a file as a body")
  func descriptorZero() async {
    await #expect(processExitsWith: .success) {
      let directory = try TemporaryDirectory()
      let path = try directory.write("body", "abc")
      close(0)
      let body = try BodyBytes(.file(path), seed: 0)
      try ProcessLimitsTests.check(body.bytes(stream: 0, at: 1, count: 3) == Array("bca".utf8), "its bytes")
    }
  }

  @Test("the number of ports is read from two numbers, and is otherwise the kernel's default")
  func ports() throws {
    let directory = try TemporaryDirectory()
    for (text, count) in [
      ("1000\t1999\n", 1000), ("5 5", 1), ("7\t8", 2), ("9 8\n", 28_232), ("1\n", 28_232), ("1 2 3\n", 28_232),
      ("a b\n", 28_232), ("", 28_232),
    ] {
      let path = try directory.write("ports", text)
      #expect(ProcessLimits.portCount(in: path) == count, "\(text)")
    }
    #expect(ProcessLimits.portCount(in: directory.path + "/none") == 28_232)
    let path = try directory.write("ports", "1 2\n")
    _ = ProcessLimits.portCount(in: path)
    let isOpen = (0..<1024).contains { number in
      var target = [CChar](repeating: 0, count: 4096)
      guard readlink("/proc/self/fd/\(number)", &target, 4095) > 0 else { return false }
      return String(decoding: target.prefix { $0 != 0 }.map(UInt8.init(bitPattern:)), as: UTF8.self) == path
    }
    #expect(!isOpen)
  }

  @Test("the processor time and the memory are those of getrusage")
  func usage() {
    func now() -> rusage {
      var usage = rusage()
      getrusage(__rusage_who_t(RUSAGE_SELF.rawValue), &usage)
      return usage
    }
    #expect(ProcessLimits.nanoseconds(timeval(tv_sec: 3, tv_usec: 5)) == 3_000_005_000)
    let (before, usage, after) = (now(), ProcessLimits.usage, now())
    #expect(usage.user >= ProcessLimits.nanoseconds(before.ru_utime))
    #expect(usage.user <= ProcessLimits.nanoseconds(after.ru_utime))
    #expect(usage.system >= ProcessLimits.nanoseconds(before.ru_stime))
    #expect(usage.system <= ProcessLimits.nanoseconds(after.ru_stime))
    #expect(usage.user + usage.system > 0)
    #expect(usage.maximumResident >= UInt64(before.ru_maxrss) * 1024)
    #expect(usage.maximumResident <= UInt64(after.ru_maxrss) * 1024)
  }
}
