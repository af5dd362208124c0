// Has the disk take files: one by one while few wait, all of them in one go when many do.
//
// Five thousand streams that are synced once a second would be five thousand commits of the file system's journal, and
// no disk has so many; syncfs(2) is one.

internal import CLinux
package import EventLoops
internal import Glibc

/// The files of one file system that wait for the disk. Any thread; the waiting is done on the worker's.
package final class DiskSync: Sendable {
  /// From so many files on the whole file system is synced instead.
  private static let many = 16

  package enum File: Sendable {
    case open(OpenFile)
    /// A name in a directory; one that is gone by then has no need of it.
    case named(String, in: Int32)
    /// One whose name nobody can tell now: the disk takes everything.
    case unknown
  }

  /// What the disk must have before anything else is done.
  package struct Touched: Sendable {
    package var files: [File]
    /// The directory whose names must be safe.
    package var directory: Int32?

    package init(files: [File] = [], directory: Int32? = nil) { (self.files, self.directory) = (files, directory) }
  }

  /// Done when the disk has what was touched before; says what it touches.
  package typealias Step = @Sendable () throws(SystemError) -> Touched

  private struct Request: Sendable {
    var touched: Touched
    let operation: String
    var steps: ArraySlice<Step>
    let stepFailed: (@Sendable () -> Void)?
    let completion: @Sendable (SystemError?) -> Void
    var error: SystemError?
    var isOver = false
  }

  private let directory: Int32
  private let files: OpenFiles
  private let worker: BackgroundWorker
  private let waiting = Lock<[Request]>([])

  /// - Parameter directory: on the file system of all files; stays open for longer than this.
  package init(directory: Int32, worker: BackgroundWorker, files: OpenFiles) {
    self.files = files
    self.directory = directory
    self.worker = worker
  }

  /// Has the disk take a file's bytes. Then does each of `steps` and has the disk take what it has touched, such as a
  /// name in a directory.
  ///
  /// - Parameters:
  ///   - operation: what it is called in an error.
  ///   - stepFailed: called before `completion` if it was a step that failed, and not a sync.
  ///   - directory: the one that the file's name must be safe in before the first step; nil where it does not matter.
  ///   - completion: called on the worker's thread.
  package func sync(
    _ file: File, _ operation: String, _ steps: [Step] = [], stepFailed: (@Sendable () -> Void)? = nil,
    in directory: Int32? = nil,
    _ completion: @escaping @Sendable (SystemError?) -> Void
  ) {
    let request = Request(
      touched: Touched(files: [file], directory: directory), operation: operation, steps: steps[...],
      stepFailed: stepFailed, completion: completion)
    let isFirst = waiting.withLock { waiting in
      waiting.append(request)
      return waiting.count == 1
    }
    // Whatever comes until the worker gets to it goes with it.
    if isFirst { worker.execute { [self] in syncAll() } }
  }

  private func syncAll() {
    var requests = waiting.withLock { waiting in
      let taken = waiting
      waiting = []
      return taken
    }
    while !requests.isEmpty {
      syncTouched(&requests)
      for index in requests.indices {
        guard requests[index].error == nil, let step = requests[index].steps.popFirst() else {
          requests[index].completion(requests[index].error)
          requests[index].isOver = true
          continue
        }
        requests[index].touched = Touched()
        do throws(SystemError) { requests[index].touched = try step() } catch {
          requests[index].error = error
          requests[index].stepFailed?()
        }
      }
      requests.removeAll { $0.isOver }
    }
  }

  /// Has the disk take what the requests have touched; those that it refuses have an error then.
  private func syncTouched(_ requests: inout [Request]) {
    // It tells of errors since Linux 5.8; then each file is asked, to find out whose they are.
    let fileCount = requests.reduce(0) { $0 + ($1.error == nil ? $1.touched.files.count : 0) }
    if fileCount >= Self.many, syncfs(directory) == 0 { return }
    var directories: [Int32: SystemError?] = [:]
    for index in requests.indices where requests[index].error == nil {
      let touched = requests[index].touched
      for file in touched.files where requests[index].error == nil {
        requests[index].error = fdatasync(file, requests[index].operation)
      }
      guard requests[index].error == nil, let directory = touched.directory else { continue }
      if directories[directory] == nil {
        directories[directory] = .some(refusal("fsync of the directory") { fsync(directory) })
      }
      requests[index].error = directories[directory] ?? nil
    }
  }

  private func fdatasync(_ file: File, _ operation: String) -> SystemError? {
    do throws(SystemError) {
      switch file {
      case .open(let file):
        let descriptor = try file.acquire()
        defer { file.release() }
        return refusal(operation) { Glibc.fdatasync(descriptor) }
      case .named(let name, in: let directory):
        let descriptor = try files.open(operation) {
          openat(directory, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC)
        }
        defer { close(descriptor) }
        return refusal(operation) { Glibc.fdatasync(descriptor) }
      case .unknown: return syncEverything(operation)
      }
    } catch {
      if case .named = file, error.isMissing { return nil }
      if error.isForeignChange { return error }
      // What cannot be opened now says nothing of its bytes, and there is still the directory's descriptor.
      return syncEverything(operation)
    }
  }

  /// What the disk itself refuses. A shortage is none: then it is asked for everything.
  private func refusal(_ operation: String, _ sync: () -> Int32) -> SystemError? {
    do throws(SystemError) {
      try retryingInterrupts(operation, sync)
      return nil
    } catch {
      return error.isShortage ? syncEverything(operation) : error
    }
  }

  private func syncEverything(_ operation: String) -> SystemError? {
    do throws(SystemError) {
      try retryingInterrupts(operation) { syncfs(directory) }
      return nil
    } catch {
      // The kernel opens nothing for it: whatever it lacked, it lacked while it wrote, and has dropped the bytes.
      return error.isShortage ? SystemError(operation: "\(error)", code: EIO) : error
    }
  }
}
