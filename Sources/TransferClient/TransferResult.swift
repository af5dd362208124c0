// The end of a transfer, which the database keeps until its program has received it.

package import JSONLines

/// The end of a transfer. There is exactly one for each accepted transfer.
package struct TransferResult: Equatable, Sendable {
  package enum Outcome: String, CaseIterable, Sendable {
    /// The server has confirmed all of it, or has sent all of it.
    case completed
    case failed
    /// A program or a person has cancelled it.
    case cancelled
  }

  package var outcome: Outcome
  /// The cause of a failure, as one word for programs: a kind of `LiveStreamError`, `fileUnreadable`, `fileChanged` or
  /// `timedOut`. For a download, a kind of `DownloadError`.
  package var cause: String?
  /// The message of a failure: what failed, why, and what to do.
  package var message: String?
  /// The status of the final response, if there was one.
  package var status: Int?
  /// `Name: value`
  package var fields: [String] = []
  /// The beginning of the response's body.
  package var body: [UInt8] = []
  /// The size of the file in bytes, or how much of it the server has confirmed. For a download, how much was received.
  package var byteCount: UInt64 = 0
  /// Whether the server has confirmed the file's digest.
  package var isVerified = false
  /// The part of an incomplete download, which belongs to the program from now on (`DownloadCheckpoint`).
  package var resumeData: String?
  /// When it ended, in milliseconds since 1970.
  package var ended: Int64 = 0

  package init(_ outcome: Outcome, cause: String? = nil, message: String? = nil) {
    (self.outcome, self.cause, self.message) = (outcome, cause, message)
  }

  /// Adds all fields to a line.
  package func add(to line: inout JSONLine) {
    line.add("outcome", outcome.rawValue)
    line.add("cause", cause)
    line.add("message", message)
    line.add("status", status)
    if !fields.isEmpty { line.add("response-fields", fields) }
    // Each byte becomes the character of its number: bodies are mostly text, and JSON text stays ASCII whatever they
    // contain.
    if !body.isEmpty { line.add("body", String(String.UnicodeScalarView(body.map { Unicode.Scalar($0) }))) }
    line.add("bytes", byteCount)
    line.add("verified", isVerified)
    line.add("resume-data", resumeData)
    line.add("ended", ended)
  }

  /// Nil if the line has none.
  package init?(_ line: FlatJSON) {
    guard let outcome = line.string("outcome").flatMap(Outcome.init) else { return nil }
    self.init(outcome, cause: line.string("cause"), message: line.string("message"))
    status = line.integer("status")
    fields = line.strings("response-fields") ?? []
    body = (line.string("body") ?? "").unicodeScalars.compactMap { UInt8(exactly: $0.value) }
    byteCount = line.integer("bytes") ?? 0
    isVerified = line.flag("verified") ?? false
    resumeData = line.string("resume-data")
    ended = line.integer("ended") ?? 0
  }
}
