// Sessions whose transfers outlive the process.

internal import EventLoops
internal import Foundation
internal import FoundationNetworking
internal import TransferClient

extension URLSession {
  /// Connects to the agent, restores the tasks of earlier processes, and delivers the events that they have missed.
  func beginBackground(_ background: BackgroundSession) {
    let transfers = background.begin()
    for status in transfers { restore(status, background) }
    // The link's thread waits, because later events come after those that the tasks have missed.
    let missedEvents = Monitor()
    missedEvents.withLock {
      let isListening = background.listen { [weak self] news in
        missedEvents.withLock {}
        self?.hear(news)
      }
      guard isListening else { return disconnectTasks() }
      for status in transfers { hear(.transfer(status)) }
      // After all of these events.
      if transfers.contains(where: { $0.result != nil }) {
        call { [weak self] in self.map { $0.delegate?.urlSessionDidFinishEvents(forBackgroundURLSession: $0) } }
      }
    }
  }

  /// The session receives no more news of its tasks.
  private func disconnectTasks() {
    for task in openTasks { (task.engine as? BackgroundTransfer)?.isDisconnected() }
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
      disconnectTasks()
    }
  }
}
