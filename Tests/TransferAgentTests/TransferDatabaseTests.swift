// The content of the queue's database: after it was reopened or moved, and after the end of a transfer with secrets.

import EventLoops
import Glibc
import NetworkTesting
import PropertyTesting
import Testing
import TransferClient

@testable import TransferAgent

@Suite("The database of the queue")
struct TransferDatabaseTests {
  @Test("a reopened database has the same queue", arguments: Seed.several(4))
  func database(seed: Seed) throws {
    var random = seed.generator
    let directory = try TemporaryDirectory()
    var database: TransferDatabase? = try TransferDatabase(directory: "\(directory.path)/state")
    var queue = try #require(database).load()
    for number in 1...60 {
      var request = TransferRequest(key: "\(number / 2)", url: "http://h/\(number)", path: "/\(number)")
      request.token = "secret"
      if random.chance(50) { (request.kind, request.path, request.part) = (.download, "", "/part\(number)") }
      let id = Int64.random(in: 1...20, using: &random)
      let events: [TransferQueue.Event] = [
        .submitted(request, version: "v\(number)", size: request.kind == .upload ? UInt64(number) : nil), .pause(id),
        .resume(id), .cancel(id), .cancel(id, keeps: true), .acknowledge(id), .abandoned(id, isDone: random.chance(50)),
        .created(id, resumeData: "r\(number)"),
        .finished(id, .failed(TransferResult(.failed, cause: "refused", message: "no\u{1F}"))),
        .finished(id, .stopped(resumeData: nil)), .clockSet(by: Int64(number) * 1000),
      ]
      let actions = queue.handle(events.randomElement(using: &random)!, now: Int64(number))
      try #require(database).apply(actions)
      guard random.chance(30) else { continue }
      database = nil
      database = try TransferDatabase(directory: "\(directory.path)/state")
      let loaded = try #require(database).load()
      #expect(loaded.transfers == queue.transfers.mapValues(\.stored))
      #expect(loaded.lastID == queue.lastID, "a number is not given twice")
      #expect(loaded.acknowledged == queue.acknowledged)
      #expect(loaded.abandoned == queue.abandoned)
      queue = loaded
    }
  }

  @Test("a database that was moved, removed or replaced stores nothing until it is back", arguments: [false, true])
  func movedDatabase(isReplaced: Bool) throws {
    let directory = try TemporaryDirectory()
    let database = try TransferDatabase(directory: "\(directory.path)/state")
    var queue = try database.load()
    let request = TransferRequest(key: "k", url: "http://h/", path: "/x")
    let actions = queue.handle(.submitted(request, version: "v", size: 1), now: 1)
    let path = "\(directory.path)/state/transfers.db"
    try #require(rename(path, "\(path).moved") == 0)
    if isReplaced { close(open(path, O_RDWR | O_CREAT, 0o600)) }
    #expect(throws: AgentError.databaseMoved("transfers.db")) { try database.apply(actions) }
    #expect(throws: AgentError.databaseMoved("transfers.db")) { try database.check() }
    try #require(rename("\(path).moved", path) == 0)
    try database.check()
    try database.apply(actions)
    #expect(try database.load().transfers == queue.transfers.mapValues(\.stored))
    // Nothing can bring back a file without a name.
    unlink(path)
    #expect(throws: AgentError.databaseMoved("transfers.db")) { try database.apply(actions) }
  }

  /// A request with a secret in every possible place.
  private static func secretRequest() -> TransferRequest {
    var request = TransferRequest(key: "k", url: "http://user:s3cret-url@h/", path: "/x")
    (request.token, request.fields) = ("s3cret-token", ["Authorization: s3cret-field"])
    request.proxy = "http://user:s3cret-proxy@h:1"
    return request
  }

  @Test("no secret of a transfer stays in the agent's files after its end, however it ends", arguments: 0..<3)
  func secrets(_ end: Int) throws {
    let directory = try TemporaryDirectory()
    let database = try TransferDatabase(directory: "\(directory.path)/state")
    var queue = try database.load()
    func happen(_ event: TransferQueue.Event) throws { try database.apply(queue.handle(event, now: 1)) }
    func secretsInFiles() throws -> Int {
      try ["transfers.db", "transfers.db-wal"].reduce(0) { count, name in
        count
          + String(decoding: try fileContents("\(directory.path)/state/\(name)"), as: UTF8.self)
          .ranges(of: "s3cret").count
      }
    }
    try happen(.submitted(Self.secretRequest(), version: "v", size: 1))
    try happen(.created(1, resumeData: "s3cret-location"))
    #expect(try secretsInFiles() >= 5, "there is something to be forgotten")
    switch end {
    case 0: try happen(.finished(1, .completed(TransferResult(.completed))))
    case 1: try happen(.finished(1, .failed(TransferResult(.failed, cause: "refused"))))
    default:
      try happen(.cancel(1))
      try happen(.finished(1, .stopped(resumeData: "s3cret-location")))
      #expect(try secretsInFiles() > 0, "the deletion at the server needs them")
      try happen(.abandoned(1, isDone: true))
    }
    #expect(queue.transfers[1]?.hasEnded == true && queue.abandoned.isEmpty)
    #expect(try secretsInFiles() == 0)
  }

  @Test("two agents cannot use one database")
  func lock() throws {
    let directory = try TemporaryDirectory()
    let path = "\(directory.path)/state"
    let first = try TransferDatabase(directory: path)
    #expect(throws: AgentError.inUse("\(path)/agent.lock")) { try TransferDatabase(directory: path) }
    withExtendedLifetime(first) {}
  }
}
