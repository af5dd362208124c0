// Streams that tasks start, write, observe and stop.

import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import Testing

@testable import LiveStreaming

@Suite("A live stream from a task", .serialized, .timeLimit(.minutes(5)))
struct LiveStreamTaskTests {
  private let pattern = OffsetPattern()

  // MARK: Writing

  @Test("the written bytes arrive byte for byte, and the summary agrees")
  func written() async throws {
    let server = try StreamServer()
    let session = try UploadSession()
    let pattern = pattern
    let summary = try await session.withStream(to: server.url + "/s", contentType: "text/plain") { stream in
      try await stream.write("Grüße\n")
      for start in stride(from: 0, to: 3_000_000, by: 50_000) {
        try await stream.write(patternBytes(pattern, start, 50_000))
      }
      try await stream.write("end".utf8.prefix(2))
      try await stream.write("")
    }
    #expect(summary.error == nil && summary.progress.captured == 3_000_010)
    #expect(
      try server.directory.contents(storedName(summary.response))
        == Array("Grüße\n".utf8) + patternBytes(pattern, 0, 3_000_000) + Array("en".utf8))
  }

  @Test("the bytes of one call stay together, with any other writers", arguments: Seed.several(2))
  func together(seed: Seed) async throws {
    let server = try StreamServer()
    let session = try UploadSession()
    var configuration = LiveStreamConfiguration(to: server.url + "/s", contentType: "text/plain")
    // Smaller than the written amount, so that writers wait for space and for each other.
    configuration.buffer = .bytes(65_536)
    let summary = try await session.withStream(configuration: configuration) { stream in
      try await withThrowingTaskGroup(of: Void.self) { group in
        for writer in 0..<8 {
          group.addTask {
            var random = SplitMix64(state: seed.value &+ UInt64(writer))
            for number in 0..<20 {
              let filler = String(repeating: "x", count: random.size(upTo: 40_000))
              try await stream.write("\(writer) \(number) \(filler)\n")
            }
          }
        }
        try await group.waitForAll()
      }
    }
    let text = String(decoding: try server.directory.contents(storedName(summary.response)), as: UTF8.self)
    var next = [Int](repeating: 0, count: 8)
    for line in text.split(separator: "\n") {
      let words = line.split(separator: " ")
      let writer = try #require(Int(words[0]))
      #expect(words.count == 3 && Int(words[1]) == next[writer] && words[2].allSatisfy { $0 == "x" })
      next[writer] += 1
    }
    #expect(next.allSatisfy { $0 == 20 })
  }

  @Test("a write waits while the buffer is full, and continues when the server acknowledges")
  func waits() async throws {
    let mayRead = try EventCounter()
    let descriptor = mayRead.descriptor
    let server = try ScriptedServer(receiveBuffer: 16_384) { connection, _ in
      _ = try connection.head()
      _ = waitUntilReadable(descriptor)
      _ = try connection.body()
      try connection.respond("200 OK")
    }
    let session = try UploadSession()
    var configuration = LiveStreamConfiguration(to: server.url, contentType: "text/plain")
    (configuration.resumable, configuration.retention) = (.never, 0)
    configuration.buffer = .bytes(65_536)
    configuration.request.socket.sendBuffer = 16_384
    let written = try EventLog<Int>()
    let summary = try await session.withStream(configuration: configuration) { stream in
      try await withThrowingTaskGroup(of: Void.self) { group in
        group.addTask {
          for _ in 0..<100 {
            try await stream.write([UInt8](repeating: 1, count: 20_000))
            written.append(1)
          }
        }
        // Until nothing has moved for some time, which means that the writer is waiting.
        var (before, rests) = (-1, 0)
        while rests < 20 {
          try await Task.sleep(for: .milliseconds(10))
          let now = written.all.count
          rests = now == before ? rests + 1 : 0
          before = now
        }
        #expect(before < 50)
        mayRead.signal()
        try await group.waitForAll()
      }
    }
    #expect(written.all.count == 100 && summary.progress.captured == 2_000_000)
  }

  private struct Stop: Error {}

  @Test("an error of the body stops the stream and is thrown, and a retained writer then throws")
  func bodyThrows() async throws {
    let server = try StreamServer()
    let session = try UploadSession()
    let kept = Lock<LiveStreamWriter?>(nil)
    await #expect(throws: Stop.self) {
      try await session.withStream(to: server.url + "/s") { stream in
        kept.withLock { $0 = stream }
        try await stream.write("one")
        throw Stop()
      }
    }
    let writer = try #require(kept.withLock { $0 })
    let error = await #expect(throws: LiveStreamError.self) { try await writer.write("two") }
    #expect(error?.kind == .cancelled)
  }

  @Test("cancelling a write that comes after the end of the closure stops the stream")
  func lateWrite() async throws {
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      _ = connection.waitForEnd()
    }
    let session = try UploadSession()
    let kept = AsyncStream.makeStream(of: LiveStreamWriter.self)
    let task = Task {
      try await session.withStream(to: server.url) { stream in
        kept.continuation.yield(stream)
      }
    }
    for await writer in kept.stream {
      try await waitUntil("the end of the source") { writer.source.writeAtOnce([]) == nil }
      let late = Task { try await writer.write("late") }
      // The other one is the call of `withStream`.
      try await waitUntil("the wait of the write") { writer.operation.waiterCount == 2 }
      late.cancel()
      let error = await #expect(throws: LiveStreamError.self) { try await late.value }
      #expect(error?.kind == .cancelled)
      break
    }
    let error = await #expect(throws: LiveStreamError.self) { try await task.value }
    #expect(error?.kind == .cancelled)
  }

  @Test("a server that refuses the stream ends the writes, with its reason")
  func refused() async throws {
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      try connection.respond("410 Gone", ["Connection: close"])
    }
    let session = try UploadSession()
    let error = await #expect(throws: LiveStreamError.self) {
      try await session.withStream(to: server.url) { stream in
        while true { try await stream.write([UInt8](repeating: 0, count: 100_000)) }
      }
    }
    #expect(error?.kind == .refused)
  }

  @Test(
    "cancelling the task stops the stream: in a write that waits, between writes, in a sleep, or after the last one",
    arguments: ["full", "between", "throws", "end"])
  func cancelled(when: String) async throws {
    let server = try ScriptedServer(receiveBuffer: 16_384) { connection, _ in
      _ = try connection.head()
      _ = connection.waitForEnd()
    }
    let session = try UploadSession()
    let reached = AsyncStream.makeStream(of: Void.self)
    let task = Task {
      try await session.withStream(to: server.url) { stream in
        try await stream.write("begin")
        for await event in stream.events {
          if case .connected = event { break }
        }
        reached.continuation.yield()
        switch when {
        case "full": while true { try await stream.write([UInt8](repeating: 0, count: 1 << 20)) }
        case "between": while !Task.isCancelled { try? await Task.sleep(for: .seconds(60)) }
        case "throws": try await Task.sleep(for: .seconds(60))
        default: return
        }
      }
    }
    for await _ in reached.stream { break }
    task.cancel()
    let error = await #expect(throws: LiveStreamError.self) { try await task.value }
    #expect(error?.kind == .cancelled)
  }

  // MARK: Sequences

  private struct Countdown: AsyncSequence, AsyncIteratorProtocol, Sendable {
    var left: Int
    var fails = false
    func makeAsyncIterator() -> Countdown { self }
    mutating func next() async throws -> UInt8? {
      if left == 0, fails { throw Stop() }
      if left == 0 { return nil }
      left -= 1
      return UInt8(truncatingIfNeeded: left)
    }
  }

  @Test("a sequence of bytes, or of pieces, arrives byte for byte")
  func sequences() async throws {
    let server = try StreamServer()
    let session = try UploadSession()
    let bytes = try await session.stream(Countdown(left: 40_000), to: server.url + "/bytes").value
    #expect(
      try server.directory.contents(storedName(bytes.response))
        == (0..<40_000).reversed().map { UInt8(truncatingIfNeeded: $0) })
    let pattern = pattern
    let pieces = AsyncStream { continuation in
      for number in 0..<50 { continuation.yield(patternBytes(pattern, number * 3000, 3000)[...]) }
      continuation.finish()
    }
    let summary = try await session.stream(pieces, to: server.url + "/pieces").value
    #expect(try server.directory.contents(storedName(summary.response)) == patternBytes(pattern, 0, 150_000))
  }

  @Test("a sequence that fails ends the stream with its error, after the earlier bytes")
  func sequenceFails() async throws {
    let server = try StreamServer()
    let session = try UploadSession()
    let stream = try session.stream(Countdown(left: 1000, fails: true), to: server.url + "/s")
    let error = await #expect(throws: LiveStreamError.self) { try await stream.value }
    #expect(error?.kind == .source && error?.description.contains("Stop") == true)
    var last: StreamSummary?
    for await case .ended(let summary) in stream.events { last = summary }
    #expect(last?.progress.acknowledged == 1000)
  }

  /// A sequence that never ends, and whether its elements are still requested.
  private func endless() -> (bytes: AsyncStream<UInt8>, isStopped: AsyncStream<Void>) {
    let stopped = AsyncStream.makeStream(of: Void.self)
    let bytes = AsyncStream.makeStream(of: UInt8.self)
    bytes.continuation.yield(65)
    bytes.continuation.onTermination = { _ in
      withExtendedLifetime(bytes.continuation) {}
      stopped.continuation.finish()
    }
    return (bytes.stream, stopped.stream)
  }

  @Test("finish ends an endless sequence, and the server confirms the bytes so far")
  func finish() async throws {
    let server = try StreamServer()
    let session = try UploadSession()
    let (bytes, isStopped) = endless()
    let stream = try session.stream(bytes, to: server.url + "/s")
    for await event in stream.events {
      if case .acknowledged = event { break }
    }
    stream.finish()
    #expect(try await stream.value.progress.captured == 1)
    for await _ in isStopped {}
  }

  @Test(
    "cancel, the end of an awaiting task, and the last release stop the stream and its source",
    arguments: ["cancel", "task", "drop"])
  func stops(how: String) async throws {
    let server = try StreamServer()
    let session = try UploadSession()
    let (bytes, isStopped) = endless()
    var stream = Optional(try session.stream(bytes, to: server.url + "/s"))
    let operation = WeakReference(try #require(stream).operation)
    switch how {
    case "cancel":
      stream?.cancel()
      _ = try? await stream?.value
    case "task":
      let task = Task { [stream] in try await stream?.value }
      task.cancel()
      let error = await #expect(throws: LiveStreamError.self) { try await task.value }
      #expect(error?.kind == .cancelled)
    default: break
    }
    stream = nil
    // The test waits for its end.
    for await _ in isStopped {}
    try await waitUntil("the release of the stream") { operation.object == nil }
  }

  /// Who waits for the second element.
  private final class Waiter: Sendable {
    let continuation = Lock<UnsafeContinuation<Void, Never>?>(nil)
  }

  /// A sequence that waits for its second element, even if its task is cancelled.
  private struct Stubborn: AsyncSequence, AsyncIteratorProtocol, Sendable {
    let waiter: Waiter
    var count = 0
    func makeAsyncIterator() -> Stubborn { self }
    mutating func next() async -> UInt8? {
      count += 1
      guard count > 1 else { return 65 }
      await withUnsafeContinuation { (continuation: UnsafeContinuation<Void, Never>) in
        waiter.continuation.withLock { $0 = continuation }
      }
      return nil
    }
  }

  @Test("a stream ends on request although its sequence ignores the cancellation")
  func stubborn() async throws {
    let server = try StreamServer()
    let session = try UploadSession()
    let waiter = Waiter()
    let stream = try session.stream(Stubborn(waiter: waiter), to: server.url + "/s")
    for await event in stream.events {
      if case .acknowledged = event { break }
    }
    try await waitUntil("the wait for the second element") { waiter.continuation.withLock { $0 != nil } }
    stream.finish()
    #expect(try await stream.value.progress.acknowledged == 1)
    waiter.continuation.withLock { $0.take() }?.resume()
  }

  // MARK: Observers

  @Test("progress is published while somebody observes it, in steps of its interval, and again for a later observer")
  func progress() async throws {
    let server = try StreamServer()
    let session = try UploadSession()
    let (bytes, _) = endless()
    let stream = try session.stream(bytes, to: server.url + "/s")
    for _ in 0..<2 {
      // The first loop begins another observation, which must not add values.
      var other: Task<Void, Never>?
      var times: [Duration] = []
      for await progress in stream.progress {
        times.append(progress.elapsed)
        if times.count == 1 { other = Task { for await _ in stream.progress {} } }
        if times.count == 4 { break }
      }
      // The first one may be from an earlier observation.
      let steps = zip(times.dropFirst(), times.dropFirst(2)).map { $1 - $0 }
      #expect(steps.allSatisfy { $0 >= StreamOperation.progressInterval }, "\(times)")
      other?.cancel()
      await other?.value
      try await waitUntil("the end of the observations") { !stream.operation.progress.isObserved }
      // Longer than the interval, so that the next observer has to begin it again. It would also find it running.
      try await Task.sleep(for: StreamOperation.progressInterval * 1.5)
    }
    stream.cancel()
    var last: StreamProgress?
    for await progress in stream.progress { last = progress }
    #expect(last != nil)
  }

  @Test(
    "events reach several observers, one that leaves early, and one that comes after the end; observers are optional")
  func observers() async throws {
    let server = try StreamServer()
    let session = try UploadSession()
    _ = try await session.stream(Countdown(left: 10), to: server.url + "/nobody").value
    let (bytes, _) = endless()
    let stream = try session.stream(bytes, to: server.url + "/s")
    // The first observer gets all events from the start, however late it begins.
    var first: [String] = []
    for await event in stream.events {
      first.append(event.kind)
      if case .acknowledged = event { break }
    }
    #expect(first.first == "connecting" && first.last == "acknowledged" && !first.contains("missed"))
    let ready = AsyncStream.makeStream(of: Void.self)
    let observers = (0..<4).map { number in
      let events = stream.events
      return Task {
        var iterator = events.makeAsyncIterator()
        ready.continuation.yield()
        var seen: [String] = []
        while let event = await iterator.next() { seen.append(event.kind) }
        return seen
      }
    }
    var count = 0
    for await _ in ready.stream {
      count += 1
      if count == observers.count { break }
    }
    // It leaves in the middle, and no other does.
    observers[0].cancel()
    _ = await observers[0].value
    stream.finish()
    _ = try await stream.value
    for observer in observers.dropFirst() { #expect(await observer.value.last == "ended") }
    var late: [String] = []
    for await event in stream.events { late.append(event.kind) }
    #expect(late == ["ended"])
  }

  @Test("a slow observer receives the number of missed events, and the last one")
  func slow() async throws {
    let server = try StreamServer()
    let session = try UploadSession()
    let source = try PushedSource()
    var configuration = LiveStreamConfiguration(to: server.url + "/s", contentType: "text/plain")
    configuration.progressInterval = .milliseconds(1)
    let stream = try session.stream(source, configuration: configuration)
    var iterator = stream.events.makeAsyncIterator()
    _ = await iterator.next()
    // Another one receives enough of them.
    let count = 2 * StreamOperation.eventLimit
    var seen = 0
    for await _ in stream.events {
      seen += 1
      if seen == count { break }
    }
    stream.finish()
    _ = try await stream.value
    guard case .missed(let missed)? = await iterator.next() else {
      Issue.record("nothing was missed")
      return
    }
    var (rest, last) = (0, LiveStreamEvent?.none)
    while let event = await iterator.next() { (rest, last) = (rest + 1, event) }
    #expect(missed >= count - StreamOperation.eventLimit && rest == StreamOperation.eventLimit)
    if case .ended? = last {} else { Issue.record("\(String(describing: last))") }
  }

  @Test("an observed stream lives while its events are observed, without another reference")
  func eventsKeep() async throws {
    let server = try StreamServer()
    let session = try UploadSession()
    var last: LiveStreamEvent?
    for await event in try session.stream(Countdown(left: 5000), to: server.url + "/s").events { last = event }
    guard case .ended(let summary)? = last else {
      Issue.record("\(String(describing: last))")
      return
    }
    #expect(summary.error == nil && summary.progress.acknowledged == 5000)
  }

  // MARK: Sessions

  @Test(
    "closing a session ends its streams and uploads as cancelled, in every state",
    arguments: ["streaming", "full", "pause", "suspended"])
  func close(when: String) async throws {
    let server = try ScriptedServer(receiveBuffer: 16_384) { connection, _ in
      _ = try connection.head()
      _ = connection.waitForEnd()
    }
    let local = try TemporaryDirectory()
    let file = try local.write("film", [UInt8](repeating: 1, count: 500_000))
    let url = when == "pause" ? "http://127.0.0.1:\(try freePort())/" : server.url
    let session = try UploadSession()
    var configuration = LiveStreamConfiguration(to: url, contentType: "text/plain")
    configuration.retry.initialCeiling = .seconds(600)
    configuration.retry.maximumCeiling = .seconds(600)
    let (bytes, _) = endless()
    let stream = try session.stream(bytes, to: url)
    let upload = try session.uploadTask(file: file, configuration: configuration)
    if when == "suspended" { upload.suspend() }
    let writer = Task { [configuration] in
      try await session.withStream(configuration: configuration) { stream in
        while true {
          try await stream.write([UInt8](repeating: 0, count: when == "full" ? 1 << 20 : 1))
          if when != "full" { try await Task.sleep(for: .milliseconds(1)) }
        }
      }
    }
    for await event in stream.events {
      switch event {
      case .connected, .outage, .ended: break
      default: continue
      }
      break
    }
    session.close()
    let error = await #expect(throws: LiveStreamError.self) { try await stream.value }
    #expect(error?.kind == .cancelled)
    guard case .cancelled? = await #expect(throws: FileUploadError.self, performing: { try await upload.value }) else {
      Issue.record("the upload was not cancelled")
      return
    }
    let reason = await #expect(throws: LiveStreamError.self) { try await writer.value }
    #expect(reason?.kind == .cancelled)
    // Nothing begins afterwards.
    #expect(throws: LiveStreamError.self) { try session.stream(bytes, to: url) }
    await #expect(throws: LiveStreamError.self) { try await session.withStream(to: url) { try await $0.write("x") } }
    await #expect(throws: FileUploadError.self) { try await session.upload(file: file, to: url) }
  }

  @Test("a streamer in a pause ends when its session closes, and one that is started later ends at once")
  func streamersOfClosedSession() throws {
    let url = "http://127.0.0.1:\(try freePort())/"
    let session = try UploadSession()
    let stream = try RunningStream(try PushedSource(), session, url) {
      $0.retry.initialCeiling = .seconds(600)
      $0.retry.maximumCeiling = .seconds(600)
    }
    try stream.waitForFailure()
    session.close()
    #expect(try stream.summary().error?.kind == .cancelled)
    let late = try RunningStream(try PushedSource(), session, url)
    #expect(try late.summary().error == .sessionIsClosed)
  }

  @Test("a released session ends its thread and closes its connections after its last stream has ended")
  func sessionIsDropped() async throws {
    // In a separate process, whose descriptors and threads can be counted.
    await #expect(processExitsWith: .success) {
      await recordingErrors { try await Self.dropSessions() }
    }
  }

  private static func dropSessions() async throws {
    let server = try StreamServer()
    func once() async throws {
      let session = try UploadSession(lanes: 3)
      let reference = WeakReference(session)
      let stream = try session.stream(Countdown(left: 3000), to: server.url + "/s")
      // The stream retains its session.
      _ = consume session
      #expect(try await stream.value.progress.acknowledged == 3000)
      // It is over, so a reference to it retains nothing else.
      try await waitUntil("the release of the session") { reference.object == nil }
      _ = consume stream
    }
    // Resources that are allocated once per process are not leaks: the state of libcurl, and the epoll descriptor of
    // the runtime's timers.
    try await once()
    try await Task.sleep(for: .milliseconds(1))
    let before = try ProcessResources(without: server.directory.path)
    for _ in 0..<20 {
      try await once()
      try await waitForRelease(since: before, without: server.directory.path)
    }
    // One that was never used, and one that was closed before its release.
    for closes in [false, true] {
      let session = try UploadSession()
      if closes { session.close() }
      session.close()
    }
    _ = try UploadSession()
    try await waitForRelease(since: before, without: server.directory.path)
  }
}
