// What a server has stored, compared with what was sent: equal outside of the holes that it recorded, zeros within.

import CommandTesting
import Glibc
import NetworkTesting
import TestDeviceControl
import TestRigs
import Testing

/// The file of one stream, and the record of its holes.
struct StoredStream {
  let fileName: String
  let bytes: [UInt8]
  /// Stream offsets that are missing, by the server's record.
  let holes: [Range<Int>]

  var missing: Int { holes.reduce(0) { $0 + $1.count } }

  /// Reads `name` in `directory`, and `<stem>.gaps` beside it.
  init(_ directory: String, _ name: String) throws {
    fileName = name
    bytes = try Self.contents("\(directory)/\(name)")
    let stem = name.lastIndex(of: ".").map { String(name[..<$0]) } ?? name
    holes = try storedHoles(in: directory, ofStream: stem)
  }

  /// The names in a directory, without the server's lock.
  static func names(in directory: String) -> [String] { (try? fileNames(in: directory)) ?? [] }

  static func contents(_ path: String) throws -> [UInt8] {
    guard let file = fopen(path, "r") else { throw TestFailure("\(path): \(String(cString: strerror(errno)))") }
    defer { fclose(file) }
    var status = stat()
    fstat(fileno(file), &status)
    // One more than there is, so that a file that has grown meanwhile is noticed.
    let size = Int(status.st_size)
    return [UInt8](unsafeUninitializedCapacity: size + 1) { buffer, count in
      count = fread(buffer.baseAddress, 1, size + 1, file)
    }
  }

  /// The first offset at which the file is not what it should be: `sent` outside of the holes, zeros in them. Nil if it
  /// is right, to its last byte.
  func firstDifference(from sent: [UInt8]) -> Int? {
    var at = 0
    for hole in holes.sorted(by: { $0.lowerBound < $1.lowerBound }) + [bytes.count..<bytes.count] {
      if let difference = Self.firstDifference(bytes, sent, at..<max(at, hole.lowerBound)) { return difference }
      guard hole.upperBound <= bytes.count else { return bytes.count }
      if let difference = bytes[hole].firstIndex(where: { $0 != 0 }) { return difference }
      at = max(at, hole.upperBound)
    }
    return bytes.count == sent.count ? nil : min(bytes.count, sent.count)
  }

  private static func firstDifference(_ a: [UInt8], _ b: [UInt8], _ range: Range<Int>) -> Int? {
    guard range.upperBound <= a.count, range.upperBound <= b.count else { return min(a.count, b.count) }
    // memcmp first: tens of megabytes byte by byte take long in a debug build. Neither base address is nil unless
    // empty.
    let equal =
      range.isEmpty
      || a.withUnsafeBytes { a in
        b.withUnsafeBytes { b in
          memcmp(a.baseAddress! + range.lowerBound, b.baseAddress! + range.lowerBound, range.count) == 0
        }
      }
    return equal ? nil : range.first { a[$0] != b[$0] }
  }
}

/// What the test microphone hears, as the stream of `sluice mic`: a WAV header and mono S16_LE samples.
enum MicrophoneStream {
  static let headerLength = 80

  /// The stream of `byteCount` bytes whose frame *n* is the device's frame *n*, with silence for the frames in
  /// `silent`.
  ///
  /// - Parameter header: the first bytes of what was stored: its form is tested elsewhere, here it only has to be one.
  static func bytes(header: some Sequence<UInt8>, byteCount: Int, silent: [Range<UInt64>] = []) -> [UInt8] {
    // Half a frame at the end counts too: a cut comes at any byte.
    var samples = (0..<max(0, (byteCount - headerLength + 1) / 2)).map { testmic_sample(1, UInt64($0), 0) }
    for gap in silent {
      for frame in gap where frame < UInt64(samples.count) { samples[Int(frame)] = 0 }
    }
    return Array((Array(header) + samples.withUnsafeBytes { Array($0) }).prefix(byteCount))
  }
}

extension StoredStream {
  var wavHeader: ArraySlice<UInt8> { bytes.prefix(MicrophoneStream.headerLength) }
  var isWAV: Bool { bytes.starts(with: Array("RIFF".utf8)) && bytes.dropFirst(72).starts(with: Array("data".utf8)) }
  /// Whole frames after the header.
  var frameCount: Int { (bytes.count - MicrophoneStream.headerLength) / 2 }

  /// The first byte that is not the microphone's, where every frame has to stand at its own number.
  func firstDifferenceFromMicrophone(silent: [Range<UInt64>] = []) -> Int? {
    firstDifference(from: MicrophoneStream.bytes(header: wavHeader, byteCount: bytes.count, silent: silent))
  }
}

extension StoredStream: CustomTestStringConvertible {
  /// Without the bytes, of which there are millions.
  var testDescription: String { "\(fileName), \(bytes.count) bytes, holes \(holes)" }
}
