// The state machine with parts of two versions of a resource, with each set of fields that may identify the version.

import Testing

@testable import Downloads
@testable import UploadClient

@Suite("The version of a part")
struct DownloadVersionTests {
  /// The fields that a response has.
  private struct Names: OptionSet {
    var rawValue: Int
    static let tag = Names(rawValue: 1)
    static let date = Names(rawValue: 2)
    static let digest = Names(rawValue: 4)
    static let all = (0..<8).map { Names(rawValue: $0) }
  }

  private func fields(_ names: Names, version: Int) -> HeaderFields {
    var fields = HeaderFields()
    if names.contains(.tag) { fields.append("ETag", "\"v\(version)\"") }
    if names.contains(.date) {
      fields.append("Last-Modified", "Sun, 06 Nov 1994 08:49:3\(version) GMT")
    }
    if names.contains(.digest) {
      let value = "\(version)" + String(repeating: "A", count: 42) + "="
      fields.append("Repr-Digest", "sha-256=:\(value):")
    }
    return fields
  }

  /// The first 4 of 10 bytes of version 1.
  private func begin(_ machine: inout DownloadStateMachine, _ names: Names) -> HTTPResponse {
    var whole = HTTPResponse(status: 200, fields: fields(names, version: 1))
    whole.fields.append(contentsOf: ["Content-Length": "10", "Date": "Mon, 07 Nov 1994 08:49:37 GMT"])
    _ = machine.answered(whole)
    _ = machine.received(4)
    _ = machine.ended(isWhole: false)
    return whole
  }

  @Test(
    "the client appends a 206 of the same version only, and always one whose validator equals that of If-Range",
    arguments: [1, 2], [true, false])
  func parts(version: Int, isLater: Bool) throws {
    for first in Names.all where !first.isDisjoint(with: [.tag, .date]) {
      for names in Names.all {
        for doubled in [[], .tag, .date] as [Names] where names.isSuperset(of: doubled) {
          var machine = DownloadStateMachine()
          _ = machine.begin()
          let whole = begin(&machine, first)
          if isLater {
            // The data that another process has stored.
            machine = DownloadStateMachine(
              resuming: DownloadResumeData(
                path: "part", inode: 1, byteCount: 4, validator: try #require(machine.validator), length: 10,
                digest: machine.digest))
          }
          let range = machine.begin()
          #expect(range.all.count == 2)
          var part = HTTPResponse(status: 206, fields: fields(names, version: version))
          part.fields.append(contentsOf: fields(doubled, version: 3 - version))
          part.fields.append("Content-Range", "bytes 4-9/10")
          let log = "\(whole.fields.lines), then \(part.fields.lines)"
          let answer = machine.answered(part)
          let isJoined = answer == .content(from: 4, reason: nil)
          if isJoined { #expect(version == 1 && doubled == [], "\(log)") }
          let named: Names = first.contains(.tag) ? .tag : .date
          if version == 1, doubled == [], names.contains(named) { #expect(isJoined, "\(log)") }
          if version == 1, doubled == [], !first.intersection(names).isDisjoint(with: .digest) {
            #expect(isJoined, "a digest stands for it: \(log)")
          }
          guard !isJoined else { continue }
          // Everything is requested, except that parts without a version are not requested again.
          #expect(answer == .startOver(.changed) || answer == .startOver(.unidentified), "\(log)")
          #expect(machine.count == 0 && machine.begin().all.isEmpty, "\(log)")
          _ = begin(&machine, first)
          #expect(machine.begin().all.isEmpty == (answer == .startOver(.unidentified)), "\(log)")
        }
      }
    }
  }

  @Test(
    "a 416 without a version ends only a download of known length, or one with a digest that can be compared",
    arguments: [nil, 4, 9] as [UInt64?],
    [nil, "md5=:\(String(repeating: "A", count: 22))==:", "sha-256=:\(String(repeating: "A", count: 43))=:"])
  func unsatisfied(length: UInt64?, digest: String?) {
    for tag in [nil, "\"v1\"", "\"v2\""] as [String?] {
      var machine = DownloadStateMachine(
        resuming: DownloadResumeData(
          path: "part", inode: 1, byteCount: 4, validator: "\"v1\"", length: length, digest: digest))
      _ = machine.begin()
      var response = HTTPResponse(status: 416, fields: ["Content-Range": "bytes */4"])
      if let tag { response.fields.append("ETag", tag) }
      let isComplete = machine.answered(response) == .complete
      let isKnown = length == 4 || length == nil && digest?.hasPrefix("sha-256") == true
      #expect(isComplete == (tag == "\"v1\"" && length != 9 || tag == nil && isKnown), "\(response)")
    }
  }

  @Test("a part that is longer than its known length is requested again from the first byte")
  func tooLong() {
    var machine = DownloadStateMachine(
      resuming: DownloadResumeData(path: "part", inode: 1, byteCount: 12, validator: "\"v1\"", length: 10))
    _ = machine.begin()
    let answer = machine.answered(
      HTTPResponse(status: 416, fields: ["ETag": "\"v1\"", "Content-Range": "bytes */10"]))
    #expect(answer == .startOver(.range) && machine.count == 0)
    #expect(machine.begin().all.isEmpty)
  }

  @Test("two fields with the version are ignored", arguments: ["ETag", "Last-Modified"])
  func doubledFirst(name: String) {
    let values =
      name == "ETag" ? ["\"a\"", "\"b\""] : ["Sun, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:38 GMT"]
    let response = HTTPResponse(
      status: 200, fields: [name: values[0], name: values[1], "Date": "Mon, 07 Nov 1994 08:49:37 GMT"])
    #expect(DownloadStateMachine.validator(response) == nil)
  }
}
