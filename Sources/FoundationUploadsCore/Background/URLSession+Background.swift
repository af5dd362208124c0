// Sessions whose transfers outlive the process.

internal import EventLoops
internal import Foundation
internal import FoundationNetworking
internal import TransferClient

extension URLSession {
  /// Connects to the agent, restores the tasks of earlier processes, and delivers the events that they have missed.
  func beginBackground(_ background: BackgroundSession) {
    let transfers = background.begin()
    var missed = false
    for status in transfers {
      restore(status, background)
      if status.result != nil { missed = true }
    }
    for status in transfers { hear(.transfer(status)) }
    // Events that have arrived meanwhile concern tasks that now exist.
    background.listen { [weak self] news in self?.hear(news) }
    // After all of these events.
    if missed {
      call { [weak self] in self.map { $0.delegate?.urlSessionDidFinishEvents(forBackgroundURLSession: $0) } }
    }
  }

  private func restore(_ status: TransferStatus, _ background: BackgroundSession) {
    let request = URL(string: status.url).map { URLRequest(url: $0) }
    let task: URLSessionTask =
      switch status.kind {
      case .upload:
        URLSessionUploadTask(self, request, .file(URL(fileURLWithPath: status.path)), .delegate, restoring: status)
      case .download: URLSessionDownloadTask(self, request, .none, .delegate, restoring: status)
      }
    task.change { facts in
      facts.state = status.state == .paused ? .suspended : .running
      facts.text = status.note
    }
    begin(task)
  }

  private func hear(_ news: AgentLink.News) {
    switch news {
    case .transfer(let status):
      // The agent learns that such a task is over.
      for case let transfer as BackgroundTransfer in openTasks.lazy.map(\.engine) where transfer.key == status.key {
        return transfer.hear(status)
      }
    case .replaced:
      background?.fail(
        URLError(
          .backgroundSessionInUseByAnotherProcess, nil, "another session with the same identifier was created"))
      background?.finish()
      for task in openTasks { (task.engine as? BackgroundTransfer)?.isReplaced() }
    }
  }
}
