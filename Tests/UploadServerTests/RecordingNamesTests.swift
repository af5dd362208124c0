// Tests links that contain the time of a recording: their names, who may follow them, and that no name from a client
// reaches any other file.

import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import Recordings
import Testing

@testable import DiskFiles
@testable import ResumableServing
@testable import StreamServing
@testable import StreamStore
@testable import UploadServer

@Suite("Names with the time")
struct RecordingNamesTests {
  @Test("a pattern is a directory and a name, and anything else is refused")
  func patterns() {
    for good in [RecordingNames.standardPattern, "a/b", "{stream}/{part}", "x/%Y/%m/%d/{name}-%H%M%S", "a/100%%"] {
      #expect(RecordingNames(pattern: good) != nil, "\(good)")
    }
    for bad in [
      "", "a", "/a", "a/", "a//b", "../a", "a/../b", "./a", "-a/b", "a/.b", "{x}/a", "a/{name", "a/%", "a/%n", "a/%s",
      "a/b c",
      "a/\u{e4}", "a/b\u{0}", "a/b\\c", String(repeating: "a/", count: 20) + "b",
    ] { #expect(RecordingNames(pattern: bad) == nil, "\(bad)") }
  }

  @Test(
    "for any name of a stream, a link is in a directory of links, and differs from recordings",
    arguments: Seed.several(5))
  func hostile(_ seed: Seed) throws {
    var random = seed.generator
    let alphabet = Array("ab.-_~%/{}YmdHMS \u{1}\u{e4}")
    func text(_ length: Int) -> String {
      String((0..<length).map { _ in alphabet.randomElement(using: &random)! })  // not empty
    }
    for _ in 0..<500 {
      let id = text(Int.random(in: 1...12, using: &random))
      let path = "/" + text(Int.random(in: 0...120, using: &random)).replacing("%", with: "%25")
      let name = StreamName(path: path, streamID: StreamName.isValidID(id) ? id : "x", mediaType: "audio/wav")
      var sidecar = RecordingSidecar(file: name.final)
      (sidecar.stream, sidecar.started) = (name.streamID, "2026-11-22T10:11:12.345Z")
      let patterns = [
        RecordingNames.standardPattern, "{stream}/{name}", "{name}{part}/{stream}/%Y", "a/{stream}{name}",
      ]
      let names = try #require(RecordingNames(pattern: patterns.randomElement(using: &random)!))  // not empty
      let link = try #require(names.path(sidecar, name: name))
      let components = link.split(separator: "/", omittingEmptySubsequences: false)
      #expect(components.count == names.pattern.split(separator: "/").count, "\(seed) \(link)")
      for component in components {
        #expect(!component.isEmpty && component.first != "." && component.first != "-", "\(seed) \(link)")
        #expect(component.utf8.allSatisfy { $0 > 0x20 && $0 < 0x7F } && component.utf8.count <= 210, "\(seed) \(link)")
      }
      #expect(components.dropLast().allSatisfy { !$0.contains(".") } && link.hasSuffix(".wav"), "\(seed) \(link)")
    }
    var sidecar = RecordingSidecar(file: "k-a.wav")
    let name = StreamName(path: "/k.wav", streamID: "a", mediaType: nil)
    #expect(RecordingNames(pattern: "a/b")?.path(sidecar, name: name) == nil)
    (sidecar.stream, sidecar.started) = ("a", "2026-11-22T10:11:12.345Z")
    #expect(
      RecordingNames(pattern: RecordingNames.standardPattern)?.path(sidecar, name: name) == "k/2026-11-22T10-11-12Z.wav"
    )
  }

  private func link(_ directory: TemporaryDirectory, _ path: String) -> String? {
    var buffer = [CChar](repeating: 0, count: 200)
    let count = readlink("\(directory.path)/\(path)", &buffer, buffer.count)
    return count < 0 ? nil : String(decoding: buffer[..<count].map { UInt8(bitPattern: $0) }, as: UTF8.self)
  }

  @Test(
    "each split recording has a link, even with equal seconds; others only on request; removing the recording removes the link"
  )
  func links() throws {
    let directory = TemporaryDirectory()
    func serve(_ change: (inout UploadServer.Configuration) -> Void = { _ in }) throws -> TestServer {
      try TestServer(in: directory) {
        $0.split = RecordingSplit(size: 80 + 400)
        $0.split?.leastLength = 0
        change(&$0)
      }
    }
    func send(_ test: TestServer, _ id: String, samples: Int) throws {
      let client = try test.connect()
      try client.send(
        TestServer.head("/k.wav", id: id, type: "audio/wav", more: "Stream-Description: started=1763762567123\r\n"))
      try client.sendChunk(StreamedHead.all[0].bytes + [UInt8](repeating: 3, count: samples))
      try client.send("0\r\n\r\n")
      #expect(try client.answer().status == 201)
    }
    do {
      let test = try serve()
      try send(test, "a", samples: 1000)
      try send(test, "b", samples: 500)
      try send(test, "c", samples: 100)
      for name in ["k-a", "k-a~2", "k-a~3", "k-b", "k-b~2", "k-c"] {
        try waitUntil("\(name).sidecar is written") { directory.exists(name + ".sidecar") }
      }
    }
    let base = "k/2025-11-21T22-02-47Z"
    let found = (1...6).map { link(directory, $0 == 1 ? "\(base).wav" : "\(base)~\($0).wav") }
    // All of these streams began within one second.
    #expect(
      Set(found.compactMap(\.self))
        == ["../k-a.wav", "../k-a~2.wav", "../k-a~3.wav", "../k-b.wav", "../k-b~2.wav"], "\(found)")
    for path in (1...5).map({ $0 == 1 ? "\(base).wav" : "\(base)~\($0).wav" }) {
      let file = String(try #require(link(directory, path)).dropFirst(3))
      #expect(try directory.contents(path) == directory.contents(file))
      let sidecar = try RecordingSidecar(parsing: try directory.contents(String(file.dropLast(4)) + ".sidecar"))
      #expect(sidecar.link == path)
    }
    #expect(try RecordingVerification(directory: directory.path).run { _ in }.problems == 0)
    do {
      let test = try serve { $0.names = RecordingNames(pattern: "all/{stream}/%Y", includesWhole: true) }
      try send(test, "d", samples: 100)
      try waitUntil("the sidecar is written") { directory.exists("k-d.sidecar") }
    }
    #expect(link(directory, "all/d/2025.wav") == "../../k-d.wav")
    do {
      let test = try serve { $0.names = nil }
      try send(test, "e", samples: 1000)
      try waitUntil("the sidecar is written") { directory.exists("k-e.sidecar") }
    }
    #expect(try RecordingSidecar(parsing: directory.contents("k-e.sidecar")).link == nil)
  }

  @Test(
    "what another program has put at the name of a link stays, and the link has the next name",
    arguments: ["touch", "mkdir", "ln -s /nonexistent"])
  func taken(_ command: String) throws {
    let directory = TemporaryDirectory()
    try Command.run("sh", ["-c", "cd '\(directory.path)' && mkdir k && \(command) k/a.wav"])
    let test = try TestServer(in: directory) {
      $0.names = RecordingNames(pattern: "{name}/{stream}", includesWhole: true)
    }
    let client = try test.connect()
    try client.send(TestServer.head("/k.wav", id: "a", type: "audio/wav"))
    try client.sendChunk(StreamedHead.all[0].bytes + [3, 3, 3, 3])
    try client.send("0\r\n\r\n")
    #expect(try client.answer().status == 201)
    try waitUntil("the sidecar is written") { directory.exists("k-a.sidecar") }
    #expect(link(directory, "k/a~2.wav") == "../k-a.wav")
    #expect(link(directory, "k/a.wav") == (command.hasPrefix("ln") ? "/nonexistent" : nil))
    #expect(try RecordingSidecar(parsing: directory.contents("k-a.sidecar")).link == "k/a~2.wav")
  }

  @Test("no link is created or removed behind a link that an operator has put into the directory")
  func operatorsLink() throws {
    let (directory, outside) = (TemporaryDirectory(), TemporaryDirectory())
    try Command.run("mkdir", ["-p", "\(outside.path)/deep"])
    try Command.run("ln", ["-s", outside.path, "\(directory.path)/archive"])
    try Command.run("ln", ["-s", "\(outside.path)/deep", "\(directory.path)/wide"])
    try Command.run("mkdir", ["\(directory.path)/own"])
    let test = try TestServer(in: directory) {
      $0.names = RecordingNames(pattern: "{name}/{stream}", includesWhole: true)
    }
    for name in ["archive", "wide", "own", "new"] {
      let client = try test.connect()
      try client.send(TestServer.head("/\(name).wav", id: "a", type: "audio/wav"))
      try client.sendChunk(StreamedHead.all[0].bytes + [3, 3, 3, 3])
      try client.send("0\r\n\r\n")
      #expect(try client.answer().status == 201)
      try waitUntil("the sidecar is written") { directory.exists("\(name)-a.sidecar") }
    }
    #expect(link(directory, "own/a.wav") == "../own-a.wav" && link(directory, "new/a.wav") == "../new-a.wav")
    #expect(outside.names == ["deep"], "\(outside.names)")
    // The directory can only be removed if it is empty.
    #expect(rmdir("\(outside.path)/deep") == 0)
    for name in ["archive", "wide"] {
      let sidecar = try RecordingSidecar(parsing: directory.contents("\(name)-a.sidecar"))
      #expect(sidecar.link == nil, "nobody is led to a link that is not there")
    }
  }
}
