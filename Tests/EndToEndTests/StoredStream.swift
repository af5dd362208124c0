// Compares a server's stored bytes with the sent ones: equal outside the recorded holes, and zeros within.

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
  /// The missing stream offsets in the server's record.
  let holes: [Range<Int>]

  var missing: Int { holes.reduce(0) { $0 + $1.count } }

  /// Reads `name` in `directory`, and the `<stem>.gaps` beside it.
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
    // One more than its size, so that a growing file is noticed.
    let size = Int(status.st_size)
    return [UInt8](unsafeUninitializedCapacity: size + 1) { buffer, count in
      count = fread(buffer.baseAddress, 1, size + 1, file)
    }
  }

  /// The first wrong offset in the file: it must equal `sent` outside the holes, and zero within. Nil if the whole file
  /// is correct.
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
    // memcmp first, because comparing tens of megabytes byte by byte takes long in a debug build. A base address is nil
    // only for an empty array.
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

/// The test microphone's sound as the stream of `sluice mic`: a WAV header and mono S16_LE samples.
enum MicrophoneStream {
  static let headerLength = 80

  /// The stream of `byteCount` bytes whose frame *n* is the device's frame *n*, with silence for the frames in
  /// `silent`.
  ///
  /// - Parameter header: the first stored bytes. Other tests check the header's form.
  static func bytes(header: some Sequence<UInt8>, byteCount: Int, silent: [Range<UInt64>] = []) -> [UInt8] {
    // Half a frame at the end counts too, because a cut can occur at any byte.
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
  /// The number of whole frames after the header.
  var frameCount: Int { (bytes.count - MicrophoneStream.headerLength) / 2 }

  /// The first byte that differs from the microphone's, where every frame must be at its own number.
  func firstDifferenceFromMicrophone(silent: [Range<UInt64>] = []) -> Int? {
    firstDifference(from: MicrophoneStream.bytes(header: wavHeader, byteCount: bytes.count, silent: silent))
  }
}

extension StoredStream: CustomTestStringConvertible {
  /// Without the bytes, of which there are millions.
  var testDescription: String { "\(fileName), \(bytes.count) bytes, holes \(holes)" }
}
