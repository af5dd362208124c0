// The checkpoints that a running download stores.

internal import DiskFiles
internal import EventLoops
internal import Glibc

extension FileDownload {
  /// How many bytes are written between two checkpoints: more than a disk stores in a moment, and no more than a link
  /// delivers in minutes.
  private static let checkpointInterval: UInt64 = 64 << 20

  /// Has the program store a checkpoint. Bytes that are passed to the file later are written after it.
  ///
  /// - Parameter isSynchronized: whether the bytes must be on the disk first.
  func record(isSynchronized: Bool = false) {
    guard let record = configuration.record, let file, !file.isStream else { return }
    recorded = machine.count
    let (validator, length, digest) = (machine.validator ?? "", machine.length, machine.digest)
    worker.execute { [self] in
      var count: UInt64 = 0
      if isSynchronized {
        guard file.error == nil, (try? file.synchronize()) != nil else { return onLoop { $0.written() } }
        count = file.written
      }
      let isStored = record(
        DownloadCheckpoint(
          DownloadResumeData(
            path: file.path, inode: file.inode, birth: file.birth, byteCount: count, validator: validator,
            length: length, digest: digest)))
      // An earlier checkpoint of the same bytes suffices. After a power failure, some of them are requested again.
      guard !isStored, !isSynchronized else { return }
      file.refuse(SystemError(operation: "store the record of \(file.path)", code: EAGAIN))
      onLoop { $0.written() }
    }
  }

  /// More bytes have been passed to the file.
  func recordIfDue() {
    guard configuration.record != nil, machine.count >= recorded.addingSaturated(Self.checkpointInterval) else {
      return
    }
    record(isSynchronized: true)
  }
}
