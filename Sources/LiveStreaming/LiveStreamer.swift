// The public type. It connects source, circular buffer, writer, bound pair and upload, again after each outage.

public import EventLoops
public import Spool
public import SpooledStreams
internal import StreamBuffers
public import UploadClient

/// Streams a source to a server without end, and continues after every outage.
///
/// The source starts at once, even if the server cannot be reached. All calls may come from any thread. Events come on
/// the session's thread. Keep the streamer until ``LiveStreamEvent/ended(_:)``.
public final class LiveStreamer: Sendable {
  private let stream: LiveStream

  /// Creates the stream of a source.
  ///
  /// - Throws: ``EventLoops/SystemError`` when memory for the buffer is refused.
  public init(
    _ source: any StreamSource, configuration: LiveStreamConfiguration, session: UploadSession
  ) throws(SystemError) {
    stream = LiveStream(try LiveSource(source, configuration), configuration: configuration, session: session)
  }

  /// Creates the stream of a source with a spool behind the circular buffer. Unacknowledged bytes then survive outages
  /// that are longer than the buffer, the end of the process, and a power cut.
  ///
  /// - Throws: ``Spool/SpoolError`` when the spool cannot begin a stretch.
  public init(
    _ source: any StreamSource, configuration: LiveStreamConfiguration, session: UploadSession, spool: StreamSpool
  ) throws(SpoolError) {
    stream = LiveStream(try LiveSource(source, configuration, spool), configuration: configuration, session: session)
  }

  /// Streams the data that an earlier process left in the spool, from the server's offset on. Nil if another stream
  /// already sends it, or if its description is unreadable.
  package init?(
    _ backlog: SpooledBacklog, configuration: LiveStreamConfiguration, session: UploadSession, spool: StreamSpool
  ) {
    guard let source = LiveSource(backlog, configuration, spool) else { return nil }
    stream = LiveStream(source, configuration: configuration, session: session)
  }

  /// Creates the stream of a source that can repeat its bytes. There is no buffer to fill. The configured buffer size
  /// simulates that of a device.
  public init(_ source: any RepeatableSource, configuration: LiveStreamConfiguration, session: UploadSession) {
    stream = LiveStream(LiveSource(source, configuration), configuration: configuration, session: session)
  }

  /// Creates the upload of a file. It begins optimistically, and becomes a resumable upload if the server supports it
  /// (draft-ietf-httpbis-resumable-upload, section "Upgrading To Resumable Uploads").
  public init(_ file: UploadFile, configuration: LiveStreamConfiguration, session: UploadSession) {
    stream = LiveStream(file: file, configuration: configuration, session: session)
  }

  /// Starts, and calls `handler` for each event on the session's thread. If the session is closed, the stream ends at
  /// once, on the calling thread.
  public func start(_ handler: @escaping @Sendable (LiveStreamEvent) -> Void) {
    if !startIfOpen(handler) { handler(.ended(summaryIfClosed)) }
  }

  /// The summary if the session is closed. Another session can still continue the upload that was to be resumed.
  var summaryIfClosed: StreamSummary {
    var summary = StreamSummary.sessionIsClosed
    summary.resumeData = stream.configuration.resumeData
    return summary
  }

  /// Like ``start(_:)``, but only returns false if the session is closed.
  func startIfOpen(_ handler: @escaping @Sendable (LiveStreamEvent) -> Void) -> Bool {
    stream.session.execute { [stream] in stream.start(handler) }
  }

  /// Stops the source, sends the buffered bytes, and ends when the server has answered.
  ///
  /// - Parameter limit: the longest time without an acknowledgement. After it, the stream ends with an error of the
  ///   kind ``LiveStreamError/Kind/unfinished``, or ``LiveStreamError/Kind/unreachable`` if there never was a
  ///   connection, or if this machine refused the last one. Nil means no limit.
  public func finish(within limit: Duration? = nil) {
    stream.loop.execute { [stream] in stream.finish(within: limit) }
  }

  /// Ends at once. Buffered bytes are lost. The summary reports their number and the data to continue a resumable
  /// upload.
  public func cancel() { stream.loop.execute { [stream] in stream.cancel() } }

  /// Like ``cancel()``, but at once. On the session's thread only.
  package func cancelNow() { stream.cancel() }

  /// Ends, and asks the server to delete a resumable upload.
  public func abandon() { stream.loop.execute { [stream] in stream.abandon() } }

  /// Pauses sending until ``resume()``. A source continues to fill the buffer. The connection stays open as long as the
  /// server permits. If the server closes it, the stream continues at the server's offset.
  public func suspend() { stream.loop.execute { [stream] in stream.suspend() } }

  /// Cuts the connection like a network failure. The stream continues as after any outage.
  package func cutConnection() { stream.loop.execute { [stream] in stream.request?.task.cut() } }

  /// Makes the next attempt now, if the stream waits for one.
  package func retryNow() { stream.loop.execute { [stream] in stream.retryNow() } }

  /// Calls `body` on the session's thread with the progress of the stream.
  package func withProgress(_ body: @escaping @Sendable (StreamProgress) -> Void) {
    stream.loop.execute { [stream] in
      if stream.trustsTransport { stream.checkTransport() }
      body(stream.progress())
    }
  }

  /// Continues after ``suspend()``.
  public func resume() { stream.loop.execute { [stream] in stream.resume() } }
}
