// Common parts of the tests of tasks: names in a server's answers, and a process's open resources.

import EventLoops
import Glibc
import NetworkTesting
import Testing
import UploadClient

@testable import LiveStreaming

/// The name under which `UploadServer` reports a request's stored content.
func storedName(_ response: HTTPResponse?) throws -> String {
  let body = response.map { String(decoding: $0.body, as: UTF8.self) } ?? ""
  guard let start = body.firstRange(of: "\"name\":\"")?.upperBound, let end = body[start...].firstIndex(of: "\"") else {
    throw TestFailure("no name in \(String(describing: response))")
  }
  return String(body[start..<end])
}

/// Runs the body of a test in a separate process, where a thrown error would look like a crash.
func recordingErrors(_ body: () async throws -> Void) async {
  do { try await body() } catch { Issue.record(error) }
}

/// Waits until this process has no session, and nothing open that was not open before.
func waitForRelease(since before: ProcessResources, without directory: String) async throws {
  do {
    try await waitUntil("the end of thread and connections") {
      (try? ProcessResources(without: directory))?.isWithin(before) ?? false
    }
  } catch {
    throw TestFailure("\(error): first \(before), then \(try ProcessResources(without: directory))")
  }
}

/// Polls once per millisecond for conditions without an event, such as the end of a thread or the last release of an
/// object.
func waitUntil(_ what: String, _ isTrue: () -> Bool) async throws {
  for _ in 0..<20_000 {
    if isTrue() { return }
    try await Task.sleep(for: .milliseconds(1))
  }
  throw TestFailure("\(what) did not come")
}

/// A process's open descriptors, and the number of its session threads.
struct ProcessResources: CustomStringConvertible {
  /// The targets of the descriptors: `socket`, `anon_inode`, or a path. Timers of the runtime do not count.
  private(set) var descriptors: [String: Int] = [:]
  private(set) var threads = 0

  /// - Parameter directory: files in it are not counted.
  init(without directory: String) throws {
    threads = try entries("/proc/self/task").count {
      // A thread that has ended meanwhile has no name any more.
      (try? fileContents("/proc/self/task/\($0)/comm")) == Array("sluice-network\n".utf8)
    }
    for descriptor in try entries("/proc/self/fd") {
      var target = [CChar](repeating: 0, count: 4096)
      let count = readlink("/proc/self/fd/\(descriptor)", &target, target.count)
      let path = String(decoding: target.prefix(max(0, count)).map { UInt8(bitPattern: $0) }, as: UTF8.self)
      // ".", "..", and one that was closed meanwhile.
      if count <= 0 { continue }
      // Dispatch opens one for `Task.sleep`, and closes it when nothing sleeps. Our code uses none.
      if path == "anon_inode:[timerfd]" { continue }
      if !path.hasPrefix(directory) { descriptors[String(path.prefix { $0 != ":" }), default: 0] += 1 }
    }
  }

  /// Whether everything here is also in `other`, and there is no session.
  func isWithin(_ other: ProcessResources) -> Bool {
    threads == 0 && descriptors.allSatisfy { $0.value <= other.descriptors[$0.key] ?? 0 }
  }

  var description: String { "\(threads) threads, \(descriptors)" }
}

private func entries(_ path: String) throws -> [String] {
  guard let directory = opendir(path) else { throw TestFailure(path) }
  defer { closedir(directory) }
  var names: [String] = []
  while let entry = readdir(directory) {
    names.append(
      withUnsafeBytes(of: &entry.pointee.d_name) { String(decoding: $0.prefix { $0 != 0 }, as: UTF8.self) })
  }
  return names
}

/// A reference that does not retain its object.
final class WeakReference<Object: AnyObject & Sendable>: @unchecked Sendable {
  // Weak references may be read from any thread, and nothing writes this one.
  weak var object: Object?
  init(_ object: Object) { self.object = object }
}
