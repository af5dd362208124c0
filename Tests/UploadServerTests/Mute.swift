// A handler for tests in which the server counts the bytes.

import UploadServer

/// Accepts a body, and never answers.
final class Mute: RequestHandler {
  func begin(_ exchange: any Exchange) { exchange.acceptBody() }
  func receive(_ bytes: Span<UInt8>, pieces: [Range<Int>]) {}
  func end() {}
  func aborted(_ reason: AbortReason) {}
  func serverStops() {}
}
