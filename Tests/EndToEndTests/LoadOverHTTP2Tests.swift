// `sluice load --http2` through Caddy and nginx: many streams on one connection, the effect of a cut on all of them,
// and the error without HTTP/2.

import CommandTesting
import EventLoops
import LoadReports
import NetworkTesting
import Testing
import UploadClient

@Suite(
  "A load test over HTTP/2",
  .enabled(if: FrontEnd.isInstalled, "nginx (package nginx-light) and caddy have to be installed"))
struct LoadOverHTTP2Tests {
  private let directory: TemporaryDirectory
  private let server: ServeProcess

  init() throws {
    directory = try TemporaryDirectory()
    // Caddy before 2.9 panics if an interim response arrives for a request that has just ended
    // (docs/resumable-uploads.md).
    server = try ServeProcess(directory.path, more: ["--durability", "none", "--proxied-interims", "0"])
  }

  private func load(
    _ frontEnd: FrontEnd, streams: Int, onEach: Int, duration: String = "10min", rate: String = "10kB",
    resumable: String = "always", more: [String] = []
  ) throws -> LoadProcess {
    try load(
      frontEnd.url, streams: streams, onEach: onEach, duration: duration, resumable: resumable,
      more: ["--ca-file", frontEnd.certificate, "--rate", rate] + more)
  }

  private func load(
    _ url: String, streams: Int, onEach: Int?, duration: String, resumable: String = "always", more: [String] = []
  ) throws -> LoadProcess {
    let sharing = onEach.map { ["--streams-per-connection", "\($0)"] } ?? []
    return try LoadProcess(
      url, ["--http2", "--streams", "\(streams)", "--duration", duration, "--seed", "1"] + sharing + more,
      resumable: resumable)
  }

  /// Waits until this number of streams has begun at the server.
  private func haveBegun(_ count: Int) throws {
    try server.output.wait(for: "\(count) streams") { events, _ in
      events.count { $0.event == "begun" } >= count ? () : nil
    }
  }

  @Test(
    "20 streams by 8 use three connections; after a kill of the front end, all continue over three others, and every byte is stored once"
  )
  func killed() throws {
    let frontEnd = try FrontEnd(.caddy, backend: server.address)
    let load = try load(
      frontEnd, streams: 20, onEach: 8, more: ["--roll-over-after", "200ms"])
    try haveBegun(20)
    #expect(try EstablishedConnections.count(at: frontEnd.address) == 3)
    try frontEnd.kill()
    try frontEnd.restart()
    // A stream between two requests has lost nothing, and uses the new connection with its next request.
    try load.progress("all streams again, over three connections") {
      $0.integer("interruptions") ?? 0 >= 1 && $0.integer("live") == 20 && $0.integer("connecting") == 0
        && (try? EstablishedConnections.count(at: frontEnd.address)) == 3
    }
    let report = try load.stop()
    #expect(report.totals.connects == 6)
    #expect(report.totals.streams.started == 20)
    #expect(report.totals.streams.failed == 0)
    #expect(report.totals.bytes.lost == 0)
    #expect(report.histograms[.resume].count >= 1)
    let stored = try StoredLoad.all(in: directory.path)
    #expect(stored.map(\.index).sorted() == Array(0..<20))
    #expect(stored.allSatisfy { $0.firstDifference() == nil })
    #expect(stored.reduce(0) { $0 + UInt64($1.bytes.count) } >= report.totals.bytes.acknowledged)
  }

  @Test(
    "a proxy that forwards five interim responses of a request: the rest is acknowledged at its end, and stored when it was due"
  )
  func ended() throws {
    let frontEnd = try FrontEnd(.caddy, backend: server.address)
    let load = try load(frontEnd, streams: 6, onEach: 3, duration: "2s")
    let report = try load.report(code: 0)
    #expect(report.totals.streams.finished == 6)
    #expect(report.totals.messages.acknowledged == report.totals.messages.due)
    #expect(report.histograms[.acknowledged].count == report.totals.messages.due)
    // It is unknown how much libcurl and HTTP/2 buffer, so the report omits the figure.
    #expect(report.histograms[.accepted].isEmpty)
    #expect(load.output.text.contains { $0.hasPrefix("accepted") && $0.hasSuffix("not measured over HTTP/2") })
    let stored = try StoredLoad.all(in: directory.path)
    #expect(stored.allSatisfy { $0.firstDifference() == nil })
    #expect(stored.reduce(0) { $0 + UInt64($1.bytes.count) } == report.totals.bytes.offered)
  }

  @Test("--drop-every resets streams on a persistent connection")
  func dropped() throws {
    let frontEnd = try FrontEnd(.caddy, backend: server.address)
    let load = try load(
      frontEnd, streams: 6, onEach: 3,
      more: ["--roll-over-after", "200ms", "--drop-every", "300ms"])
    try load.progress("twelve cuts") { $0.integer("interruptions_on_purpose") ?? 0 >= 12 }
    let report = try load.stop()
    #expect(report.totals.connects == 2)
    // A loaded proxy may answer a later one with an error, but this test is about the connection.
    #expect(report.totals.errors["connection-lost"] == nil, "\(report.totals.errors)")
    let stored = try StoredLoad.all(in: directory.path)
    #expect(!stored.isEmpty && stored.allSatisfy { $0.firstDifference() == nil })
  }

  @Test(
    "a server that accepts four streams per connection, of twenty that share one: all run, over more connections"
  )
  func limited() throws {
    let frontEnd = try FrontEnd(.nginx, backend: server.address, changes: .init(concurrentStreams: 4))
    let load = try load(frontEnd, streams: 20, onEach: 20, resumable: "never")
    try haveBegun(20)
    #expect(try EstablishedConnections.count(at: frontEnd.address) >= 5)
    let report = try load.stop()
    #expect(report.totals.interruptions.total == 0)
    #expect(report.totals.errorCount == 0)
  }

  @Test(
    "a server with only HTTP/1.1 causes an error at once, and nothing is streamed over it", arguments: [true, false])
  func http1Only(isSecure: Bool) throws {
    let frontEnd = try FrontEnd(.nginx, backend: server.address, changes: .init(speaksHTTP1Only: true))
    let load = try load(
      isSecure ? frontEnd.url : server.url, streams: 2, onEach: 1, duration: "10min", resumable: "never",
      more: ["--ca-file", frontEnd.certificate])
    let report = try load.report(code: 76)
    #expect(load.output.text.contains { $0.hasPrefix("ended early: the server does not support HTTP/2: ") })
    #expect(report.totals.errors["http2"] != nil)
    #expect(server.events("ended").isEmpty)
  }

  @Test(
    "without TLS: one stream per connection, request after request; several if libcurl supports it, and else the reason"
  )
  func plain() throws {
    let frontEnd = try FrontEnd(.caddy, backend: server.address, changes: .init(isPlain: true))
    let url = "http://\(frontEnd.address)"
    let shared = try load(url, streams: 2, onEach: nil, duration: "500ms", resumable: "never")
    if let library = UploadSession.cannotReusePlainHTTP2 {
      #expect(try shared.exitCode() == 64)
      #expect(shared.output.text.contains { $0.contains(library) && $0.contains("--streams-per-connection 1") })
    } else {
      #expect(try shared.report(code: 0).totals.connects == 1)
    }
    let load = try load(url, streams: 3, onEach: 1, duration: "1s", more: ["--roll-over-after", "200ms"])
    let report = try load.report(code: 0)
    #expect(report.totals.messages.acknowledged == report.totals.messages.due)
    #expect(report.totals.interruptions.total == 0)
  }

  @Test(
    "a stream that the server does not read delays no others on its connection, and does not make the loop spin"
  )
  func unread() throws {
    // The progress of each of the others, in megabytes.
    let megabytes = try EventLog<Int>()
    let deaf = try ScriptedServer(receiveBuffer: 4096) { connection, _ in
      let head = try connection.head()
      if head["Stream-ID"]?.hasSuffix("-0") == true {
        _ = connection.waitForEnd(limit: .seconds(60))
        return
      }
      var count = 0
      while let piece = try connection.chunk() {
        for _ in (count >> 20)..<((count + piece.count) >> 20) { megabytes.append(1) }
        count += piece.count
      }
    }
    let frontEnd = try FrontEnd(.nginx, backend: "127.0.0.1:\(deaf.port)")
    let load = try load(
      frontEnd, streams: 4, onEach: 4, rate: "4MB", resumable: "never", more: ["--buffer", "64MiB"])
    try megabytes.wait("36 megabytes of three streams") { $0.count >= 36 ? () : nil }
    #expect(try EstablishedConnections.count(at: frontEnd.address) == 1)
    let report = try load.stop()
    #expect(report.totals.interruptions.total == 0)
    #expect(report.totals.bytes.sent < report.totals.bytes.offered)
    // Processor time, independent of other processes: a twentieth of one, or half of one if the loop spins.
    #expect(report.generator.busiestLoop < 0.25)
  }
}
