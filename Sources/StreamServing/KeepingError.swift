// Why bytes of a body are not kept: the disk, or a limit.

internal import DiskFiles
package import EventLoops
package import ResumableUploads

package enum KeepingError {
  case disk(SystemError)
  /// The quotas are exhausted.
  case quota
  /// The stream would exceed its maximum size.
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
  /// Bytes, or information about them, could not be stored.
  package init(_ error: SystemError) {
    if error.isForeignChange {
      self = .deactivated(.stateLost)
      return
    }
    self = error.isShortage ? .outOfResources(error.reason) : .notStored(error.cause, isFull: error.isFull)
  }
}
