// Counts the recordings of an earlier server against the quotas: growing recordings, and those that were closed before
// their end.

internal import DiskFiles
internal import EventLoops
internal import StreamServing
internal import Synchronization

extension FileStore {
  /// Lists the directory and counts the stored bytes, in slices.
  func countStored() throws(SystemError) {
    try recordings.scan(on: worker, growing: countGrowing)
    guard accounts != nil, let names = try parts.names() else { return }
    let end = MonotonicInstant.now + CompleteRecordings.patience
    while MonotonicInstant.now < end {
      if try countClosed(names) { return }
    }
    countClosedOn(names)
  }

  /// Lists the directory again if the worker could not list all of it at the start. Until it has, streams that may be
  /// in the rest are refused. The same applies to the logs of streams with closed recordings, which are counted late.
  package func listAgain() {
    // The disk may still not answer, which must not delay a loop.
    worker.execute { [self] in
      recordings.scanAgain(on: worker, growing: countGrowing)
      guard lacksClosed.exchange(false, ordering: .acquiringAndReleasing) else { return }
      do throws(SystemError) {
        if let names = try parts.names() { countClosedOn(names) }
      } catch {
        lacksClosed.store(true, ordering: .releasing)
      }
    }
  }

  private func countGrowing(_ file: String, of fileBase: String) {
    guard let accounts, let stream = fileBase.split(separator: "~").first.map(String.init) else { return }
    accounts.found(file, of: fileBase, owner: owner(of: stream, (try? parts.lines(of: stream))?.last))
  }

  private func countClosedOn(_ names: DirectoryNames) {
    worker.executeSlice { [self] in
      do throws(SystemError) {
        if try !countClosed(names) { countClosedOn(names) }
      } catch {
        // What is counted already is not counted again.
        lacksClosed.store(true, ordering: .releasing)
      }
    }
  }

  /// Returns whether that was the last slice.
  private func countClosed(_ names: DirectoryNames) throws(SystemError) -> Bool {
    let streams = try names.next(100)
    for stream in streams {
      for part in ((try? parts.lines(of: stream)) ?? []).closedParts.values {
        guard let (fileBase, _) = StreamName.parts(ofFile: part.file[...]) else { continue }
        accounts?.found(part.file, of: String(fileBase), owner: owner(of: stream, part))
      }
    }
    return streams.isEmpty
  }

  /// The owner of the recording's bytes; nil if it is unknown.
  private func owner(of stream: String, _ part: RecordingPart?) -> UploadOwner? {
    let owner = try? owners.owner(ofStream: stream)
    return owner.map { UploadOwner(credential: $0, address: "") } ?? part?.owner
  }

  /// Counts the bytes of a stream's recording that have no known owner against the quota of that owner.
  func attribute(_ name: StreamName, to owner: UploadOwner) {
    guard let accounts, let log = try? parts.lines(of: name.base) else { return }
    accounts.attribute(name.lastRecording(log), to: owner)
  }
}
