// Tests uploads whose bytes a stream rejects, because others have stored different bytes or have not finished.

import Glibc
import NetworkTesting
import PropertyTesting
import Testing
import UploadServer

@Suite("Uploads that contradict their stream")
struct ContradictedUploadTests {
  /// Why the stream rejects the upload.
  private enum Reason: CaseIterable { case differentBytes, surplusBytes, mayStillCome, otherToken }

  private struct Sequence: CustomStringConvertible {
    let reason: Reason
    let version: Int
    let restarts: Bool
    var id: String { "\(reason)-\(version)-\(restarts)" }
    var description: String { id }
  }

  private static let sequences = Reason.allCases.flatMap { reason in
    (3...8).flatMap { version in [false, true].map { Sequence(reason: reason, version: version, restarts: $0) } }
  }
  private static let tokens = """
    8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8
    f44e64e75f3948e9f73f8dfa94721c4ce8cbb4f265c4790c702b2d41cfbf2753

    """
  private static let (alpha, beta) = ("Authorization: Bearer alpha", "Authorization: Bearer beta")

  @Test("such an upload is never complete: it ends, or waits for the others", arguments: Durability.allCases)
  func neverComplete(_ durability: Durability) throws {
    let directory = TemporaryDirectory()
    try directory.write("tokens", Array(Self.tokens.utf8))
    func server() throws -> TestServer {
      try TestServer(in: directory) {
        ($0.durability, $0.tokenFile) = (durability, directory.path + "/tokens")
      }
    }
    var test = try server()
    for restarts in [false, true] {
      var begun: [(sequence: Sequence, first: PlacedUpload, upload: PlacedUpload)] = []
      for sequence in Self.sequences where sequence.restarts == restarts {
        let (first, upload) = try begin(sequence, test)
        begun.append((sequence, first, upload))
      }
      if restarts {
        test.stop()
        test = try server()
      }
      for (sequence, first, upload) in begun {
        (first.test, upload.test) = (test, test)
        try judge(sequence, first, upload, test)
      }
    }
  }

  /// Makes the server refuse the upload.
  private func begin(_ sequence: Sequence, _ test: TestServer) throws -> (first: PlacedUpload, upload: PlacedUpload) {
    let first = PlacedUpload(test, version: 8, [Self.alpha])
    let isForeign = sequence.reason == .otherToken
    let upload = PlacedUpload(test, version: sequence.version, [isForeign ? Self.beta : Self.alpha])
    let id = "Stream-ID: \(sequence)"
    if !isForeign { try first.create([id]) }
    let refused: RawClient.Answer
    switch sequence.reason {
    case .differentBytes:
      try require(try first.append(at: 0, Array("0123456789".utf8)).status < 300, "\(sequence)")
      try upload.create([id, "Stream-Offset: 2"])
      refused = try upload.append(at: 0, Array("23x".utf8))
      try require(refused.status == 409, "\(sequence): \(refused)")
    case .surplusBytes:
      try upload.create([id, "Stream-Offset: 5"])
      try require(try first.append(at: 0, completes: true, Array("0123456789".utf8)).status < 300, "\(sequence)")
      refused = try upload.append(at: 0, Array("56789x".utf8))
      try require(refused.status == 409, "\(sequence): \(refused)")
    case .mayStillCome:
      try require(try first.append(at: 0, Array("01234".utf8)).status < 300, "\(sequence)")
      try upload.create([id, "Stream-Offset: 10"])
      refused = try upload.append(at: 0, completes: true, [])
      try require(refused.status == 503 && refused["retry-after"] != nil, "\(sequence): \(refused)")
    case .otherToken:
      try upload.create([id])
      try first.create([id])
      try require(try first.append(at: 0, Array("01234".utf8)).status < 300, "\(sequence)")
      refused = try upload.append(at: 0, Array("01234".utf8))
      try require(refused.status == upload.inactive, "\(sequence): \(refused)")
    }
    try require(upload.saysIncomplete(refused) != false, "\(sequence): \(refused)")
    return (first, upload)
  }

  private func judge(_ sequence: Sequence, _ first: PlacedUpload, _ upload: PlacedUpload, _ test: TestServer) throws {
    let standing = try upload.head()
    let file = "t-\(sequence)"
    guard sequence.reason == .mayStillCome else {
      try require(standing.status == upload.inactive, "\(sequence): \(standing)")
      try require(try upload.append(at: 0, [0]).status == upload.inactive, "\(sequence)")
      // The other upload and its stored bytes stay unchanged.
      guard sequence.reason != .surplusBytes else {
        return #expect(try test.directory.text(file + ".txt") == "0123456789")
      }
      let stored = sequence.reason == .differentBytes ? "0123456789" : "01234"
      let other = try first.head()
      try require(
        first.isIncomplete(other) && other["upload-offset"] == "\(stored.utf8.count)", "\(sequence): \(other)")
      return #expect(try test.directory.text(file + ".part") == stored)
    }
    try require(upload.isIncomplete(standing) && standing["upload-offset"] == "0", "\(sequence): \(standing)")
    try require(try first.append(at: 5, Array("56789".utf8)).status < 300, "\(sequence)")
    let completed = try upload.append(at: 0, completes: true, [])
    try require(completed.status < 300 && upload.saysIncomplete(completed) == false, "\(sequence): \(completed)")
    #expect(try test.directory.text(file + ".txt") == "0123456789", "\(sequence)")
  }
}
