// What the server's limits allow one request that stores a stream, whether it is a plain one or an upload.

package import DiskFiles
package import EventLoops
package import HTTPMessages
package import ResumableUploads
package import StreamServing

/// The limits of one loop's streams, and the counts for them.
package struct StreamLimits {
  package var options: UploadLimitsConfiguration
  package var usage: UploadUsage
  /// nil if bytes are not counted, without quotas or without a disk.
  package var accounts: StreamAccounts?
  package var worker: BackgroundWorker
  package var loop: EventLoop

  package init(
    options: UploadLimitsConfiguration, usage: UploadUsage, accounts: StreamAccounts?, worker: BackgroundWorker,
    loop: EventLoop
  ) {
    (self.options, self.usage, self.accounts) = (options, usage, accounts)
    (self.worker, self.loop) = (worker, loop)
  }
}

/// One request's share of the limits, which is returned at its end. Only on the loop's thread.
package final class StreamAllowance {
  private let limits: StreamLimits
  private var share: UploadUsage.Share?
  /// Whether the request counts as an upload in progress. A request within an upload does not, because the upload
  /// counts.
  private var isCounted = false
  private var account: (name: StreamName, account: StreamAccount)?
  private var rate: RateWatch?

  package init(_ limits: StreamLimits) { self.limits = limits }

  // MARK: The request

  /// Admits a plain request.
  ///
  /// - Parameter needsRoom: whether it could only begin a new stream.
  package func enter(_ owner: UploadOwner, needsRoom: Bool) throws(UploadRefusal) {
    guard share == nil else { return }
    do throws(UploadRefusal) {
      share = try limits.usage.admit(owner, needsRoom: needsRoom && limits.accounts != nil)
    } catch {
      if error == .quotaExhausted { limits.accounts?.recount(on: limits.worker) }
      throw error
    }
    isCounted = true
  }

  /// Adds the request of an upload, which was admitted before.
  package func enterUpload(of owner: UploadOwner) {
    if share == nil, limits.accounts != nil { share = limits.usage.share(of: owner) }
  }

  /// Whether a plain body of that framing, or the hole before it, exceeds the maximum size of a stream.
  package func refuses(_ framing: BodyFraming, at offset: UInt64) -> Bool {
    guard let maximum = limits.options.maximumSize else { return false }
    if offset > maximum { return true }
    if case .sized(let length) = framing { return length > maximum - offset }
    return false
  }

  /// How many bytes of a plain body may arrive at that offset.
  package func sizeRoom(at offset: UInt64) -> UInt64 {
    limits.options.maximumSize.map { $0 - min($0, offset) } ?? .max
  }

  /// Whether there is room for all bytes that the plain request announces.
  package func hasRoom(for framing: BodyFraming, at offset: UInt64, storedLength: UInt64) -> Bool {
    guard limits.accounts != nil, case .sized(let length) = framing else { return true }
    let (end, overflow) = offset.addingReportingOverflow(length)
    if !overflow, end - min(end, storedLength) <= limits.usage.room(of: share) { return true }
    limits.accounts?.recount(on: limits.worker)
    return false
  }

  // MARK: Bytes

  /// The stream is open and has this many bytes.
  ///
  /// - Parameter owner: the owner of the stored bytes; nil if unknown.
  package func open(_ stream: any StoredStream, owner: UploadOwner?) {
    guard let accounts = limits.accounts, !stream.isComplete else { return }
    let length = stream.size
    account = (stream.name, accounts.open(stream.name, length: length, owner: owner))
  }

  /// The stream continues in another recording. A complete one does not count.
  package func moved(from name: StreamName, to stream: any StoredStream) {
    guard let accounts = limits.accounts, account != nil else { return }
    let length = stream.size
    let moved = accounts.open(stream.name, length: 0, owner: nil)
    if let share { moved.charge(length, to: share) }
    accounts.remove(name)
    account = (stream.name, moved)
  }

  /// How many of `count` new bytes may be stored.
  package func reserve(_ count: UInt64) -> UInt64 {
    guard let account, let share else { return count }
    let granted = account.account.reserve(count, for: share)
    if granted < count { limits.accounts?.recount(on: limits.worker) }
    return granted
  }

  /// Called after bytes were stored or removed, because only the contents of the file count.
  package func settle(_ stream: any StoredStream) { account?.account.shrink(to: stream.size) }

  /// Calls `tooSlow` if the plain request delivers fewer bytes than required.
  package func watchRate(received: @escaping () -> UInt64, tooSlow: @escaping () -> Void) {
    guard let minimum = limits.options.minimumRate else { return }
    rate = RateWatch(limits.loop)
    rate?.watch(minimum: minimum, window: limits.options.rateWindow, received: received, tooSlow: tooSlow)
  }

  // MARK: The end

  /// The request is over. Its stored bytes still count.
  package func leave() {
    rate?.end()
    rate = nil
    if let account { limits.accounts?.close(account.name) }
    account = nil
    if let share {
      if isCounted { limits.usage.leave(share) } else { limits.usage.release(share) }
    }
    (share, isCounted) = (nil, false)
  }
}
