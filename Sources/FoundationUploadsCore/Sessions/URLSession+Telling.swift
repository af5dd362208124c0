// Selects the receivers of a task's events.

internal import EventLoops
internal import Foundation

extension URLSession {
  func taskDelegate(of task: URLSessionTask) -> (any URLSessionTaskDelegate)? {
    task.delegate ?? delegate as? any URLSessionTaskDelegate
  }

  /// Who hears of the response's body. Where that goes to a completion handler, only the task's own delegate does.
  func dataDelegate(of task: URLSessionTask) -> (any URLSessionDataDelegate)? {
    task.delegate as? any URLSessionDataDelegate
      ?? (task.hasHandler ? nil : delegate as? any URLSessionDataDelegate)
  }

  /// Who hears of a download's file. Where that goes to a completion handler, only the task's own delegate does.
  func downloadDelegate(of task: URLSessionTask) -> (any URLSessionDownloadDelegate)? {
    task.delegate as? any URLSessionDownloadDelegate
      ?? (task.hasHandler ? nil : delegate as? any URLSessionDownloadDelegate)
  }

  /// The session's delegate, for a method that the task's own delegate does not have; nil where `asked` is not that.
  ///
  /// The default implementations of the delegates' methods call it: a class has one of them for each method that it
  /// does not have.
  func fallback(from asked: any URLSessionDelegate, of task: URLSessionTask) -> (any URLSessionDelegate)? {
    guard let own = task.delegate, own === asked, let delegate, delegate !== asked else { return nil }
    return delegate
  }

  /// Body bytes of a task that this machine's TCP has taken, in all.
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
      // Everything since the last call, however many pieces that were.
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
