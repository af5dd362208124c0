// The files in a directory of recordings, grouped by recording.

internal import Digests
internal import DiskFiles
internal import EventLoops
internal import Glibc

/// All files that belong to one recording.
struct RecordingFiles {
  typealias Finding = RecordingVerification.Finding

  /// The path of the directory, with a slash at the end.
  var directory: String
  /// The directory's path in findings; empty, or with a slash at the end.
  var shown: String
  /// The files' name without extension.
  var base: String
  /// The existing extensions, including the dot.
  var extensions: Set<String> = []
  /// The size of the recording's file, in bytes.
  var size: UInt64 = 0
  /// Whether a server uses the directory, or an upload's record or a collector's checkpoint names the recording, or may
  /// name it.
  var isCaredFor = false

  private static let own: Set = [".part", ".gaps", RecordingSidecar.fileExtension]

  /// The extensions of complete recordings, usually one.
  var complete: [String] { extensions.subtracting(Self.own).sorted() }
  var isRecording: Bool { !complete.isEmpty }
  /// Whether only a record of gaps was found.
  var isStray: Bool { extensions == [".gaps"] }

  mutating func insert(_ suffix: String, _ status: stat) {
    extensions.insert(suffix)
    if complete.contains(suffix) { size = UInt64(max(0, status.st_size)) }
  }

  private func finding(_ kind: RecordingVerification.Kind, _ file: String, _ detail: String) -> Finding {
    Finding(kind: kind, path: shown + file, detail: detail)
  }

  /// - Parameter progress: called with the number of bytes that were read.
  /// - Returns: nil if none of the listed files exists any longer, because a server has removed or renamed them.
  func check(_ progress: (UInt64) -> Void) -> [Finding]? {
    let findings = findings(progress)
    let isThere = findings.isEmpty || extensions.contains { exists(base + $0) }
    return isThere ? findings : nil
  }

  private func exists(_ file: String) -> Bool { faccessat(AT_FDCWD, directory + file, F_OK, AT_SYMLINK_NOFOLLOW) == 0 }

  private func isRegular(_ file: String) -> Bool {
    var status = stat()
    return lstat(directory + file, &status) == 0 && status.st_mode & S_IFMT == S_IFREG
  }

  /// - Parameter isRepeated: whether another recording took the place of the one that was compared.
  private func findings(_ progress: (UInt64) -> Void, isRepeated: Bool = false) -> [Finding] {
    var findings: [Finding] = []
    // A server may have given it its final name since the listing, or may have started since.
    if extensions.contains(".part"), exists(base + ".part") {
      findings.append(
        isCaredFor || ServerTraces.isServed(directory)
          ? finding(.unfinished, base + ".part", "the recording is growing, or waits for its sender")
          : finding(.torn, base + ".part", "no upload continues it; the next server closes it after its time limit"))
    }
    let sidecarFile = base + RecordingSidecar.fileExtension
    guard extensions.contains(RecordingSidecar.fileExtension) else { return findings + checkWithoutSidecar() }
    let text: [UInt8]
    do throws(SystemError) {
      text = try RegularFile.contents(of: directory + sidecarFile)
    } catch {
      if error.isMissing { return findings + checkWithoutSidecar() }
      return findings + [finding(.unreadable, sidecarFile, error.obstacle)]
    }
    let sidecar: RecordingSidecar
    do throws(SidecarError) {
      sidecar = try RecordingSidecar(parsing: text)
    } catch {
      return findings + [finding(.invalidSidecar, sidecarFile, "\(error)")]
    }
    for file in complete.map({ base + $0 }) where file != sidecar.file {
      findings.append(finding(.missingSidecar, file, Self.undescribed))
    }
    guard RecordingSidecar.name(for: sidecar.file) == sidecarFile else {
      return findings + [finding(.invalidSidecar, sidecarFile, "it describes a file with another name")]
    }
    // A server may have renamed it while the directory was listed, and readdir(3) may then return neither name.
    guard complete.contains(where: { base + $0 == sidecar.file }) || isRegular(sidecar.file) else {
      return findings + [finding(.missingRecording, sidecarFile, "its recording is missing")]
    }
    let wrong = check(sidecar, progress)
    // A server may have removed the recording in the meantime, and stored another one of the same name.
    if !wrong.isEmpty, !isRepeated, (try? RegularFile.contents(of: directory + sidecarFile)) != text {
      return self.findings(progress, isRepeated: true)
    }
    return findings + wrong
  }

  /// - Parameter isRepeated: whether a server changed the sidecar during the first check.
  private func checkWithoutSidecar(isRepeated: Bool = false) -> [Finding] {
    // Its client may have returned since the listing.
    if isStray, !exists(base + ".part") {
      return [finding(.strayGaps, base + ".gaps", "its recording is missing")]
    }
    guard isRecording else { return [] }
    let name = base + RecordingSidecar.fileExtension
    // A server may have written it in the meantime, or it removes the recording, and moves or hides the sidecar first.
    // It puts the sidecar back if that fails, so a second look finds what was moved during the first.
    let places = [name, "." + name, ".removing/" + name]
    var unreadable: Finding?
    for sidecarFile in places + places {
      let text: [UInt8]
      do throws(SystemError) {
        text = try RegularFile.contents(of: directory + sidecarFile)
      } catch {
        if !error.isMissing { unreadable = finding(.unreadable, sidecarFile, error.obstacle) }
        continue
      }
      let findings = checkUnfinished(text, sidecarFile)
      // A server replaces it in one step, so a change means that the recording may be another one by now.
      if !isRepeated, findings.contains(where: \.kind.isProblem),
        (try? RegularFile.contents(of: directory + sidecarFile)) != text
      {
        return checkWithoutSidecar(isRepeated: true)
      }
      return findings
    }
    if let unreadable { return [unreadable] }
    return complete.map { finding(.missingSidecar, base + $0, Self.undescribed) }
  }

  /// Compares the recordings with a sidecar that a server has not finished, or has moved or hidden to remove them.
  private func checkUnfinished(_ text: [UInt8], _ sidecarFile: String) -> [Finding] {
    let sidecar: RecordingSidecar
    do throws(SidecarError) {
      sidecar = try RecordingSidecar(parsing: text)
    } catch {
      return [finding(.invalidSidecar, sidecarFile, "\(error)")]
    }
    return complete.map { base + $0 }.map { file in
      // Without a length, it describes a recording that grows, and will never have digests of this one.
      guard file == sidecar.file, let stored = sidecar.stored else {
        return finding(.missingSidecar, file, Self.undescribed)
      }
      var status = stat()
      // It is gone if a server has removed it in the meantime.
      guard lstat(directory + file, &status) == 0, UInt64(clamping: status.st_size) != stored.bytes else {
        return pending(file)
      }
      return finding(.wrongLength, file, "\(status.st_size) bytes instead of \(stored.bytes)")
    }
  }

  private static let undescribed = "no sidecar describes it"

  private func pending(_ file: String) -> Finding {
    finding(.pending, file, "sluice serve has not finished the sidecar, or removes the recording")
  }

  private func check(_ sidecar: RecordingSidecar, _ progress: (UInt64) -> Void) -> [Finding] {
    // Of a damaged recording with a corrected header, only the digest of the received form is known.
    let isReceivedForm = sidecar.isDamaged && sidecar.stored?.sha256 == nil
    guard let stored = sidecar.stored,
      let expected = isReceivedForm ? sidecar.received?.sha256 : stored.sha256
    else {
      return [finding(.invalidSidecar, base + RecordingSidecar.fileExtension, "it has no SHA-256 of the stored bytes")]
    }
    let digests = RecordingDigests(
      receivedHead: isReceivedForm ? sidecar.receivedHead : [], fileLength: stored.bytes)
    do throws(SystemError) {
      let file = try FileBytes(directory + sidecar.file)
      let size = try file.size()
      guard size == stored.bytes else {
        return [finding(.wrongLength, sidecar.file, "\(size) bytes instead of \(stored.bytes)")]
      }
      try file.read {
        digests.update($0)
        progress(digests.byteCount)
      }
      guard digests.byteCount == size else {
        return [finding(.unreadable, sidecar.file, "its length changed while it was read")]
      }
    } catch {
      // A server removes the recording last, so it is no longer there only if its sidecar is not either: ``check(_:)``.
      if error.isMissing {
        return [finding(.missingRecording, base + RecordingSidecar.fileExtension, "its recording is missing")]
      }
      return [finding(.unreadable, sidecar.file, error.obstacle)]
    }
    let found = digests.values().received.hexadecimal
    guard found == expected else {
      let since = sidecar.isDamaged ? "; it was damaged before its sidecar was finished" : ""
      return [finding(.wrongDigest, sidecar.file, "SHA-256 is \(found) instead of \(expected)\(since)")]
    }
    return []
  }
}

/// The recordings of a directory and of the directories in it.
struct DirectoryCheck {
  /// Deeper directories are skipped. Links cannot form a cycle, but a mount can.
  private static let deepest = 16
  /// The pauses before each further look for the recordings of `.gaps` files, in milliseconds. Between writing the
  /// `.gaps` and making the recording, a server waits for its disk to sync up to four times.
  private static let pauses: [Int32] = [0, 20, 100, 400, 1000, 1500]

  /// Something that the listing has found.
  enum Entry {
    case recording(RecordingFiles)
    /// A file or a directory that cannot be read. It may hide recordings.
    case unreadable(RecordingVerification.Finding)
  }

  let root: String
  /// Waits for this number of milliseconds.
  private let pause: (Int32) -> Void
  /// The recordings of a directory, in the order of their names, come before those of its subdirectories.
  private(set) var entries: [Entry] = []
  /// The total size of all recordings, in bytes.
  private(set) var byteCount: UInt64 = 0

  init(root: String, pause: @escaping (Int32) -> Void) { (self.root, self.pause) = (root, pause) }

  /// Lists a directory and its subdirectories. A subdirectory that cannot be read becomes an entry.
  ///
  /// - Parameter path: relative to the root. Empty, or with a slash at the end.
  /// - Throws: ``EventLoops/SystemError`` if the directory itself cannot be opened.
  mutating func list(_ path: String, depth: Int = 0) throws(SystemError) {
    let directory = root + "/" + path
    guard let stream = opendir(directory) else { throw .last("open the directory \(directory)") }
    defer { closedir(stream) }
    var files: [String: RecordingFiles] = [:]
    var directories: [String] = []
    // A server stores recordings only in its directory itself, and never in those inside it.
    let isServed = ServerTraces.isServed(directory)
    func entry(_ base: String, _ change: (inout RecordingFiles) -> Void) {
      change(&files[base, default: RecordingFiles(directory: directory, shown: path, base: base, isCaredFor: isServed)])
    }
    var failure: Int32 = 0
    var isDenied = false
    while true {
      errno = 0
      guard let item = readdir(stream) else {
        failure = errno
        // The position is unchanged then.
        if failure == EINTR { continue }
        break
      }
      let name = Self.name(of: item)
      guard !name.hasPrefix(".") else { continue }
      var status = stat()
      guard fstatat(dirfd(stream), name, &status, AT_SYMLINK_NOFOLLOW) == 0 else {
        // A directory that cannot be entered refuses each of its files.
        if errno == EACCES { isDenied = true } else { add(unreadable: path + name, errno) }
        continue
      }
      if status.st_mode & S_IFMT == S_IFDIR { directories.append(name) }
      guard status.st_mode & S_IFMT == S_IFREG else { continue }
      let (base, suffix) = Self.split(name)
      entry(base) { $0.insert(suffix, status) }
    }
    // The names that were read before the failure are still compared.
    if failure == 0, isDenied { failure = EACCES }
    if failure != 0 { add(unreadable: path.isEmpty ? "." : String(path.dropLast()), failure) }
    if failure == 0 { lookAgain(directory, &files) }
    // Other users may read the recordings of a server, but not its records, and these matter only for a `.part`.
    let needsUploads = !isServed && files.values.contains { $0.extensions.contains(".part") }
    let uploads = needsUploads ? ServerTraces.uploads(in: directory) : ServerTraces.Uploads()
    if let (file, code) = uploads.unreadable { add(unreadable: path + file, code) }
    for base in files.keys.sorted() {
      guard var recording = files[base] else { continue }
      // A later recording of a stream has the name of the first one, plus a tilde and a number.
      if needsUploads, uploads.mayContinue(base.prefix { $0 != "~" }) { recording.isCaredFor = true }
      entries.append(.recording(recording))
      byteCount += recording.size
    }
    guard depth < Self.deepest else { return }
    for name in directories.sorted() {
      do throws(SystemError) {
        try list(path + name + "/", depth: depth + 1)
      } catch {
        add(unreadable: path + name, error.code)
      }
    }
  }

  /// Looks again for the recordings of `.gaps` files, as long as a server may be about to make or rename them.
  private func lookAgain(_ directory: String, _ files: inout [String: RecordingFiles]) {
    var strays = Set(files.values.filter(\.isStray).map(\.base))
    for time in Self.pauses where !strays.isEmpty {
      if time > 0 {
        guard ServerTraces.isServed(directory) else { return }
        pause(time)
      }
      guard let stream = opendir(directory) else { return }
      defer { closedir(stream) }
      var present: Set<String> = []
      while let item = readdir(stream) {
        let name = Self.name(of: item)
        let (base, suffix) = Self.split(name)
        guard strays.contains(base) else { continue }
        var status = stat()
        guard fstatat(dirfd(stream), name, &status, AT_SYMLINK_NOFOLLOW) == 0, status.st_mode & S_IFMT == S_IFREG else {
          continue
        }
        if suffix == ".gaps" { present.insert(base) } else { files[base]?.insert(suffix, status) }
      }
      strays = strays.filter { present.contains($0) && files[$0]?.isStray == true }
    }
  }

  private static func name(of item: UnsafeMutablePointer<dirent>) -> String {
    withUnsafeBytes(of: &item.pointee.d_name) { String(decoding: $0.prefix { $0 != 0 }, as: UTF8.self) }
  }

  /// The name without its extension, and the extension with its dot.
  private static func split(_ name: String) -> (base: String, suffix: String) {
    let dot = name.lastIndex(of: ".") ?? name.endIndex
    return (String(name[..<dot]), String(name[dot...]))
  }

  /// Adds what cannot be read, unless a server has removed it since it was listed.
  private mutating func add(unreadable path: String, _ code: Int32) {
    guard code != ENOENT else { return }
    let reason = SystemError(operation: "read", code: code).obstacle
    entries.append(.unreadable(.init(kind: .unreadable, path: path, detail: reason)))
  }
}

extension SystemError {
  /// Why a file cannot be compared, in words.
  fileprivate var obstacle: String {
    switch code {
    case EINVAL: "it is not a regular file"
    case EBADMSG: "it is damaged"
    case EOVERFLOW: "it is too large"
    default: reason
    }
  }
}
