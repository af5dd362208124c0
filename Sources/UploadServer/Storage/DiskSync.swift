// Has the disk take files: one by one while few wait, all of them in one go when many do.
//
// Five thousand streams that are synced once a second would be five thousand commits of the file system's journal, and
// no disk has so many; syncfs(2) is one.

internal import CLinux
internal import EventLoops
internal import Glibc

/// The files of one file system that wait for the disk. Any thread; the waiting is done on the worker's.
final class DiskSync: Sendable {
  /// From so many files on the whole file system is synced instead.
  private static let many = 16

  enum File: Sendable {
    case open(OpenFile)
    /// A name in a directory; one that is gone by then has no need of it.
    case named(String, in: Int32)
  }

  typealias Rename = @Sendable () throws(SystemError) -> Void

  private struct Request: Sendable {
    let file: File
    let operation: String
    let rename: Rename?
    /// The directory that the file's name must be safe in; nil where the name does not matter.
    let directory: Int32?
    let completion: @Sendable (SystemError?) -> Void
  }

  private let directory: Int32
  private let files: OpenFiles
  private let worker: BackgroundWorker
  private let waiting = Lock<[Request]>([])

  /// - Parameter directory: on the file system of all files; stays open for longer than this.
  init(directory: Int32, worker: BackgroundWorker, files: OpenFiles) {
    self.files = files
    self.directory = directory
    self.worker = worker
  }

  /// Has the disk take a file's bytes, then renames it, then has the disk take its name.
  ///
  /// - Parameters:
  ///   - operation: what it is called in an error.
  ///   - completion: called on the worker's thread.
  func sync(
    _ file: File, _ operation: String, _ rename: Rename? = nil, in directory: Int32? = nil,
    _ completion: @escaping @Sendable (SystemError?) -> Void
  ) {
    let request = Request(
      file: file, operation: operation, rename: rename, directory: directory, completion: completion)
    let isFirst = waiting.withLock { waiting in
      waiting.append(request)
      return waiting.count == 1
    }
    // Whatever comes until the worker gets to it goes with it.
    if isFirst { worker.execute { [self] in syncAll() } }
  }

  private func syncAll() {
    let requests = waiting.withLock { waiting in
      let taken = waiting
      waiting = []
      return taken
    }
    // It tells of errors since Linux 5.8; then each file is asked, to find out whose they are.
    let isSynced = requests.count >= Self.many && syncfs(directory) == 0
    var errors: [SystemError?] = requests.map { isSynced ? nil : fdatasync($0) }
    for (index, request) in requests.enumerated() where errors[index] == nil {
      guard let rename = request.rename else { continue }
      do throws(SystemError) { try rename() } catch { errors[index] = error }
    }
    var directories: [Int32: SystemError?] = [:]
    for (index, request) in requests.enumerated() where errors[index] == nil {
      guard let directory = request.directory, !isSynced || request.rename != nil else { continue }
      if directories[directory] == nil {
        directories[directory] = .some(fsync(directory) == 0 ? nil : .last("fsync of the directory"))
      }
      errors[index] = directories[directory] ?? nil
    }
    for (request, error) in zip(requests, errors) { request.completion(error) }
  }

  private func fdatasync(_ request: Request) -> SystemError? {
    do throws(SystemError) {
      switch request.file {
      case .open(let file):
        let descriptor = try file.acquire()
        defer { file.release() }
        return Glibc.fdatasync(descriptor) == 0 ? nil : .last(request.operation)
      case .named(let name, in: let directory):
        let descriptor = try files.open(request.operation) {
          openat(directory, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC)
        }
        defer { close(descriptor) }
        return Glibc.fdatasync(descriptor) == 0 ? nil : .last(request.operation)
      }
    } catch {
      if case .named = request.file, error.isMissing { return nil }
      // Without a descriptor for the file there is still the directory's.
      guard error.isShortage else { return error }
      return syncfs(directory) == 0 ? nil : .last(request.operation)
    }
  }
}
