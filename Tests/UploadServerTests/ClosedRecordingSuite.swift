// What the suites about closed recordings share: a server that closes them soon, and WAV headers.

import UploadServer

/// A suite whose tests have a server close recordings.
protocol ClosedRecordingSuite {}

extension ClosedRecordingSuite {
  func server(
    _ directory: TemporaryDirectory = TemporaryDirectory(), finishAfter: Duration = .milliseconds(300),
    _ change: (inout UploadServer.Configuration) -> Void = { _ in }
  ) throws -> TestServer {
    try TestServer(in: directory) {
      $0.finishAfter = finishAfter
      change(&$0)
    }
  }

  /// A WAV header as `sluice mic` makes one: stereo of 16 bits.
  static var header: [UInt8] {
    Array("RIFF".utf8) + [255, 255, 255, 255] + Array("WAVEfmt ".utf8) + [16, 0, 0, 0, 1, 0, 2, 0]
      + [0x80, 0xBB, 0, 0, 0, 0xEE, 2, 0, 4, 0, 16, 0] + Array("data".utf8) + [255, 255, 255, 255]
  }

  /// A header with the true sizes of whole frames.
  static func header(dataLength: UInt8) -> [UInt8] {
    var header: [UInt8] = Self.header
    header.replaceSubrange(4..<8, with: [dataLength + 36, 0, 0, 0])
    header.replaceSubrange(40..<44, with: [dataLength, 0, 0, 0])
    return header
  }
}
