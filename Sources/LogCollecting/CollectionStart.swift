// What a collector begins with: the directory in the state of its last checkpoint.

internal import EventLoops
internal import Glibc
internal import StreamServing
internal import StreamStore

/// The checkpoint of a directory, which has been put back to it. Blocks; before the collection runs.
struct CollectionStart {
  let checkpoint: CollectorCheckpoint
  /// Recordings that grow, and how many seconds ago each was written.
  let unfinished: [(name: StreamName, silence: Int64)]
  /// What is missing of recordings, in words.
  let losses: [String]

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
    for file in known?.files ?? [] {
      do throws(SystemError) {
        try store.undoSplit(StreamName(base: file.base), to: GrowthExtent(part: file.part, length: file.length))
      } catch {
        throw .disk(error)
      }
    }
    // The end of one thread gives them to this one.
    nonisolated(unsafe) var left: [(name: StreamName, silence: Int64)] = []
    do throws(SystemError) {
      try store.findUnfinished { left.append(($0, $1)) }
    } catch {
      throw .unreadableDirectory(path, reason: error.description)
    }
    var losses: [String] = []
    do throws(SystemError) {
      if let known {
        checkpoint = known
        let extents = Dictionary(
          known.files.map { ($0.base, GrowthExtent(part: $0.part, length: $0.length)) },
          uniquingKeysWith: { _, new in new })
        for (name, _) in left {
          let missing = try store.rollBack(name, to: extents[name.base])
          if missing > 0 { losses.append("\(name.partial) has lost \(missing) bytes since they were stored") }
        }
        var growing: [(name: StreamName, silence: Int64)] = []
        for found in left where try store.growth(of: found.name) != nil { growing.append(found) }
        left = growing
      } else {
        // What a server has left there is not this collector's to take back.
        for (name, _) in left {
          guard let extent = try store.growth(of: name) else { continue }
          checkpoint.files.append(.init(base: name.base, part: extent.part, length: extent.length))
        }
        try file.write(checkpoint)
      }
    } catch {
      throw .disk(error)
    }
    (self.checkpoint, unfinished, self.losses) = (checkpoint, left, losses)
  }
}

extension CollectorCheckpoint {
  /// Where the recordings come from, for people.
  var source: String { "the JetStream stream \(stream), made \(created), partition \(partition)" }
}
