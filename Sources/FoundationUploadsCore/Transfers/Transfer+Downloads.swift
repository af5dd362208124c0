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

  /// Some of the bytes are in the file.
  private func wrote(_ file: DownloadFile) {
    file.takeNews()
    guard !isOver, file === download else { return }
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
      // Everything since the last call, however many pieces that were.
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

  /// Calls `work` when all that has come of a download is written. Nothing more comes then: the request must be over.
  func whenWritten(_ work: @escaping () -> Void) {
    guard let download else { return work() }
    guard download.isWritten else {
      afterWriting = work
      // Where nothing but an order to discard bytes waits, nothing else would say so.
      return download.whenWritten { [self] in onLoop { self.wrote(download) } }
    }
    // The news of that may still be on its way.
    tellWritten(download)
    work()
  }

  /// Ends the request, and writes what has come.
  func stopDownload(_ work: @escaping () -> Void) {
    number += 1
    running?.cancel()
    running = nil
    whenWritten(work)
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

  /// The server has answered something else than the part that was asked for: it is asked for all.
  func startOver() {
    number += 1
    running?.cancel()
    running = nil
    task.change { $0.response = nil }
    content = .none
    if let old = download, old.isOwned { try? FileManager.default.removeItem(at: old.url) }
    download = DownloadFile(session.disk)
    send()
  }
}
