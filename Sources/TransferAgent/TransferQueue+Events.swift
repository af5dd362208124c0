// The events of the queue, and the actions that follow.

package import TransferClient

extension TransferQueue {
  package enum Event: Equatable, Sendable {
    /// The file has been examined. Downloads have no version and no size.
    case submitted(TransferRequest, version: String, size: UInt64?)
    case pause(Int64)
    case resume(Int64)
    /// - Parameter keeps: whether the program receives the part of a download.
    case cancel(Int64, keeps: Bool = false)
    case acknowledge(Int64)
    /// The agent has asked the server to remove the upload, which may have answered, or the part is removed.
    case abandoned(Int64, isDone: Bool)
    /// The upload has a resource on the server (`ResumeData`), or the download has a part (`DownloadCheckpoint`).
    case created(Int64, resumeData: String)
    /// A running transfer has ended.
    case finished(Int64, Ending)
    /// Time has passed.
    case timeCame
    /// The wall clock was set forward by this many milliseconds, or back if it is negative.
    case clockSet(by: Int64)
    /// The kind of network has become known or has changed.
    case network(NetworkConditions)
    /// The kind of network could not be determined, for this reason in words. If it was known, it stays.
    case networkUnknown(String)
    /// The agent ends. Running transfers are stopped, and none begins.
    case shutdown

    /// The transfer whose event this is; nil for orders and for events that concern all.
    var transfer: Int64? {
      switch self {
      case .created(let id, _), .finished(let id, _), .abandoned(let id, _): id
      default: nil
      }
    }
  }

  /// How a running transfer has ended.
  package enum Ending: Equatable, Sendable {
    case completed(TransferResult)
    case failed(TransferResult)
    /// It was stopped. The resume data is nil if there is nothing to continue.
    case stopped(resumeData: String?)
    /// This machine cannot run it now, for lack of descriptors or the like. The value is the reason in words.
    case postponed(String)
  }

  package enum Action: Equatable, Sendable {
    /// Store it in the database, before anything that follows.
    case store(Transfer)
    /// Remove it, but keep its key.
    case remove(Int64, AcknowledgedTransfer)
    /// Store such a key with its time.
    case storeAcknowledged(AcknowledgedTransfer)
    /// Remove the key, too.
    case forget(key: String)
    /// Store it in the database, like ``store(_:)``, until ``removeAbandoned(_:)``.
    case storeAbandoned(AbandonedTransfer)
    case removeAbandoned(Int64)
    case accept(Int64)
    case refuse(AgentAnswer.Refusal, String)
    case done
    case start(Transfer)
    /// Stop it. ``Event/finished(_:_:)`` follows when it has ended.
    case stop(Int64)
    /// It is waiting for its next attempt, which is due now.
    case retry(Int64)
    /// Ask the server to remove the upload, or remove the part. ``Event/abandoned(_:isDone:)`` follows.
    case abandon(Transfer)
    /// Notify the programs that watch the session.
    case tell(Int64)
    /// Send ``Event/timeCame`` at this time, in milliseconds since 1970.
    case wake(at: Int64)

    /// Whether it changes the database.
    package var isStored: Bool {
      switch self {
      case .store, .remove, .storeAcknowledged, .forget, .storeAbandoned, .removeAbandoned: true
      default: false
      }
    }
  }
}
