// Why bytes of a body are not kept: the disk, or a limit.

internal import DiskFiles
package import EventLoops
package import ResumableUploads

package enum KeepingError {
  case disk(SystemError)
  /// The quotas leave no room.
  case quota
  /// The stream would be longer than it may be.
  case size

  package var refusal: UploadRefusal {
    switch self {
    case .disk(let error): UploadRefusal(error)
    case .quota: .quotaExhausted
    case .size: .representationTooLarge
    }
  }
}

extension UploadRefusal {
  /// Bytes, or what has to be known of them, could not be stored.
  package init(_ error: SystemError) {
    if error.isForeignChange {
      self = .deactivated(.stateLost)
      return
    }
    self = error.isShortage ? .outOfResources(error.reason) : .notStored(error.reason, isFull: error.isFull)
  }
}
