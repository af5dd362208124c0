// Stores that tests use without a server.

import EventLoops

@testable import DiskFiles
@testable import StreamServing
@testable import StreamStore

extension FileStore {
  /// A store that shares neither files nor quotas, and does not remember closed streams whose files are gone.
  convenience init(
    in directory: TemporaryDirectory, durability: Durability = .none, hasSidecars: Bool = false,
    split: RecordingSplit? = nil, retention: RetentionState? = nil, isCollected: Bool = false,
    boot: String = BootIdentifier.current
  ) throws(DirectoryError) {
    try self.init(
      path: directory.path, durability: durability, closedLifetime: .zero, hasSidecars: hasSidecars, split: split,
      retention: retention, isCollected: isCollected, boot: boot, files: OpenFiles(), UploadUsage(.init()))
  }
}
