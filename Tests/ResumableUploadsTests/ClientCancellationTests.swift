// Tests how a client cancels an upload, and what another process needs to continue one.

import HTTPMessages
import Testing

@testable import ResumableUploads

@Suite("The client cancels, or resumes an upload of another process") struct ClientCancellationTests {
  // MARK: Cancellation

  @Test("cancelling is a DELETE to the upload resource (draft, section Upload Cancellation)")
  func cancellation() {
    var client = ClientScript.created(500)
    client.perform(client.machine.cancel())
    #expect(client.next == "DELETE" && client.request?.url == ClientScript.upload && client.request?.content == .absent)
    #expect(client.fields.without([InteropVersion.fieldName]).all.isEmpty)
  }

  @Test("only an explicit response means that the upload is deleted")
  func cancellationAnswers() {
    for (status, isForgotten) in [
      // A portal also answers 200.
      (200, false), (204, true), (404, true), (410, true), (401, false), (405, false), (503, false),
    ] {
      var client = ClientScript.created(500)
      client.perform(client.machine.cancel())
      client.answer(status)
      #expect(client.failure == .cancelled && client.machine.isForgotten == isForgotten, "\(status)")
    }
    var client = ClientScript.created(500)
    client.perform(client.machine.cancel())
    client.lose()
    #expect(client.failure == .cancelled && !client.machine.isForgotten)
  }

  @Test("307 and 308 redirect a cancellation, too, but not in a loop")
  func cancellationRedirected() {
    var client = ClientScript.created(500)
    client.perform(client.machine.cancel())
    client.answer(308, location: ClientScript.other)
    #expect(client.next == "DELETE" && client.request?.url == ClientScript.other)
    var count = 0
    while client.failure == nil, count < 100 {
      client.answer(307, location: ClientScript.upload)
      count += 1
    }
    #expect(client.failure == .cancelled && count == UploadClientStateMachine.maximumDetours)
  }

  @Test("without an upload resource, there is nothing to cancel")
  func nothingToCancel() {
    var client = ClientScript.live(500)
    client.start()
    #expect(client.machine.cancel() == .fail(.cancelled))
  }

  // MARK: Resume data

  @Test("the client requests the offset of another process's upload, and continues there in its version")
  func resume() {
    var client = ClientScript.live(500, isFinished: true) { $0.length = 500 }
    client.perform(
      client.machine.resume(url: ClientScript.upload, base: 0, version: InteropVersion(number: 6) ?? .newest))
    #expect(client.next == "HEAD" && client.request?.url == ClientScript.upload)
    #expect(client.fields["Upload-Draft-Interop-Version"] == "6")
    client.answer(204, ["Upload-Offset": "123"])
    #expect(client.next == "PATCH 123" && client.maximum == 377 && client.machine.sent == 123)
  }

  @Test("an offset beyond the end of the file does not belong to that file")
  func resumeBeyond() {
    var client = ClientScript.live(500, isFinished: true) { $0.length = 500 }
    client.perform(client.machine.resume(url: ClientScript.upload, base: 0, version: .newest))
    while client.next == "HEAD" { if client.answer(204, ["Upload-Offset": "501"]) == .wait { client.goOn() } }
    #expect(client.next == "DELETE")
  }

  @Test("a lost upload begins again, and the sent bytes count from there")
  func resumeGone() {
    var client = ClientScript.file(500)
    client.perform(client.machine.resume(url: ClientScript.upload, base: 0, version: .newest))
    client.answer(410)
    #expect(client.request?.content == .bytes(from: 0, maximum: nil))
    client.interim(location: ClientScript.other)
    client.send(upTo: 100)
    client.lose()
    #expect(client.answer(204, ["Upload-Offset": "300"]) == .wait, "only 100 bytes were sent")
  }

  @Test("resume data as text is read unchanged, and any other text is not read")
  func resumeData() throws {
    for version in [InteropVersion.none] + InteropVersion.drafts {
      let data = ResumeData(
        upload: "http://host/uploads/\"1\\", target: "https://h/x?a=\"b\"", base: 7, length: 1 << 40, streamID: "s-1",
        version: version, joinsParts: version == .newest)
      let text = try #require(data.text)
      #expect(ResumeData(text) == data && ResumeData(text)?.interopVersion == version && !text.contains("\n"))
    }
    let least = ResumeData(
      upload: "http://h/1", target: "http://h/", base: 0, length: nil, streamID: nil, version: .newest)
    let text = try #require(least.text)
    #expect(ResumeData(text) == least)
    #expect(
      ResumeData(upload: "http://h/ü", target: "http://h/", base: 0, length: nil, streamID: nil, version: .newest).text
        == nil)
    for wrong in [
      "", "hello", text.replacing("format=1", with: "format=2"), text.replacing("format=1, ", with: ""),
      text.replacing("base=0", with: "base=-1"), text.replacing("base=0", with: "base=0.5"),
      text.replacing("version=8", with: "version=99"), text.replacing("upload=", with: "uploads="),
      text.replacing("\"http://h/\"", with: "http"), "\(text),",
    ] {
      #expect(ResumeData(wrong) == nil, "\(wrong)")
    }
    // Additions of a later version of this format are ignored.
    #expect(ResumeData("\(text), colour=\"red\"") == least)
  }

  @Test("resume data in a log does not contain the URL of the upload resource")
  func describedResumeData() {
    let data = ResumeData(
      upload: "http://h/.uploads/secret", target: "http://h/take?key=secret", base: 7, length: nil, streamID: nil,
      version: .newest)
    #expect("\(data)" == "an upload to http://h/take from stream offset 7")
    var dumped = ""
    dump(data, to: &dumped)
    for text in ["\(data)", String(reflecting: data), "\([data])", "\(Optional(data) as Any)", dumped] {
      #expect(!text.contains("secret") && text.contains("http://h/take"), "\(text)")
    }
  }
}
