// Why bytes of a body are not kept: the disk, or a limit.

internal import EventLoops
internal import ResumableUploads

enum KeepingError {
  case disk(SystemError)
  /// The quotas leave no room.
  case quota
  /// The stream would be longer than it may be.
  case size

  var refusal: UploadRefusal {
    switch self {
    case .disk(let error): UploadRefusal(error)
    case .quota: .quotaExhausted
    case .size: .representationTooLarge
    }
  }
}
