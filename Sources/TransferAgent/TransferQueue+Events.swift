// What happens to the queue, and what follows.

package import TransferClient

extension TransferQueue {
  package enum Event: Equatable, Sendable {
    /// The file has been looked at: its version and its size, which those of downloads do not have.
    case submitted(TransferRequest, version: String, size: UInt64?)
    case pause(Int64)
    case resume(Int64)
    /// - Parameter keeps: whether the program gets the part of a download.
    case cancel(Int64, keeps: Bool = false)
    case acknowledge(Int64)
    /// The server has been asked to forget what it has, and whether it has answered; or the part is removed.
    case abandoned(Int64, isDone: Bool)
    /// The upload has a resource at the server (`ResumeData`), or the download a part (`DownloadCheckpoint`).
    case created(Int64, resumeData: String)
    /// What ran has ended.
    case finished(Int64, Ending)
    /// Time has passed.
    case timeCame
    /// The network is of this kind now.
    case network(NetworkConditions)
    /// The agent ends: what runs is stopped, and nothing begins.
    case shutdown

    /// Of which transfer it is, if it is what one has done; nil for orders, and for what concerns all.
    var transfer: Int64? {
      switch self {
      case .created(let id, _), .finished(let id, _), .abandoned(let id, _): id
      default: nil
      }
    }
  }

  /// How what ran has ended.
  package enum Ending: Equatable, Sendable {
    case completed(TransferResult)
    case failed(TransferResult)
    /// It was stopped. The resume data is nil if there is nothing to continue.
    case stopped(resumeData: String?)
    /// This machine cannot run it now, for lack of descriptors or the like; why, in words.
    case postponed(String)
  }

  package enum Action: Equatable, Sendable {
    /// In the database, before anything that follows.
    case store(Transfer)
    /// It is not kept any more, and its key is.
    case remove(Int64, AcknowledgedTransfer)
    /// The key is not kept any more, either.
    case forget(key: String)
    /// In the database, as ``store(_:)``, until ``removeAbandoned(_:)``.
    case storeAbandoned(AbandonedTransfer)
    case removeAbandoned(Int64)
    case accept(Int64)
    case refuse(AgentAnswer.Refusal, String)
    case done
    case start(Transfer)
    /// It says ``Event/finished(_:_:)`` when it has ended.
    case stop(Int64)
    /// It runs and waits for its next attempt: that is due now.
    case retry(Int64)
    /// The server is asked to forget what it has, or the part is removed. Then comes ``Event/abandoned(_:isDone:)``.
    case abandon(Transfer)
    /// Whoever watches the session is told.
    case tell(Int64)
    /// At this time, in milliseconds since 1970, comes ``Event/timeCame``.
    case wake(at: Int64)
  }
}
