// What each kind of content gives to libcurl, piece by piece.

import EventLoops
import Glibc
import NetworkTesting
import StreamBuffers
import Testing

@testable import UploadClient

@Suite("Filling libcurl's buffer")
struct FillingTests {
  /// The result of a filling, and the whole buffer, which had zeros before.
  private func fill(_ size: Int, from body: borrowing UploadBody, at position: Int) -> (UploadBody.Filling, [UInt8]) {
    let buffer = UnsafeMutableRawBufferPointer.allocate(byteCount: size, alignment: 1)
    defer { buffer.deallocate() }
    buffer.initializeMemory(as: UInt8.self, repeating: 0)
    let filling = body.fill(buffer, from: UInt64(position))
    return (filling, Array(buffer))
  }

  /// Checks every position and size of the buffer against the content.
  private func check(_ body: borrowing UploadBody, _ content: [UInt8]) {
    for position in 0...content.count {
      for size in 1...content.count + 2 {
        let piece = content[position...].prefix(size)
        let (filling, found) = fill(size, from: body, at: position)
        if piece.isEmpty {
          #expect(filling == .end)
        } else {
          #expect(filling == .bytes(piece.count, isLast: position + piece.count == content.count))
        }
        #expect(found == Array(piece) + [UInt8](repeating: 0, count: size - piece.count))
      }
    }
  }

  @Test("bytes are given from any position, and the last piece is marked")
  func bytes() {
    let body = UploadBody.bytes([1, 2, 3, 4, 5])
    check(body, [1, 2, 3, 4, 5])
  }

  private func file(_ content: [UInt8], _ range: Range<UInt64>) throws -> UploadBody {
    let directory = try TemporaryDirectory()
    let descriptor = open(try directory.write("f", content), O_RDONLY | O_CLOEXEC)
    defer { close(descriptor) }
    return .file(try FileBody(descriptor: descriptor, range: range, name: "f"))
  }

  @Test("a range of a file is given in the same way, and nothing after it")
  func files() throws {
    let body = try file([0, 1, 2, 3, 4, 5, 6, 7], 2..<6)
    check(body, [2, 3, 4, 5])
  }

  @Test("a file that has no byte at a position is an error, with the position")
  func shortFile() throws {
    let body = try file([1, 2, 3], 1..<9)
    let (filling, found) = fill(8, from: body, at: 0)
    #expect(filling == .bytes(2, isLast: false) && found == [2, 3, 0, 0, 0, 0, 0, 0])
    let (atEnd, _) = fill(8, from: body, at: 2)
    #expect(atEnd == .failed("f was shortened while it was being sent: it ended at byte 3 instead of 9"))
    let huge = try file([1], (UInt64.max - 5)..<UInt64.max)
    let (impossible, _) = fill(8, from: huge, at: 1)
    #expect(impossible == .failed("f contains no byte \(UInt64.max - 4)"))
  }

  @Test("no content and an empty one end at once")
  func nothing() {
    let (none, _) = fill(1, from: .none, at: 0)
    let (empty, _) = fill(1, from: .empty, at: 0)
    #expect(none == .end && empty == .end)
  }

  @Test("a stream gives what is there, and its end only after its last byte")
  func streams() throws {
    let pair = BoundPair.make(bufferSize: 8)
    let feed = try BodyFeed(pair.output)
    let body = UploadBody.stream(pair.input)
    body.open {}
    let (early, _) = fill(4, from: body, at: 0)
    #expect(early == .nothingYet)
    try feed.write("abcdef")
    for (size, text) in [(4, "abcd"), (4, "ef")] {
      let (filling, found) = fill(size, from: body, at: 0)
      #expect(filling == .bytes(text.utf8.count, isLast: false))
      #expect(Array(found.prefix(text.utf8.count)) == Array(text.utf8))
    }
    let (waiting, _) = fill(4, from: body, at: 6)
    #expect(waiting == .nothingYet)
    try feed.write("xy")
    feed.end()
    let (last, _) = fill(4, from: body, at: 6)
    let (end, _) = fill(4, from: body, at: 8)
    #expect(last == .bytes(2, isLast: false) && end == .end)
  }

  @Test("an aborted stream has the reason of its writer")
  func aborted() throws {
    let pair = BoundPair.make(bufferSize: 8)
    let feed = try BodyFeed(pair.output)
    let body = UploadBody.stream(pair.input)
    body.open {}
    feed.fail()
    let (filling, _) = fill(4, from: body, at: 0)
    #expect(filling == .failed("the microphone burnt"))
  }

  /// Keeps a content, which would close itself otherwise.
  private final class Holder: Sendable {
    let body: UploadBody
    init(_ body: consuming UploadBody) { self.body = body }
  }

  @Test("the writer of a stream learns how its request has ended, although the content still exists")
  func closed() throws {
    let lost = UploadError(.connectionLost, "reset")
    for error in [nil, lost] {
      let events = try EventLog<BoundPair.OutputEvent>()
      let pair = BoundPair.make(bufferSize: 8)
      let output = pair.output
      output.open { events.append($0) }
      let holder = Holder(.stream(pair.input))
      holder.body.open {}
      holder.body.close(error)
      let end = error.map { BoundPair.OutputEvent.errorOccurred(.init($0.description)) } ?? .endEncountered
      #expect(events.all == [.spaceAvailable, end])
      withExtendedLifetime(holder) {}
    }
  }

  @Test("the writer learns of the end before the request reports it, in either way", arguments: [true, false])
  func order(isAnswered: Bool) throws {
    let server = try ScriptedServer { connection, _ in
      _ = try connection.head()
      _ = try connection.chunk()
      if isAnswered { try connection.respond("200 OK") }
    }
    try withSession { session throws in
      let steps = try EventLog<String>()
      let pair = BoundPair.make()
      let output = pair.output
      output.open { event in
        switch event {
        case .spaceAvailable: break
        case .endEncountered: steps.append("the writer's end")
        case .errorOccurred: steps.append("the writer's error")
        }
      }
      let bytes: [UInt8] = [1, 2, 3]
      let written = output.write(bytes.span.bytes)
      #expect(written == .accepted(3))
      _ = try session.upload(UploadRequest(url: server.url), body: .stream(pair.input)) { event in
        if case .finished = event { steps.append("the end") }
      }
      try steps.first("the end") { $0 == "the end" }
      #expect(steps.all.first == (isAnswered ? "the writer's end" : "the writer's error"))
    }
  }
}
