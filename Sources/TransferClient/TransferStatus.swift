// A transfer as the agent reports it.

package import JSONLines

/// The state of a transfer.
package struct TransferStatus: Equatable, Sendable {
  package enum State: String, CaseIterable, Sendable {
    /// It runs when its time has come and there is a place.
    case waiting
    case running
    case paused
    case ended
  }

  package var id: Int64
  /// The key of its request.
  package var key: String
  package var session: String
  /// The program's own number.
  package var task: Int64
  package var kind: TransferRequest.Kind
  package var state: State
  /// Without user and password.
  package var url: String
  /// The file. For a download that the agent keeps, its location.
  package var path: String
  package var note: String?
  /// The value of its request.
  package var isAtOtherOrigin = false
  /// Where the content of a download's last response begins in the complete file; nil while there is none, or it is
  /// unknown.
  package var contentStart: UInt64?
  /// In bytes; nil until the server states it.
  package var size: UInt64?
  /// How much the server has, as far as is known. For a download, how much was received.
  package var acknowledged: UInt64
  /// When it was accepted, in milliseconds since 1970.
  package var created: Int64
  /// What it waits for, or the last problem, in words.
  package var trouble: String?
  /// If it has ended.
  package var result: TransferResult?

  package init(
    id: Int64, key: String, session: String, task: Int64, kind: TransferRequest.Kind = .upload, state: State,
    url: String, path: String, note: String? = nil, size: UInt64?, acknowledged: UInt64, created: Int64,
    trouble: String? = nil, result: TransferResult? = nil
  ) {
    (self.id, self.key, self.session, self.task, self.kind, self.state) = (id, key, session, task, kind, state)
    (self.url, self.path, self.note, self.size) = (url, path, note, size)
    (self.acknowledged, self.created, self.trouble, self.result) = (acknowledged, created, trouble, result)
  }

  /// Adds all fields to a line.
  package func add(to line: inout JSONLine) {
    line.add("id", id)
    line.add("key", key)
    line.add("session", session)
    line.add("task", task)
    line.add("kind", kind.rawValue)
    line.add("state", state.rawValue)
    line.add("url", url)
    line.add("path", path)
    line.add("note", note)
    line.add("other-origin", isAtOtherOrigin)
    line.add("content-start", contentStart)
    line.add("size", size)
    line.add("acknowledged", acknowledged)
    line.add("created", created)
    line.add("trouble", trouble)
    result?.add(to: &line)
  }

  /// Nil if something is missing.
  package init?(_ line: FlatJSON) {
    guard let id = line.integer("id", as: Int64.self), let key = line.string("key"),
      let session = line.string("session"), let kind = TransferRequest.Kind(line),
      let state = line.string("state").flatMap(State.init), let url = line.string("url"),
      let path = line.string("path")
    else { return nil }
    self.init(
      id: id, key: key, session: session, task: line.integer("task") ?? 0, kind: kind, state: state, url: url,
      path: path, note: line.string("note"), size: line.integer("size"),
      acknowledged: line.integer("acknowledged") ?? 0,
      created: line.integer("created") ?? 0, trouble: line.string("trouble"), result: TransferResult(line))
    (isAtOtherOrigin, contentStart) = (line.flag("other-origin") ?? false, line.integer("content-start"))
  }
}
