// What a stream stores in its spool for the next process.

import EventLoops
import NetworkTesting
import ResumableUploads
import Spool
import StreamBuffers
import Testing

@testable import LiveStreaming
@testable import SpooledStreams

@Suite("A stream's notes in its spool")
struct SpoolLinkTests {
  private static func text(
    upload: ResumeData? = nil, acknowledged: UInt64? = nil, description: String? = nil, isCutOff: Bool = false
  ) -> String {
    var resumption = StretchResumption()
    resumption.isCutOff = isCutOff
    (resumption.upload, resumption.acknowledged, resumption.description) = (upload, acknowledged, description)
    return resumption.text
  }

  @Test("each change is noted, and only that of the upload resource must survive a power cut at once")
  func notes() throws {
    let directory = try TemporaryDirectory()
    let spool = try StreamSpool(
      directory: directory.path, stream: "cam", settings: SpoolSettings(limit: 1 << 30), report: { _ in })
    // How often the file had to store the text at once.
    let commits = Lock(0)
    let stretch = SpooledStretch(
      kept: 0..<100, released: 0, capacity: 1000, load: { _ in }, keep: { commits.withLock { $0 += 1 } })
    var settings = CircularBuffer.Settings(capacity: 4096)
    settings.hasCopier = true
    let ends = try CircularBuffer.makeCopied(settings)
    stretch.keepsWords(in: ends.copier.note)
    let link = SpoolLink(spool, stretch)
    let upload = ResumeData(
      upload: "http://host/uploads/1", target: "http://host/x", base: 0, length: nil, streamID: "s", version: .newest)
    func check(_ text: String, _ count: Int, _ step: String) {
      #expect(stretch.resumption == text, "\(step)")
      #expect(commits.withLock { $0 } == count, "\(step)")
    }
    link.noteReleased(upTo: 0)
    check("", 0, "no byte is released")
    link.note(nil, acknowledged: nil)
    check("", 0, "nothing is known")
    link.note(nil, acknowledged: 5)
    check(Self.text(acknowledged: 5), 0, "a plain server has some")
    link.note(nil, acknowledged: nil)
    check(Self.text(acknowledged: 5), 0, "still")
    link.noteReleased(upTo: 4)
    check(Self.text(acknowledged: 5), 0, "fewer are released")
    link.noteReleased(upTo: 9)
    check(Self.text(acknowledged: 9), 0, "more are released")
    link.note(description: "one")
    check(Self.text(acknowledged: 9, description: "one"), 0, "a description")
    link.note(upload, acknowledged: nil)
    check(Self.text(upload: upload, description: "one"), 1, "an upload resource")
    link.note(upload, acknowledged: nil)
    link.note(description: "one")
    check(Self.text(upload: upload, description: "one"), 1, "the same")
    link.note(upload, acknowledged: 12)
    check(Self.text(upload: upload, acknowledged: 12, description: "one"), 1, "an offset without a new resource")
    link.note(nil, acknowledged: nil)
    check(Self.text(acknowledged: 12, description: "one"), 2, "without the resource")
    link.noteReleased(upTo: 13)
    link.note(description: "two")
    check(Self.text(acknowledged: 13, description: "two"), 2, "both")
    link.noteCutOff()
    link.noteCutOff()
    check(Self.text(acknowledged: 13, description: "two", isCutOff: true), 3, "a source that failed")
    #expect(link.notSynchronized(upTo: 150) == 50 && link.notSynchronized(upTo: 80) == 0)
  }

  @Test("what an earlier process has noted continues")
  func continues() throws {
    let directory = try TemporaryDirectory()
    let spool = try StreamSpool(
      directory: directory.path, stream: "cam", settings: SpoolSettings(limit: 1 << 30), report: { _ in })
    let stretch = SpooledStretch(kept: 0..<100, released: 0, capacity: 1000, load: { _ in }, keep: {})
    var earlier = StretchResumption()
    (earlier.acknowledged, earlier.description) = (30, "one")
    let link = SpoolLink(spool, stretch, resumption: earlier)
    link.note(nil, acknowledged: 30)
    link.note(description: "one")
    link.noteReleased(upTo: 30)
    #expect(stretch.resumption == "", "nothing has changed")
    link.noteReleased(upTo: 31)
    #expect(stretch.resumption == Self.text(acknowledged: 31, description: "one"))
  }
}
