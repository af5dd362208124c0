// Traces of a server or a collector in its directory that show which unfinished recordings will be continued.

internal import DiskFiles
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
      let bytes = try? RegularFile.contents(of: "/proc/locks", limit: .max)
    else { return false }
    let text = String(decoding: bytes, as: UTF8.self)
    // `1: FLOCK  ADVISORY  WRITE 4711 08:01:1234567 0 EOF`
    return text.split(separator: "\n").contains { line in
      let words = line.split(separator: " ")
      return words.contains("FLOCK") && words.contains { $0.hasSuffix(":\(status.st_ino)") }
    }
  }

  /// What the records of unfinished uploads, and a collector's checkpoint, state.
  struct Uploads {
    /// The `Stream-ID`s. The names of a stream's files contain its ID.
    var ids: Set<String> = []
    /// The names of other streams' files, without part and extension.
    var bases: Set<String> = []
    /// The first file or directory that cannot be read, relative to the directory. It may belong to any stream. Nil if
    /// there is none.
    var unreadable: (path: String, code: Int32)?

    /// Whether an upload continues a stream, or may continue it.
    ///
    /// - Parameter base: the name of the stream's files, without part and extension.
    func mayContinue(_ base: Substring) -> Bool {
      if unreadable != nil || bases.contains(String(base)) { return true }
      // An ID may contain hyphens, too.
      return base.indices.contains { base[$0] == "-" && ids.contains(String(base[base.index(after: $0)...])) }
    }
  }

  /// Reads the records of uploads, except those that the server removes in the meantime, and a collector's checkpoint.
  static func uploads(in directory: String) -> Uploads {
    var uploads = records(in: directory)
    let checkpoint = CollectedStreams.fileName
    func failed(_ code: Int32) { if uploads.unreadable == nil { uploads.unreadable = (checkpoint, code) } }
    do throws(SystemError) {
      let text = try RegularFile.contents(of: directory + checkpoint, limit: RegularFile.maximumLogSize)
      if let collected = CollectedStreams(parsing: String(decoding: text, as: UTF8.self)) {
        uploads.ids.formUnion(collected.ids)
        uploads.bases = collected.bases
      } else {
        failed(EBADMSG)
      }
    } catch {
      if !error.isMissing { failed(error.code) }
    }
    return uploads
  }

  private static func records(in directory: String) -> Uploads {
    var uploads = Uploads()
    func failed(_ path: String, _ code: Int32) {
      if code != ENOENT, uploads.unreadable == nil { uploads.unreadable = (path, code) }
    }
    let records = ".uploads"
    guard let stream = opendir(directory + records) else {
      failed(records, errno)
      return uploads
    }
    defer { closedir(stream) }
    while true {
      errno = 0
      guard let item = readdir(stream) else {
        // The position is unchanged then.
        if errno == EINTR { continue }
        if errno != 0 { failed(records, errno) }
        return uploads
      }
      let name = withUnsafeBytes(of: &item.pointee.d_name) { String(decoding: $0.prefix { $0 != 0 }, as: UTF8.self) }
      guard name.hasSuffix(".upload") else { continue }
      let path = "\(records)/\(name)"
      let text: [UInt8]
      do throws(SystemError) {
        text = try RegularFile.contents(of: directory + path, limit: 1 << 20)
      } catch {
        // A file that is too large is not a record.
        if error.code != EOVERFLOW { failed(path, error.code) }
        continue
      }
      guard let record = UploadRecord(parsing: String(decoding: text, as: UTF8.self)), record.response == nil,
        record.deactivation == nil, let id = record.fields["stream-id"]
      else { continue }
      uploads.ids.insert(id)
    }
  }
}
