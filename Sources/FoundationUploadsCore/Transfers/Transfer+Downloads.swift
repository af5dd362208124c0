// Downloads: writing a response's body to a file, and the steps after that.

internal import EventLoops
internal import Foundation
internal import FoundationNetworking
internal import UploadClient

extension Transfer {
  func write(_ bytes: [UInt8], to file: DownloadFile) {
    if intake.add(bytes.count) { updateReception() }
    file.write(bytes) { [self] in
      onLoop { self.wrote(file) }
    } taken: { [self, engine] bytes in
      engine?.reuse(bytes)
      took(bytes.count)
    }
  }

  /// Some bytes were written to the file.
  private func wrote(_ file: DownloadFile) {
    guard !isOver, file === download else { return }
    file.takeNews()
    if let problem = file.problem { return end(problem) }
    tellWritten(file)
    if file.isWritten, let work = afterWriting.take() { work() }
  }

  func tellWritten(_ file: DownloadFile) {
    guard let delegate = session.downloadDelegate(of: task), let task = task as? URLSessionDownloadTask else { return }
    let rest = task.countOfBytesExpectedToReceive
    let expected = rest < 0 ? rest : rest.addingSaturated(file.start)
    guard
      task.change({ facts in
        defer { facts.isTellingWritten = true }
        return !facts.isTellingWritten
      })
    else { return }
    let (start, count) = (file.start, file.byteCount)
    session.call { [session] in
      task.change { $0.isTellingWritten = false }
      // Everything since the last call, in however many pieces.
      let total = count()
      let new = task.change { facts in
        defer { facts.bytesToldWritten = total - start }
        return total - start - facts.bytesToldWritten
      }
      guard new > 0 else { return }
      delegate.urlSession(
        session, downloadTask: task, didWriteData: new, totalBytesWritten: total, totalBytesExpectedToWrite: expected)
    }
  }

  /// Calls `work` when all received bytes of a download are written. The request must be over, so that no more arrive.
  func whenWritten(_ work: @escaping () -> Void) {
    guard let download else { return work() }
    guard download.isWritten else {
      afterWriting = work
      // If only a truncation is pending, no other notification would follow.
      return download.whenWritten { [self] in onLoop { self.wrote(download) } }
    }
    // The notification of that may still be on its way.
    tellWritten(download)
    work()
  }

  /// Ends the request, stores the received bytes, and passes on the data with which a later task continues.
  func stopDownload(_ work: @escaping @Sendable (DownloadRecord?) -> Void) {
    (number, questions) = (number + 1, questions + 1)
    abortRunning()
    whenWritten { [unowned self] in synchronizeDownload(then: work) }
  }

  private func synchronizeDownload(then work: @escaping @Sendable (DownloadRecord?) -> Void) {
    guard let download else { return work(nil) }
    download.whenSynchronized { [self] in
      onLoop { [self] in
        guard !isOver else { return }
        work(download.record(of: request, isAtOtherOrigin: isAtOtherOrigin))
      }
    }
  }

  func tellResumed(_ file: DownloadFile, _ rest: Int64) {
    guard let delegate = session.downloadDelegate(of: task), let task = task as? URLSessionDownloadTask else { return }
    let offset = file.start
    session.call { [session] in
      delegate.urlSession(
        session, downloadTask: task, didResumeAtOffset: offset,
        expectedTotalBytes: rest < 0 ? rest : rest.addingSaturated(offset))
    }
  }

  /// The server has answered with something else than the requested part, so everything is requested.
  func startOver() {
    number += 1
    abortRunning()
    task.change { $0.response = nil }
    content = .none
    if let old = download, old.isOwned { try? FileManager.default.removeItem(at: old.url) }
    download = DownloadFile(session.disk)
    send()
  }
}
