// The part of SQLite's interface that the agent needs, with errors as values.

internal import CSQLite

/// A database file, for one thread at a time.
final class SQLite {
  /// The error of a failed call.
  struct Failure: Error, Equatable {
    /// An extended result code: sqlite.org/rescode.html.
    var code: Int32
    var message: String
    /// Whether the file's content is damaged, or is not a database.
    var isDamage: Bool { [SQLITE_CORRUPT, SQLITE_NOTADB].contains(code & 0xFF) }
  }

  enum Value: Equatable {
    case null
    case integer(Int64)
    case text(String)
  }

  private let handle: OpaquePointer

  /// Opens a file, and creates it if necessary.
  init(path: String) throws(Failure) {
    var handle: OpaquePointer?
    let code = sqlite3_open_v2(path, &handle, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOFOLLOW, nil)
    guard code == SQLITE_OK, let handle else {
      let message = handle.map { String(cString: sqlite3_errmsg($0)) } ?? String(cString: sqlite3_errstr(code))
      sqlite3_close_v2(handle)
      throw Failure(code: code, message: message)
    }
    self.handle = handle
    sqlite3_extended_result_codes(handle, 1)
    sqlite3_busy_timeout(handle, 5000)
  }

  deinit { sqlite3_close_v2(handle) }

  /// Runs one statement to its end.
  ///
  /// - Returns: its rows.
  @discardableResult
  func run(_ statement: String, _ values: [Value] = []) throws(Failure) -> [[Value]] {
    var prepared: OpaquePointer?
    try check(sqlite3_prepare_v2(handle, statement, -1, &prepared, nil))
    defer { sqlite3_finalize(prepared) }
    for (index, value) in zip(Int32(1)..., values) {
      switch value {
      case .null: try check(sqlite3_bind_null(prepared, index))
      case .integer(let number): try check(sqlite3_bind_int64(prepared, index, number))
      case .text(let text):
        // SQLITE_TRANSIENT, a macro that Swift does not import. SQLite copies the text.
        let copies = unsafeBitCast(-1, to: sqlite3_destructor_type.self)
        try check(sqlite3_bind_text(prepared, index, text, Int32(text.utf8.count), copies))
      }
    }
    var rows: [[Value]] = []
    while true {
      let code = sqlite3_step(prepared)
      if code == SQLITE_DONE { return rows }
      guard code == SQLITE_ROW else { throw failure(code) }
      rows.append((0..<sqlite3_column_count(prepared)).map { Self.value(prepared, $0) })
    }
  }

  /// Runs `body` as one transaction: afterwards the database has all of it or nothing.
  func transaction(_ body: () throws(Failure) -> Void) throws(Failure) {
    try run("BEGIN IMMEDIATE")
    do throws(Failure) {
      try body()
      try run("COMMIT")
    } catch {
      // After some errors, such as a full disk, SQLite has already rolled back.
      if sqlite3_get_autocommit(handle) == 0 { _ = try? run("ROLLBACK") }
      throw error
    }
  }

  /// Whether the file is no longer at its path.
  var hasMoved: Bool {
    var hasMoved: Int32 = 0
    return sqlite3_file_control(handle, "main", SQLITE_FCNTL_HAS_MOVED, &hasMoved) == SQLITE_OK && hasMoved != 0
  }

  private static func value(_ statement: OpaquePointer?, _ column: Int32) -> Value {
    switch sqlite3_column_type(statement, column) {
    case SQLITE_INTEGER: .integer(sqlite3_column_int64(statement, column))
    case SQLITE_NULL: .null
    default:
      sqlite3_column_text(statement, column).map { text in
        let bytes = UnsafeBufferPointer(start: text, count: Int(sqlite3_column_bytes(statement, column)))
        return .text(String(decoding: bytes, as: UTF8.self))
      } ?? .null
    }
  }

  private func check(_ code: Int32) throws(Failure) {
    if code != SQLITE_OK { throw failure(code) }
  }

  private func failure(_ code: Int32) -> Failure {
    Failure(code: code, message: String(cString: sqlite3_errmsg(handle)))
  }
}
