// A request for a recording. A worker's thread finds the recording, and the answer follows RFC 9110 (ranges,
// preconditions).

internal import DiskFiles
internal import EventLoops
internal import HTTPMessages
internal import HTTPServer
internal import StreamServing

/// Answers GET and HEAD with a complete recording of the client, or a part of it.
///
/// A recording of another owner gets the same answer as one that does not exist.
final class DownloadHandler: RequestHandler {
  /// A cache must not give one client another one's answer.
  private static let caching: HeaderFields = ["cache-control": "private, no-cache", "vary": "authorization"]
  private let head: RequestHead
  private let downloads: RecordingDownloads
  private var exchange: (any Exchange)?
  private var responder: ContentResponder?

  init(_ head: RequestHead, _ downloads: RecordingDownloads) { (self.head, self.downloads) = (head, downloads) }

  func begin(_ exchange: any Exchange) {
    guard let responder = exchange.contentResponder else {
      return exchange.respond(Response(405, ["allow": OtherRequests.methods], body: "A download is not an upload.\n"))
    }
    (self.exchange, self.responder) = (exchange, responder)
    let client = UploadOwner(credential: head.credential, address: exchange.peer)
    guard let place = downloads.capacity.takePlace(for: client) else {
      let reason = "as many downloads are under way as this server allows, in total or per client"
      downloads.context.emit(ServerEvent(.refused, peer: exchange.peer, status: 503, reason: reason))
      return respond(Response(503, ["retry-after": "2"], body: reason + "\n"))
    }
    let handler = LoopOwned(self, on: downloads.context.loop)
    let store = downloads.store
    let (path, credential) = (head.target.path, head.credential)
    downloads.capacity.worker.execute {
      var found: Result<FoundRecording?, SystemError>
      do throws(SystemError) {
        found = .success(try store.findRecording(path, for: credential))
      } catch {
        found = .failure(error)
      }
      handler.execute { [found] in $0.answer(found, place) }
    }
  }

  private func answer(_ found: Result<FoundRecording?, SystemError>, _ place: DownloadPlace) {
    guard let exchange, let responder else { return }
    switch found {
    case .success(nil):
      respond(
        Response(
          404, Self.caching,
          body: "There is no complete recording of that name. "
            + "Use the name in the response to the upload, such as film-ID.mkv.\n"
        ))
    case .success(let recording?): send(recording, exchange.peer, responder, place)
    case .failure(let error):
      downloads.context.figures.values.storageFailures += 1
      downloads.context.emit(
        ServerEvent(
          .warning, peer: exchange.peer, status: 503, reason: "cannot search for a recording: \(error)"))
      respond(Response(503, ["retry-after": "2"], body: error.reason + "\n"))
    }
  }

  private func send(
    _ recording: FoundRecording, _ peer: String, _ responder: ContentResponder, _ place: DownloadPlace
  ) {
    let answer = RepresentationAnswer(
      method: head.method, head.fields, recording.validators, length: recording.length, now: WallClock.now.seconds)
    var fields = Self.caching
    fields.append("etag", recording.validators.tag.text)
    fields.append("last-modified", WallClock(seconds: recording.validators.lastModified).imfFixdate)
    fields.append("accept-ranges", "bytes")
    func send(_ range: Range<UInt64>, _ status: Int) {
      fields.append("content-type", Self.mediaType(of: recording.name))
      // The name consists of letters, digits, dots, underscores, hyphens and tildes.
      fields.append("content-disposition", "attachment; filename=\"\(recording.name)\"")
      fields.append("x-content-type-options", "nosniff")
      if let sha256 = recording.sha256 {
        fields.append(DigestField.representation, DigestField([("sha-256", sha256)]).value)
      }
      forgetExchange()
      responder.respond(
        Response(status, fields),
        RecordingContent(recording, range, downloads, head, status: status, peer: peer, place))
    }
    switch answer {
    case .whole: send(0..<recording.length, 200)
    case .part(let range):
      fields.append("content-range", ContentRange.part(range, of: recording.length).value)
      send(range, 206)
    case .notModified: respond(Response(304, fields))
    case .preconditionFailed: respond(Response(412, fields, body: "The recording is another one.\n"))
    case .unsatisfiable:
      fields.append("content-range", ContentRange.unsatisfied(length: recording.length).value)
      respond(Response(416, fields, body: "The recording contains no such bytes.\n"))
    }
  }

  private func respond(_ response: Response) {
    let exchange = exchange
    forgetExchange()
    exchange?.respond(response)
  }

  private func forgetExchange() { (exchange, responder) = (nil, nil) }

  /// The type follows from the extension, which the server chose when it made the recording.
  private static func mediaType(of file: String) -> String {
    switch StreamName.parts(ofFile: file[...])?.finalExtension {
    case ".wav": "audio/wav"
    case ".flac": "audio/flac"
    case ".ogg": "audio/ogg"
    case ".mp3": "audio/mpeg"
    case ".txt": "text/plain"
    case ".csv": "text/csv"
    case ".json": "application/json"
    case ".jsonl": "application/jsonl"
    default: "application/octet-stream"
    }
  }

  func receive(_ bytes: Span<UInt8>, pieces: [Range<Int>]) {}
  func end() {}
  func aborted(_ reason: AbortReason) { forgetExchange() }
  func serverStops() { respond(Response(503, ["retry-after": "2"], body: "the server stops\n")) }
}
