// The accounts of all unfinished streams of a directory, with or without an active request.

package import DiskFiles
internal import EventLoops
internal import Glibc

/// Finds the account of each recording with unfinished bytes on the disk, by the name of its files. Any thread. An open
/// account belongs to its loop.
///
/// All stored bytes count: an interrupted stream counts until it is complete or its file is gone. A recording that was
/// closed before its end (``closed(_:)``) counts as well.
package final class StreamAccounts: Sendable {
  private struct Entry {
    let account: StreamAccount
    /// The file that contains the bytes.
    var file: String
    /// Whether a request is active on it.
    var isOpen: Bool
    /// The count of opened streams when this one was last opened.
    var openCount: UInt64
  }

  private struct Entries {
    var all: [String: Entry] = [:]
    var openCount: UInt64 = 0

    subscript(stream: String) -> Entry? {
      get { all[stream] }
      set { all[stream] = newValue }
    }
  }

  /// How many files are checked in one slice.
  private static let slice = 500
  /// The minimum pause between two searches for files that others have removed.
  private static let recountPause = Duration.seconds(1)

  private let usage: UploadUsage
  private let directory: Int32
  /// Loops take this lock, so nobody accesses the disk while holding it.
  private let entries = Lock(Entries())
  private let lastRecount = Lock<MonotonicInstant?>(nil)

  /// - Parameter directory: the streams' directory, which must stay open longer than this.
  package init(_ usage: UploadUsage, in directory: Int32) {
    self.usage = usage
    self.directory = directory
  }

  /// The account of a recording with a file of that length, for a request that is active on it until ``close(_:)``.
  ///
  /// - Parameter owner: the owner of bytes that are not counted yet; nil if unknown.
  package func open(_ name: StreamName, length: UInt64, owner: UploadOwner?) -> StreamAccount {
    let account = entries.withLock { entries in
      let account = entries[name.fileBase]?.account ?? StreamAccount(usage)
      entries.openCount &+= 1
      entries[name.fileBase] = Entry(
        account: account, file: name.partial, isOpen: true, openCount: entries.openCount)
      return account
    }
    account.shrink(to: length)
    if account.bytes < length { charge(length - account.bytes, to: owner, account) }
    return account
  }

  private func charge(_ count: UInt64, to owner: UploadOwner?, _ account: StreamAccount) {
    let share = usage.share(of: owner)
    account.charge(count, to: share)
    usage.release(share)
  }

  /// No request is active on the stream any more. Its stored bytes still count.
  package func close(_ name: StreamName) {
    entries.withLock { entries in
      entries[name.fileBase]?.isOpen = false
      if entries[name.fileBase]?.account.bytes == 0 { entries[name.fileBase] = nil }
    }
  }

  /// A stream is complete, or its file was removed. It no longer counts.
  package func remove(_ name: StreamName) {
    let entry = entries.withLock { $0.all.removeValue(forKey: name.fileBase) }
    entry?.account.shrink(to: 0)
  }

  /// An interrupted stream has received its final name. It counts until an operator removes the file.
  package func closed(_ name: StreamName) {
    entries.withLock { $0[name.fileBase]?.file = name.final }
  }

  /// Bytes of a stream without a known owner belong to the upload of that owner.
  package func attribute(_ name: StreamName, to owner: UploadOwner) {
    let share = usage.share(of: owner)
    entries.withLock { entries in
      if let entry = entries[name.fileBase], !entry.isOpen { entry.account.attribute(to: share) }
    }
    usage.release(share)
  }

  // MARK: Streams of an earlier server

  /// Counts a file that was found in the directory, unless it is counted already.
  package func found(_ file: String, of stream: String, owner: UploadOwner?) {
    guard let length = length(of: file) else { return }
    entries.withLock { entries in
      guard entries[stream] == nil else { return }
      let account = StreamAccount(usage)
      charge(length, to: owner, account)
      entries[stream] = Entry(account: account, file: file, isOpen: false, openCount: entries.openCount)
    }
    // It may have been completed or removed between the two.
    recount(file, of: stream)
  }

  // MARK: Files that others remove

  /// The quotas are exhausted. Refunds the space of files that others have removed or shortened.
  package func recount(on worker: BackgroundWorker) {
    let now = MonotonicInstant.now
    let isDue = lastRecount.withLock { last in
      if let last, now < last + Self.recountPause { return false }
      last = now
      return true
    }
    guard isDue else { return }
    let files = entries.withLock { entries in
      entries.all.compactMap { $0.value.isOpen ? nil : (stream: $0.key, file: $0.value.file) }
    }
    recount(files[...], on: worker)
  }

  private func recount(_ files: ArraySlice<(stream: String, file: String)>, on worker: BackgroundWorker) {
    guard !files.isEmpty else { return }
    worker.executeSlice { [self] in
      for (stream, file) in files.prefix(Self.slice) { recount(file, of: stream) }
      recount(files.dropFirst(Self.slice), on: worker)
    }
  }

  private func recount(_ file: String, of stream: String) {
    guard let before = entries.withLock({ $0[stream] }), !before.isOpen, before.file == file else { return }
    let length = length(of: file) ?? 0
    entries.withLock { entries in
      // A request that has come meanwhile may have written, and its figures are newer.
      guard let entry = entries[stream], entry.account === before.account, !entry.isOpen, entry.file == file,
        entry.openCount == before.openCount
      else { return }
      entry.account.shrink(to: length)
      if length == 0 { entries[stream] = nil }
    }
  }

  /// nil if there is no such file.
  private func length(of file: String) -> UInt64? {
    var status = stat()
    guard fstatat(directory, file, &status, AT_SYMLINK_NOFOLLOW) == 0, status.st_mode & S_IFMT == S_IFREG else {
      return nil
    }
    return UInt64(clamping: status.st_size)
  }
}
