// The shared state of all downloads of a server, and the content of one download: a recording that is read while it is
// sent.

internal import DiskFiles
internal import EventLoops
package import HTTPMessages
package import HTTPServer
package import StreamServing

/// The number of downloads under way, and the thread that reads for them. Any thread.
package final class DownloadCapacity: Sendable {
  private let maximumCount: Int
  /// Half of them, so that one client that hardly reads cannot take all.
  private var maximumCountPerClient: Int { max(1, maximumCount / 2) }
  /// A separate thread, because uploads wait for the other worker.
  let worker = BackgroundWorker()
  private let taken = Lock(Taken())

  private struct Taken {
    var count = 0
    var clients: [UploadOwner: Int] = [:]
  }

  package init(maximumCount: Int) { self.maximumCount = maximumCount }

  /// A place for one download of that client, as long as the result lives; nil if there is none.
  func takePlace(for client: UploadOwner) -> DownloadPlace? {
    let isFree = taken.withLock { taken in
      let own = taken.clients[client] ?? 0
      guard taken.count < maximumCount, own < maximumCountPerClient else { return false }
      taken.count += 1
      taken.clients[client] = own + 1
      return true
    }
    return isFree ? DownloadPlace(self, client) : nil
  }

  fileprivate func leave(_ client: UploadOwner) {
    taken.withLock { taken in
      taken.count -= 1
      let others = (taken.clients[client] ?? 1) - 1
      taken.clients[client] = others > 0 ? others : nil
    }
  }
}

/// One download's place.
final class DownloadPlace: Sendable {
  private let capacity: DownloadCapacity
  private let client: UploadOwner

  fileprivate init(_ capacity: DownloadCapacity, _ client: UploadOwner) {
    (self.capacity, self.client) = (capacity, client)
  }

  deinit { capacity.leave(client) }
}

/// The downloads of one loop. Only on the loop's thread.
package final class RecordingDownloads {
  let store: FileStore
  let capacity: DownloadCapacity
  let context: ServingContext

  package init(_ store: FileStore, _ capacity: DownloadCapacity, _ context: ServingContext) {
    (self.store, self.capacity, self.context) = (store, capacity, context)
  }

  /// The handler of a GET or a HEAD for a recording.
  package func handler(for head: RequestHead) -> any RequestHandler { DownloadHandler(head, self) }
}

/// A recording, or a part of it, on its way to a client.
final class RecordingContent: ResponseContent {
  private let recording: FoundRecording
  private let range: Range<UInt64>
  private let downloads: RecordingDownloads
  private let request: RequestHead
  private let status: Int
  private let peer: String
  /// Kept until the end.
  private var place: DownloadPlace?
  /// How many bytes were read, and how many of them are counted as sent.
  private var (read, counted): (UInt64, UInt64) = (0, 0)
  /// Why the rest cannot be sent.
  private var failure: String?

  var length: UInt64 { UInt64(range.count) }

  init(
    _ recording: FoundRecording, _ range: Range<UInt64>, _ downloads: RecordingDownloads, _ request: RequestHead,
    status: Int, peer: String, _ place: DownloadPlace
  ) {
    (self.recording, self.range, self.downloads, self.request) = (recording, range, downloads, request)
    (self.status, self.peer, self.place) = (status, peer, place)
    downloads.context.figures.values.openDownloads += 1
  }

  func read(atMost limit: Int, _ completion: @escaping ([UInt8]?) -> Void) {
    // All bytes that were read before are sent.
    count(upTo: read)
    let offset = range.lowerBound + read
    let wanted = Int(min(UInt64(limit), range.upperBound - offset))
    guard isAuthorized else {
      failure = "the token is not valid any more"
      return downloads.context.loop.execute(carrying(completion) { $0(nil) })
    }
    // Only the loop's thread uses them. The worker merely passes them back.
    nonisolated(unsafe) let (content, completion) = (self, completion)
    let (recording, loop) = (recording, downloads.context.loop)
    downloads.capacity.worker.execute {
      var bytes: [UInt8]?
      var failure: String?
      do throws(SystemError) { bytes = try recording.read(wanted, at: offset) } catch { failure = error.description }
      loop.execute { [bytes, failure] in
        content.read += UInt64(bytes?.count ?? 0)
        content.failure = failure
        completion(bytes)
      }
    }
  }

  private func carrying(
    _ completion: @escaping ([UInt8]?) -> Void, _ work: @escaping (([UInt8]?) -> Void) -> Void
  ) -> @Sendable () -> Void {
    nonisolated(unsafe) let (completion, work) = (completion, work)
    return { work(completion) }
  }

  private var isAuthorized: Bool { request.credential.map { downloads.context.isValid($0) } ?? true }

  private func count(upTo sent: UInt64) {
    downloads.context.figures.values.downloadedBytes += sent - min(sent, counted)
    counted = max(counted, sent)
  }

  func ended(sent: UInt64, _ reason: AbortReason?) {
    place = nil
    downloads.context.figures.values.openDownloads -= 1
    guard request.method == "GET" else { return }
    count(upTo: sent)
    var event = ServerEvent(
      reason == nil ? .downloaded : .downloadInterrupted, peer: peer, status: status,
      reason: reason == nil ? nil : failure ?? reason?.description)
    event.stream = recording.stream
    event.file = recording.name
    event.offset = range.lowerBound
    event.bytes = sent
    downloads.context.emit(event)
  }
}
