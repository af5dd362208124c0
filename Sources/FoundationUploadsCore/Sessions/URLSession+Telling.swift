// Selects the receivers of a task's events.

internal import EventLoops
internal import Foundation

extension URLSession {
  func taskDelegate(of task: URLSessionTask) -> (any URLSessionTaskDelegate)? {
    task.delegate ?? delegateOfTasks as? any URLSessionTaskDelegate
  }

  /// The receiver of the response's body. If a completion handler gets the body, only the task's own delegate is
  /// called.
  func dataDelegate(of task: URLSessionTask) -> (any URLSessionDataDelegate)? {
    task.delegate as? any URLSessionDataDelegate
      ?? (task.hasHandler ? nil : delegateOfTasks as? any URLSessionDataDelegate)
  }

  /// The receiver of a download's file. If a completion handler gets the file, only the task's own delegate is called.
  func downloadDelegate(of task: URLSessionTask) -> (any URLSessionDownloadDelegate)? {
    task.delegate as? any URLSessionDownloadDelegate
      ?? (task.hasHandler ? nil : delegateOfTasks as? any URLSessionDownloadDelegate)
  }

  /// The session's delegate, for a method that the task's own delegate lacks; nil if `asked` is not the task's
  /// delegate.
  ///
  /// The default implementations of the delegates' methods call it. They exist in a class for each method that it does
  /// not implement.
  func fallback(from asked: any URLSessionDelegate, of task: URLSessionTask) -> (any URLSessionDelegate)? {
    guard let own = task.delegate, own === asked, let delegate, delegate !== asked else { return nil }
    return delegate
  }

  /// The total number of a task's body bytes that this machine's TCP has accepted.
  func noteSent(_ count: UInt64, of task: URLSessionTask) {
    let tells = task.change { facts in
      facts.bytesSent = max(facts.bytesSent, Int64(clamping: count))
      guard facts.bytesSent > facts.bytesTold, !facts.isTelling else { return false }
      facts.isTelling = true
      return true
    }
    task.updateProgress()
    guard tells, let delegate = taskDelegate(of: task) else { return }
    call { [self] in
      // Everything since the last call, in however many pieces.
      let (new, total, expected) = task.change { facts in
        facts.isTelling = false
        defer { facts.bytesTold = facts.bytesSent }
        return (facts.bytesSent - facts.bytesTold, facts.bytesSent, facts.bytesExpectedToSend)
      }
      delegate.urlSession(
        self, task: task, didSendBodyData: new, totalBytesSent: total, totalBytesExpectedToSend: expected)
    }
  }
}
