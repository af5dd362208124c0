// A small disk for the spool of one stream, which several processes use one after another.

import CommandTesting
import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import TestRigs

/// A tmpfs in a mount namespace that lives as long as this object.
final class SpoolDisk {
  /// Its path in the namespace.
  let path: String
  private let keeper: ChildProcess
  private let scratch = ScratchDirectory()

  /// - Parameter size: in the format of mount(8).
  init(_ path: String, size: String) throws {
    self.path = path
    let script = "mount -t tmpfs -o size=\(size) none \"$1\" && echo mounted && exec sleep 600"
    keeper = try ChildProcess(
      ["unshare", "--mount", "sh", "-c", script, "sh", path], package: "util-linux", output: scratch.file("log"))
    // Only the line in a file shows it.
    let deadline = MonotonicInstant.now + .seconds(60)
    while !String(decoding: scratch.read("log"), as: UTF8.self).contains("mounted") {
      guard MonotonicInstant.now < deadline else { throw TestFailure("the small disk was not mounted") }
      poll(nil, 0, 5)
    }
  }

  /// Runs a program in the namespace of the disk.
  var prefix: [String] { ["nsenter", "--mount=/proc/\(keeper.identifier)/ns/mnt"] }

  /// A path on the disk, for this process.
  func outside(_ name: String) -> String { "/proc/\(keeper.identifier)/root\(path)/\(name)" }

  /// Uses up all remaining space.
  func fill() throws {
    let file = try retryingInterrupts("filling the disk") { open(outside("ballast"), O_WRONLY | O_CREAT, 0o600) }
    defer { close(file) }
    let zeros = [UInt8](repeating: 0, count: 64 << 10)
    while Glibc.write(file, zeros, zeros.count) > 0 {}
    guard errno == ENOSPC else { throw SystemError.last("filling the disk") }
  }

  func makeRoom() throws { try retryingInterrupts("making room") { unlink(outside("ballast")) } }
}

/// A FIFO that stays open independently of its readers.
final class HeldInput {
  let path: String
  private let descriptor: Int32

  init(_ path: String) throws {
    self.path = path
    try retryingInterrupts("mkfifo \(path)") { mkfifo(path, 0o600) }
    descriptor = try retryingInterrupts("open \(path)") { open(path, O_RDWR | O_CLOEXEC) }
  }

  deinit { close(descriptor) }

  func write(_ bytes: [UInt8]) throws {
    var rest = bytes[...]
    while !rest.isEmpty {
      let count = try retryingInterrupts("writing to \(path)") {
        rest.withUnsafeBytes { Glibc.write(descriptor, $0.baseAddress, $0.count) }
      }
      rest = rest.dropFirst(count)
    }
  }
}

extension SluiceProcess {
  /// Waits for a line that contains `text`.
  func line(_ text: String, limit: Duration = .seconds(60)) throws -> String {
    try output.wait(for: "the line \"\(text)\"", limit: limit) { _, lines in lines.first { $0.contains(text) } }
  }
}

extension OffsetPattern {
  /// The bytes from `offset` on.
  func bytes(_ count: Int, at offset: UInt64) -> [UInt8] {
    var bytes = [UInt8](repeating: 0, count: count)
    bytes.withUnsafeMutableBytes { bytes in
      for start in stride(from: 0, to: count, by: 4096) {
        let piece = UnsafeMutableRawBufferPointer(rebasing: bytes[start..<min(start + 4096, count)])
        fill(piece, at: offset + UInt64(start))
      }
    }
    return bytes
  }
}
