// A transfer as the agent shows it.

package import JSONLines

/// How a transfer stands.
package struct TransferStatus: Equatable, Sendable {
  package enum State: String, CaseIterable, Sendable {
    /// It runs when its time has come and there is room.
    case waiting
    case running
    case paused
    case ended
  }

  package var id: Int64
  /// That of its request.
  package var key: String
  package var session: String
  /// The program's own number.
  package var task: Int64
  package var kind: TransferRequest.Kind
  package var state: State
  /// Without user and password.
  package var url: String
  /// The file; of a download that the agent keeps, where it is.
  package var path: String
  package var note: String?
  /// That of its request.
  package var isAtOtherOrigin = false
  /// Where the content of a download's last response begins in the whole; nil while there is none, as far as is known.
  package var contentStart: UInt64?
  /// In bytes; nil while no server has said it.
  package var size: UInt64?
  /// How much the server has, as far as is known. Of a download, how much has come.
  package var acknowledged: UInt64
  /// When it was accepted, in milliseconds since 1970.
  package var created: Int64
  /// What it waits for, or what went wrong last, in words.
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

  /// Adds all of it to a line.
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
