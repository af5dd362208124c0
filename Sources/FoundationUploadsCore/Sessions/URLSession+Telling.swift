// Who hears of a task, and what.

internal import EventLoops
internal import Foundation

extension URLSession {
  func taskDelegate(of task: URLSessionTask) -> (any URLSessionTaskDelegate)? {
    task.delegate ?? delegate as? any URLSessionTaskDelegate
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
