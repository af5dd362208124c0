// Tests what a server does with recordings and uploads that an earlier server has left, and when they expire.

import EventLoops
import Glibc
import NetworkTesting
import Testing
import UploadServer

@Suite("Recordings of an earlier server")
struct LeftRecordingTests: ClosedRecordingSuite {
  @Test(
    "after a restart, a recording is closed under the name in its record, or else under a name derived from its contents"
  )
  func leftBehind() throws {
    let directory = TemporaryDirectory()
    do {
      let test = try server(directory, finishAfter: .seconds(60))
      try test.plain("/a.txt", id: "a", Array("abc".utf8))
      _ = try test.create("/b.txt", ["Stream-ID: b"])
    }
    for (name, bytes) in [("c-1.part", Self.header), ("d-1.part", [1, 2]), (".e.part", [1]), ("-f.part", [1])] {
      try directory.write(name, bytes)
    }
    let test = try server(directory)
    _ = try test.events.wait(.closed, count: 3)
    #expect(try directory.text("a-a.txt") == "abc")
    #expect(try directory.contents("c-1.wav") == Self.header(dataLength: 0) && directory.contents("d-1.bin") == [1, 2])
    #expect(directory.exists(".e.part") && directory.exists("-f.part"))
  }

  @Test("a server removes its records of a stream whose recordings another program has removed, and of no other")
  func forgotten() throws {
    let directory = TemporaryDirectory()
    do {
      let test = try server(directory) { $0.uploads.maximumAge = .milliseconds(500) }
      for id in ["a", "b", "c"] { try test.plain("/t.txt", id: id, Array("abc".utf8)) }
      _ = try test.events.wait(.closed, count: 3)
    }
    func names() throws -> Set<String> { Set(try ScratchListing(directory.path + "/.parts").names) }
    #expect(try names() == ["t-a", "t-b", "t-c"])
    func remove(_ id: String) { for suffix in ["txt", "gaps"] { unlink("\(directory.path)/t-\(id).\(suffix)") } }
    remove("a")
    let test = try server(directory) { $0.uploads.maximumAge = .milliseconds(500) }
    try waitUntil("t-a is forgotten") { try names() == ["t-b", "t-c"] }
    // A later search finds this one.
    remove("c")
    try waitUntil("t-c is forgotten") { try names() == ["t-b"] }
    test.stop()
    #expect(try names() == ["t-b"] && directory.text("t-b.txt") == "abc")
  }

  @Test("a recording that a newer server finds stays with its upload")
  func leftToUpload() throws {
    let directory = TemporaryDirectory()
    var location = ""
    do {
      let test = try server(directory, finishAfter: .seconds(60))
      location = try test.create("/t.txt", ["Stream-ID: a", "Upload-Length: 6"])
      try test.append(location, at: 0, "abc")
    }
    let test = try server(directory)
    try test.plain(id: "b", Array("x".utf8))
    _ = try test.events.wait(.closed)
    try test.append(location, at: 3, completes: true, "def")
    #expect(try directory.text("t-a.txt") == "abcdef")
  }

  @Test(
    "uploads of an earlier server expire by the current configuration, and by the running time of servers, not the clock"
  )
  func ages() throws {
    let directory = TemporaryDirectory()
    var locations: [String] = []
    do {
      let test = try server(directory)
      for id in ["a", "b"] {
        locations.append(try test.create("/t.txt", ["Stream-ID: \(id)", "Upload-Length: 6"]))
        try test.append(locations[locations.count - 1], at: 0, "abc")
      }
    }
    // The same happens after a week without a server, or when the clock is set.
    for location in locations {
      let token = location.split(separator: "/").last ?? ""
      try Command.run("touch", ["-d", "2001-01-01", "\(directory.path)/.uploads/\(token).upload"])
    }
    do {
      let test = try server(directory)
      for location in locations { #expect(try test.connect().head(location)["upload-offset"] == "3") }
    }
    let test = try server(directory) { $0.uploads.maximumAge = .milliseconds(300) }
    #expect(try test.events.wait(.expired, count: 2).offset == 3)
    #expect(directory.names.filter { !$0.hasPrefix(".") } == [])
  }

  @Test("the idle time of an upload adds up over restarts")
  func agesAddUp() throws {
    var age = Duration.seconds(2)
    // On a busy machine, one of the servers may run for the whole time, which then proves nothing.
    while try longestRun(untilExpiryAt: age) >= age {
      age = age * 4
      try #require(age < .seconds(60), "each server ran for longer than the maximum age")
    }
  }

  /// Restarts a server until an upload that no request uses has expired. Returns the longest time that one of the
  /// servers has run.
  private func longestRun(untilExpiryAt maximumAge: Duration) throws -> Duration {
    let directory = TemporaryDirectory()
    let start = MonotonicInstant.now
    var longest = Duration.zero
    func run(_ body: (TestServer) throws -> Void) throws {
      let start = MonotonicInstant.now
      let test = try server(directory) { $0.uploads.maximumAge = maximumAge }
      try body(test)
      test.stop()
      longest = max(longest, MonotonicInstant.now - start)
    }
    try run {
      let location = try $0.create("/t.txt", ["Stream-ID: a", "Upload-Length: 6"])
      try $0.append(location, at: 0, "abc")
    }
    // Each server runs for about 0.3 s.
    var runs = 0
    var isOver = false
    while !isOver {
      try run { test in
        runs += 1
        try test.plain(id: "r\(runs)", Array("x".utf8))
        _ = try test.events.wait(.closed)
        isOver = test.events.all.contains { $0.kind == .expired }
      }
      // A busy machine makes a run longer, but not the part of it that counts.
      try #require(isOver || runs < 500, "it never expires")
    }
    #expect(MonotonicInstant.now - start >= maximumAge, "it expires too early")
    return longest
  }
}
