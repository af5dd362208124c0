// The measurements of a task's requests, and their receivers.

internal import Foundation
internal import FoundationNetworking
internal import HTTPMessages
internal import UploadClient

extension Transfer {
  /// A request of the task is over, or is about to be aborted.
  func note(_ measured: RequestMeasurements?, of sent: UploadRequest?, _ response: HTTPResponse?) {
    guard let measured, let sent, let url = URL(string: UploadRequest.withoutCredentials(sent.url)) else { return }
    var request = URLRequest(url: url)
    request.httpMethod = sent.method
    for field in sent.fields.all { request.addValue(field.value, forHTTPHeaderField: field.rawName) }
    transactions.append(
      URLSessionTaskTransactionMetrics(request, response.flatMap { HTTPURLResponse.make($0, url) }, measured))
  }

  /// The same for ``running``, with its result.
  func noteRunning(_ result: Result<UploadTask.Outcome, UploadError>?, of sent: UploadRequest?) {
    note(running?.measure(), of: sent, try? result?.get().response)
  }

  /// Aborts the current request, if there is one. Its measurements so far remain.
  func abortRunning() {
    guard let running else { return }
    noteRunning(nil, of: sent)
    running.cancel()
    self.running = nil
  }

  /// The metrics of the whole task, at its end.
  var metrics: URLSessionTaskMetrics {
    let end = Date()
    // The clock may have been set meanwhile.
    let start = min(resumeDate ?? end, end)
    return URLSessionTaskMetrics(
      transactions, DateInterval(start: start, end: end), redirects: redirectCount)
  }
}
