// Restores a directory to the state of its last checkpoint.

internal import DiskFiles
internal import EventLoops
internal import Glibc
internal import StreamServing
internal import StreamStore

/// The checkpoint to which a directory was restored. Blocks, and is used before the collection runs.
struct CollectionStart {
  let checkpoint: CollectorCheckpoint
  /// Growing recordings, and the seconds since each was written.
  let unfinished: [(name: StreamName, silence: Int64)]
  /// The missing bytes of recordings, in words.
  let losses: [String]
  /// The streams that cannot be restored, because their records cannot be read, and the reasons. Their recordings are
  /// unchanged.
  let unreadable: [StreamName: SystemError]

  /// - Parameter created: when the JetStream stream was made.
  init(
    _ store: FileStore, _ configuration: LogCollector.Configuration, created: String
  ) throws(LogCollectorError) {
    let (path, file) = (configuration.directory, CheckpointFile(in: store.directory))
    let known: CollectorCheckpoint?
    do throws(SystemError) {
      known = try file.read()
    } catch {
      throw .damagedCheckpoint(path, reason: error.code == EBADMSG ? "it is not a checkpoint" : error.reason)
    }
    var checkpoint = CollectorCheckpoint(
      stream: configuration.stream, created: created, partition: configuration.partition.text)
    if let known,
      (known.stream, known.partition, known.created) != (configuration.stream, checkpoint.partition, created)
    {
      throw .otherSource(path, found: known.source, wanted: checkpoint.source)
    }
    var unreadable: [StreamName: SystemError] = [:]
    for upload in known?.uploads ?? [] {
      if let error = store.recordsError(of: upload.origin.name) { unreadable[upload.origin.name] = error }
    }
    for omission in known?.omissions ?? [] {
      let name = StreamName(base: omission.base)
      if let error = store.recordsError(of: name) { unreadable[name] = error }
    }
    for file in known?.files ?? [] {
      let name = StreamName(base: file.base)
      if let error = unreadable[name] ?? store.recordsError(of: name) {
        unreadable[name] = error
        continue
      }
      do throws(SystemError) {
        try store.undoSplit(name, to: GrowthExtent(part: file.part, length: file.length))
        // A collector of an earlier version has left no other record of it.
        if file.part == 1 { try store.adopt(name) }
      } catch {
        guard error.isObstacle else { throw .disk(error) }
        unreadable[name] = error
      }
    }
    // The other thread has ended before they are used.
    nonisolated(unsafe) var left: [(name: StreamName, silence: Int64)] = []
    do throws(SystemError) {
      try store.findUnfinished(except: Set(unreadable.keys)) { name, silence in
        left.append((name, silence))
      } unreadable: { name, error in
        // The first checkpoint must contain all recordings, because the next collector removes others.
        guard known != nil, !error.isShortage else { return false }
        unreadable[name] = error
        return true
      }
    } catch {
      throw .unreadableDirectory(path, reason: error.description)
    }
    // A stream may have several files.
    left.removeAll { unreadable[$0.name] != nil }
    var losses: [String] = []
    do throws(SystemError) {
      if let known {
        checkpoint = known
        let extents = Dictionary(
          known.files.map { ($0.base, GrowthExtent(part: $0.part, length: $0.length)) },
          uniquingKeysWith: { _, new in new })
        // A checkpoint with bytes of an upload was written after a sync of their recording. The first checkpoint lists
        // recordings of a server, which no collector has synced.
        let synced = Set(known.uploads.lazy.filter { $0.offset > $0.segmentStart }.map(\.origin.name.base))
        for (name, _) in left {
          do throws(SystemError) {
            let missing = try store.rollBack(name, to: extents[name.base], wasSynced: synced.contains(name.base))
            if missing > 0 { losses.append("\(name.partial) has lost \(missing) bytes since they were stored") }
          } catch {
            guard error.isObstacle else { throw error }
            unreadable[name] = error
          }
        }
        left.removeAll { unreadable[$0.name] != nil }
        var growing: [(name: StreamName, silence: Int64)] = []
        for found in left where try store.growth(of: found.name) != nil { growing.append(found) }
        left = growing
        // The others were removed or closed since then, so a later recording of the same stream is another one.
        let bases = Set(growing.map { $0.name.base } + unreadable.keys.map { $0.base })
        checkpoint.files.removeAll { !bases.contains($0.base) }
      } else {
        // The collector must not remove the bytes of a server.
        for (name, _) in left {
          guard let extent = try store.growth(of: name) else { continue }
          checkpoint.files.append(.init(base: name.base, part: extent.part, length: extent.length))
        }
        try file.write(checkpoint)
      }
    } catch {
      throw .disk(error)
    }
    (self.checkpoint, unfinished, self.losses, self.unreadable) = (checkpoint, left, losses, unreadable)
  }
}

extension CollectorCheckpoint {
  /// The source of the recordings, in words.
  var source: String { "the JetStream stream \(stream), made \(created), partition \(partition)" }
}
