// How a transfer ended: what a program is told once, and the database keeps until it was.

package import JSONLines

/// The end of a transfer. There is one for each transfer that the agent has accepted.
package struct TransferResult: Equatable, Sendable {
  package enum Outcome: String, CaseIterable, Sendable {
    /// The server has confirmed all of it, or all of it has come.
    case completed
    case failed
    /// A program or a person has cancelled it.
    case cancelled
  }

  package var outcome: Outcome
  /// Of a failure, one word for programs: a kind of `LiveStreamError`, `fileUnreadable`, `fileChanged` or `timedOut`;
  /// of a download, a kind of `DownloadError`.
  package var cause: String?
  /// Of a failure, what failed, why, and what to do.
  package var message: String?
  /// Of the final response, if there was one.
  package var status: Int?
  /// `Name: value`
  package var fields: [String] = []
  /// The beginning of the response's body.
  package var body: [UInt8] = []
  /// The size of the file in bytes, or how much of it the server has confirmed. Of a download, how much has come.
  package var byteCount: UInt64 = 0
  /// Whether the server has confirmed the file's digest.
  package var isVerified = false
  /// Of a download that did not complete: the part, which is the program's from now on (`DownloadCheckpoint`).
  package var resumeData: String?
  /// When it ended, in milliseconds since 1970.
  package var ended: Int64 = 0

  package init(_ outcome: Outcome, cause: String? = nil, message: String? = nil) {
    (self.outcome, self.cause, self.message) = (outcome, cause, message)
  }

  /// Adds all of it to a line.
  package func add(to line: inout JSONLine) {
    line.add("outcome", outcome.rawValue)
    line.add("cause", cause)
    line.add("message", message)
    line.add("status", status)
    if !fields.isEmpty { line.add("response-fields", fields) }
    // A byte is the character of its number: bodies are mostly text, and this text is ASCII whatever they are.
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
