// Traces of a server in its directory that show which unfinished recordings will be continued.

internal import EventLoops
internal import Glibc
internal import HTTPMessages
internal import ResumableUploads

enum ServerTraces {
  /// Whether a server has locked the directory. It reads the kernel's list of locks (proc_locks(5)), because trying the
  /// lock could keep out a server that starts at this moment.
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

  /// The `Stream-ID`s in the records of unfinished uploads. The names of a stream's files contain its ID.
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
