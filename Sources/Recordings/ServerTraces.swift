// What a server leaves in its directory that says which unfinished recordings somebody will continue.

internal import EventLoops
internal import Glibc
internal import HTTPMessages
internal import ResumableUploads

enum ServerTraces {
  /// Whether a server has locked the directory. Trying the lock could keep a server out that starts at this moment; the
  /// kernel's list of locks does not (proc_locks(5)).
  static func isServed(_ directory: String) -> Bool {
    var status = stat()
    guard stat(directory + "/.sluice.lock", &status) == 0,
      let text = FileBytes("/proc/locks")?.all(atMost: .max).map({ String(decoding: $0, as: UTF8.self) })
    else { return false }
    // `1: FLOCK  ADVISORY  WRITE 4711 08:01:1234567 0 EOF`
    return text.split(separator: "\n").contains { line in
      let words = line.split(separator: " ")
      return words.contains("FLOCK") && words.contains { $0.hasSuffix(":\(status.st_ino)") }
    }
  }

  /// The `Stream-ID`s that records of unfinished uploads name. A stream's files are called by it.
  static func streams(in directory: String) -> [String] {
    let records = directory + ".uploads/"
    guard let stream = opendir(records) else { return [] }
    defer { closedir(stream) }
    var names: [String] = []
    while let item = readdir(stream) {
      let file = withUnsafeBytes(of: &item.pointee.d_name) { String(decoding: $0.prefix { $0 != 0 }, as: UTF8.self) }
      guard file.hasSuffix(".upload"), let text = FileBytes(records + file)?.all(atMost: 1 << 20),
        let record = UploadRecord(parsing: String(decoding: text, as: UTF8.self)), record.response == nil,
        record.deactivation == nil, let id = record.fields["stream-id"]
      else { continue }
      names.append(id)
    }
    return names
  }
}
