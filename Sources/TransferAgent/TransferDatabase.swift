// The agent's storage: each accepted transfer, until its program has acknowledged its end.

internal import Downloads
package import EventLoops
internal import Glibc
internal import JSONLines
package import TransferClient

/// The database of one agent, for one thread at a time. The lock beside it shows that no other agent uses it.
///
/// Each change is one transaction, on disk when ``apply(_:at:)`` returns (`synchronous=FULL`). After a kill or a power
/// failure, the database has the state before a change or the one after it.
package final class TransferDatabase {
  private let database: SQLite
  private let lock: Int32
  /// The present boot of the machine.
  private let boot: String
  /// The clocks when the machine started, according to the wall clock of the times that were stored in this boot. Nil
  /// before ``load()``, and if there are none.
  package private(set) var start: ClockReading?
  /// The times of earlier boots.
  private var earlier = EarlierTimes()

  /// The layout of the tables (`PRAGMA user_version`).
  private static let version: Int64 = 5

  /// Locks and opens the database in `directory`, and creates what is missing.
  ///
  /// - Parameter boot: identifies the boot of the machine; nil asks the kernel.
  /// - Throws: ``AgentError``: ``AgentError/inUse(_:)`` if another process has the lock.
  package init(directory: String, boot: String? = nil) throws(AgentError) {
    self.boot = boot ?? BootIdentifier.current
    try AgentLocation.makePrivateDirectory(directory)
    let path = directory + "/transfers.db"
    lock = try Self.takeLock(directory + "/agent.lock")
    do throws(AgentError) {
      // SQLite creates its other files with the same mode.
      do throws(SystemError) {
        close(
          try retryingInterrupts("open") { open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0o600) })
      } catch { throw AgentError.system(path, error) }
      do throws(SQLite.Failure) {
        database = try SQLite(path: path)
        try Self.prepare(database)
      } catch {
        throw AgentError.database(
          path,
          error.isDamage
            ? "it is damaged (\(error.message)). Move it away to start with an empty database" : error.message)
      }
    } catch {
      Self.release(lock)
      throw error
    }
  }

  deinit { Self.release(lock) }

  /// Closing alone is not enough: a child that another thread is starting keeps the descriptor until its exec.
  private static func release(_ lock: Int32) {
    flock(lock, LOCK_UN)
    close(lock)
  }

  private static func takeLock(_ path: String) throws(AgentError) -> Int32 {
    let descriptor: Int32
    do throws(SystemError) {
      descriptor = try retryingInterrupts("open") { open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0o600) }
    } catch { throw .system(path, error) }
    do throws(SystemError) {
      try retryingInterrupts("flock") { flock(descriptor, LOCK_EX | LOCK_NB) }
    } catch {
      close(descriptor)
      if error.code == EWOULDBLOCK { throw .inUse(path) }
      throw .system(path, error)
    }
    return descriptor
  }

  private static func prepare(_ database: SQLite) throws(SQLite.Failure) {
    // No other process reads it, so it needs no shared memory.
    try database.run("PRAGMA locking_mode=EXCLUSIVE")
    try database.run("PRAGMA journal_mode=WAL")
    try database.run("PRAGMA synchronous=FULL")
    // Removed values may be secret.
    try database.run("PRAGMA secure_delete=ON")
    let found = try database.run("PRAGMA user_version").first?.first
    if found == .integer(version) {
      let check = try database.run("PRAGMA quick_check(1)").first?.first
      guard check == .text("ok") else { throw SQLite.Failure(code: 11, message: "\(check.map { "\($0)" } ?? "")") }
      return
    }
    guard [0, 1, 2, 3, 4].contains(where: { found == .integer($0) }) else {
      throw SQLite.Failure(code: 1, message: "a newer version of sluice wrote it")
    }
    try database.transaction { () throws(SQLite.Failure) in
      // AUTOINCREMENT prevents the reuse of the number of a removed transfer.
      try database.run(
        """
        CREATE TABLE IF NOT EXISTS transfers(
          id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL UNIQUE, session TEXT NOT NULL, state TEXT NOT NULL,
          request TEXT NOT NULL, version TEXT NOT NULL, size INTEGER NOT NULL, created INTEGER NOT NULL,
          resume_data TEXT, result TEXT)
        """)
      // Since version 3, which also has downloads.
      try database.run(
        """
        CREATE TABLE IF NOT EXISTS abandoned(
          id INTEGER PRIMARY KEY, request TEXT NOT NULL, version TEXT NOT NULL, created INTEGER NOT NULL,
          resume_data TEXT, time INTEGER NOT NULL)
        """)
      // Since version 2.
      try database.run(
        "CREATE TABLE IF NOT EXISTS acknowledged(key TEXT PRIMARY KEY, id INTEGER NOT NULL, time INTEGER NOT NULL)")
      // Since version 5, one row: the clock of the times of one boot, and which times are those of earlier boots.
      try database.run(
        "CREATE TABLE IF NOT EXISTS clock(boot TEXT NOT NULL, start INTEGER NOT NULL, earlier TEXT NOT NULL)")
      // Earlier versions kept secrets of ended transfers. Up to version 3, these were the values of a URL's query.
      for row in try database.run("SELECT \(columns) FROM transfers WHERE state='ended'") {
        guard var transfer = transfer(row) else { continue }
        transfer.removeSecrets()
        try database.run(
          "UPDATE transfers SET request=?, resume_data=? WHERE id=?",
          [.text(text(transfer.request)), transfer.resumeData.map { .text($0) } ?? .null, .integer(transfer.id)])
      }
    }
    if found != .integer(0) {
      // These, and those of removed rows, may be in free pages and in the log.
      try database.run("VACUUM")
      _ = try? database.run("PRAGMA wal_checkpoint(TRUNCATE)")
    }
    // Only at the end: after a kill, all of this is done again.
    try database.run("PRAGMA user_version=\(version)")
  }

  private static let columns = "id, state, request, version, size, created, resume_data, result"

  /// All transfers, and the highest number ever assigned.
  ///
  /// - Throws: ``AgentError/database(_:_:)``, including for an invalid row.
  package func load() throws(AgentError) -> TransferQueue {
    do throws(SQLite.Failure) {
      let rows = try database.run(
        "SELECT \(Self.columns) FROM transfers ORDER BY id")
      var transfers: [Transfer] = []
      for row in rows {
        guard let transfer = Self.transfer(row) else {
          throw SQLite.Failure(code: 11, message: "transfer \(row[0]) cannot be parsed")
        }
        transfers.append(transfer)
      }
      var last: Int64 = 0
      if case .integer(let number)? = try database.run("SELECT seq FROM sqlite_sequence WHERE name='transfers'").first?
        .first
      {
        last = number
      }
      var acknowledged: [AcknowledgedTransfer] = []
      for row in try database.run("SELECT key, id, time FROM acknowledged") {
        guard case .text(let key) = row[0], case .integer(let id) = row[1], case .integer(let time) = row[2] else {
          throw SQLite.Failure(code: 11, message: "an acknowledged transfer cannot be parsed")
        }
        acknowledged.append(AcknowledgedTransfer(key: key, id: id, time: time))
      }
      let clock = try storedClock()
      let queue = TransferQueue(
        transfers, lastID: last, acknowledged: acknowledged, abandoned: try abandoned(), earlier: clock?.earlier)
      (start, earlier) = (clock?.start, queue.earlier)
      return queue
    } catch {
      throw .database("transfers.db", error.message)
    }
  }

  /// Nil if nothing was stored in this boot.
  private func storedClock() throws(SQLite.Failure) -> (start: ClockReading, earlier: EarlierTimes)? {
    guard let row = try database.run("SELECT start, earlier FROM clock WHERE boot=?", [.text(boot)]).first
    else { return nil }
    guard case .integer(let wall) = row[0], case .text(let text) = row[1], let earlier = EarlierTimes(text: text)
    else { throw SQLite.Failure(code: 11, message: "the clock cannot be parsed") }
    return (ClockReading(wall: wall, sinceBoot: 0), earlier)
  }

  private func abandoned() throws(SQLite.Failure) -> [AbandonedTransfer] {
    var abandoned: [AbandonedTransfer] = []
    for row in try database.run("SELECT id, request, version, created, resume_data, time FROM abandoned") {
      guard case .integer(let id) = row[0], case .text(let text) = row[1], case .text(let version) = row[2],
        case .integer(let created) = row[3], case .integer(let time) = row[5],
        let request = FlatJSON(text.utf8).flatMap({ TransferRequest($0) })
      else { throw SQLite.Failure(code: 11, message: "an abandoned transfer cannot be parsed") }
      var transfer = Transfer(id: id, request: request, version: version, size: nil, created: created)
      if case .text(let data) = row[4] { transfer.resumeData = data }
      abandoned.append(AbandonedTransfer(transfer, time: time))
    }
    return abandoned
  }

  private static func transfer(_ row: [SQLite.Value]) -> Transfer? {
    guard case .integer(let id) = row[0], case .text(let state) = row[1], case .text(let text) = row[2],
      let request = FlatJSON(text.utf8).flatMap({ TransferRequest($0) }), case .text(let version) = row[3],
      case .integer(let size) = row[4], case .integer(let created) = row[5]
    else { return nil }
    var transfer = Transfer(
      id: id, request: request, version: version, size: UInt64(exactly: size), created: created)
    if case .text(let data) = row[6] { transfer.resumeData = data }
    switch (state, row[7]) {
    case ("active", .null): transfer.state = .active
    case ("paused", .null): transfer.state = .paused
    case ("ended", .text(let text)):
      guard let result = FlatJSON(text.utf8).flatMap({ TransferResult($0) }) else { return nil }
      transfer.state = .ended(result)
    default: return nil
    }
    return transfer
  }

  /// Writes values that are already there.
  ///
  /// - Throws: ``AgentError/database(_:_:)`` if there is no space even for that, or ``AgentError/databaseMoved(_:)``.
  package func check() throws(AgentError) {
    try requireFile()
    do throws(SQLite.Failure) {
      try database.run("PRAGMA user_version=\(Self.version)")
    } catch {
      throw .database("transfers.db", error.message)
    }
  }

  /// Stores the changes in these actions, all of them or none.
  ///
  /// - Parameter clocks: the present time, to which all times of this boot relate; nil asks the kernel.
  /// - Returns: whether there was something to store.
  /// - Throws: ``AgentError/database(_:_:)`` or ``AgentError/databaseMoved(_:)``. The database is unchanged then.
  @discardableResult
  package func apply(_ actions: [TransferQueue.Action], at clocks: ClockReading? = nil) throws(AgentError) -> Bool {
    let changes = actions.filter(\.isStored)
    guard !changes.isEmpty else { return false }
    try requireFile()
    let clocks = clocks ?? ClockReading.now
    let presentStart = ClockReading(wall: clocks.wall.subtractingSaturated(clocks.sinceBoot), sinceBoot: 0)
    let isNewStart = start.map { presentStart.step(since: $0).magnitude >= TransferAgent.leastStep } ?? true
    do throws(SQLite.Failure) {
      try database.transaction { () throws(SQLite.Failure) in
        for case .store(let transfer) in changes { try store(transfer) }
        for case .storeAcknowledged(let past) in changes { try store(past) }
        for case .remove(let id, let past) in changes {
          try database.run("DELETE FROM transfers WHERE id=?", [.integer(id)])
          try store(past)
        }
        // A transfer may be stored and removed at once.
        for change in changes {
          if case .storeAbandoned(let one) = change { try store(one) }
          if case .removeAbandoned(let id) = change {
            try database.run("DELETE FROM abandoned WHERE id=?", [.integer(id)])
          }
        }
        for case .forget(let key) in changes { try database.run("DELETE FROM acknowledged WHERE key=?", [.text(key)]) }
        if isNewStart { try store(presentStart) }
      }
      if isNewStart { start = presentStart }
      // Replaced or removed values may be secret, and stay in the log until it is emptied. If that fails now, the next
      // change does it.
      if changes.contains(where: Self.removesSecrets) { _ = try? database.run("PRAGMA wal_checkpoint(TRUNCATE)") }
      return true
    } catch {
      throw .database("transfers.db", error.message)
    }
  }

  /// A removed file accepts writes, which are lost when it is closed.
  private func requireFile() throws(AgentError) {
    if database.hasMoved { throw .databaseMoved("transfers.db") }
  }

  private static func removesSecrets(_ change: TransferQueue.Action) -> Bool {
    switch change {
    case .store(let transfer): transfer.hasEnded
    case .removeAbandoned: true
    default: false
    }
  }

  private func store(_ start: ClockReading) throws(SQLite.Failure) {
    try database.run("DELETE FROM clock")
    try database.run(
      "INSERT INTO clock(boot, start, earlier) VALUES(?, ?, ?)",
      [.text(boot), .integer(start.wall), .text(earlier.text)])
  }

  private func store(_ past: AcknowledgedTransfer) throws(SQLite.Failure) {
    try database.run(
      "INSERT OR REPLACE INTO acknowledged(key, id, time) VALUES(?, ?, ?)",
      [.text(past.key), .integer(past.id), .integer(past.time)])
  }

  private func store(_ one: AbandonedTransfer) throws(SQLite.Failure) {
    try database.run(
      "INSERT OR REPLACE INTO abandoned(id, request, version, created, resume_data, time) VALUES(?, ?, ?, ?, ?, ?)",
      [
        .integer(one.transfer.id), .text(Self.text(one.transfer.request)), .text(one.transfer.version),
        .integer(one.transfer.created), one.transfer.resumeData.map { .text($0) } ?? .null, .integer(one.time),
      ])
  }

  private static func text(_ request: TransferRequest) -> String {
    var line = JSONLine(event: "submit")
    request.add(to: &line)
    return line.line
  }

  private func store(_ transfer: Transfer) throws(SQLite.Failure) {
    var (state, result) = ("active", SQLite.Value.null)
    switch transfer.state {
    case .active: break
    case .paused: state = "paused"
    case .ended(let ended):
      var line = JSONLine(event: "result")
      ended.add(to: &line)
      (state, result) = ("ended", .text(line.line))
    }
    try database.run(
      """
      INSERT INTO transfers(id, key, session, state, request, version, size, created, resume_data, result)
      VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
      ON CONFLICT(id) DO UPDATE SET state=excluded.state, request=excluded.request,
        created=excluded.created, resume_data=excluded.resume_data, result=excluded.result
      """,
      [
        .integer(transfer.id), .text(transfer.request.key), .text(transfer.request.session), .text(state),
        .text(Self.text(transfer.request)), .text(transfer.version),
        // The size of a download is in its part, once it is known.
        .integer(transfer.size.map { Int64(clamping: $0) } ?? -1), .integer(transfer.created),
        transfer.resumeData.map { .text($0) } ?? .null, result,
      ])
  }
}
