// The public type: source, circular buffer, writer, bound pair and upload, joined, and joined again after each dropout.

public import EventLoops
public import Spool
public import SpooledStreams
internal import StreamBuffers
public import UploadClient

/// Streams a source to a server, indefinitely, and goes on after every dropout.
///
/// The source begins at once, whether the server is there or not. All calls may come from any thread; events are told
/// on the session's thread. Keep the streamer until ``LiveStreamEvent/ended(_:)``.
public final class LiveStreamer: Sendable {
  private let stream: LiveStream

  /// - Throws: ``EventLoops/SystemError`` when memory for the buffer is refused.
  public init(
    _ source: any StreamSource, configuration: LiveStreamConfiguration, session: UploadSession
  ) throws(SystemError) {
    stream = LiveStream(try LiveSource(source, configuration), configuration: configuration, session: session)
  }

  /// Streams a source with a spool behind the circular buffer: what the server does not have survives outages that are
  /// longer than the buffer, the end of the process, and a power cut.
  ///
  /// - Throws: ``Spool/SpoolError`` when the spool cannot begin a stretch.
  public init(
    _ source: any StreamSource, configuration: LiveStreamConfiguration, session: UploadSession, spool: StreamSpool
  ) throws(SpoolError) {
    stream = LiveStream(try LiveSource(source, configuration, spool), configuration: configuration, session: session)
  }

  /// Streams what an earlier process has left in the spool, from where the server has it. Nil if another stream sends
  /// it already, or if nobody can say what it is.
  package init?(
    _ backlog: SpooledBacklog, configuration: LiveStreamConfiguration, session: UploadSession, spool: StreamSpool
  ) {
    guard let source = LiveSource(backlog, configuration, spool) else { return nil }
    stream = LiveStream(source, configuration: configuration, session: session)
  }

  /// Streams a source that can give its bytes again: there is no buffer to fill, and the configuration's says what a
  /// device in its place could hold.
  public init(_ source: any RepeatableSource, configuration: LiveStreamConfiguration, session: UploadSession) {
    stream = LiveStream(LiveSource(source, configuration), configuration: configuration, session: session)
  }

  /// Uploads a file: optimistically, upgraded to a resumable upload where the server offers it
  /// (draft-ietf-httpbis-resumable-upload, section "Upgrading To Resumable Uploads").
  public init(_ file: UploadFile, configuration: LiveStreamConfiguration, session: UploadSession) {
    stream = LiveStream(file: file, configuration: configuration, session: session)
  }

  /// Starts, and tells all that happens to `handler` on the session's thread.
  public func start(_ handler: @escaping @Sendable (LiveStreamEvent) -> Void) {
    stream.loop.execute { [stream] in stream.start(handler) }
  }

  /// Stops the source, sends what is buffered, and ends when the server has answered.
  ///
  /// - Parameter limit: ends after this time without an acknowledgement even if the server has not answered, with an
  ///   error of the kind ``LiveStreamError/Kind/unfinished``, or ``LiveStreamError/Kind/unreachable`` if there never
  ///   was a connection; nil waits as long as the server needs.
  public func finish(within limit: Duration? = nil) {
    stream.loop.execute { [stream] in stream.finish(within: limit) }
  }

  /// Ends at once. What is buffered is lost, and the summary says how much, and how to go on with a resumable upload.
  public func cancel() { stream.loop.execute { [stream] in stream.cancel() } }

  /// As ``cancel()``, at once. On the session's thread only.
  package func cancelNow() { stream.cancel() }

  /// Ends, and asks the server to forget what it has of a resumable upload.
  public func abandon() { stream.loop.execute { [stream] in stream.abandon() } }

  /// Sends nothing until ``resume()``; a source goes on filling the buffer. The connection stays as long as the server
  /// lets it; if it does not, the stream goes on where the server stands.
  public func suspend() { stream.loop.execute { [stream] in stream.suspend() } }

  /// Breaks the connection off, as a network does that fails; the stream goes on as after any dropout.
  package func cutConnection() { stream.loop.execute { [stream] in stream.request?.task.cut() } }

  /// Makes the next attempt now, if the stream waits for one.
  package func retryNow() { stream.loop.execute { [stream] in stream.retryNow() } }

  /// Calls `body` on the session's thread with how the stream stands.
  package func withProgress(_ body: @escaping @Sendable (StreamProgress) -> Void) {
    stream.loop.execute { [stream] in
      if stream.trustsTransport { stream.checkTransport() }
      body(stream.progress())
    }
  }

  /// Goes on after ``suspend()``.
  public func resume() { stream.loop.execute { [stream] in stream.resume() } }
}
