// The parts that the article "Pausing and resuming uploads" omits: the class around its listings, and a program that
// uses it.

import Dispatch
import FoundationUploads

class Transfers: NSObject, URLSessionDataDelegate {
  let request: URLRequest
  let fileURL: URL
  // swift-format-ignore: NeverUseImplicitlyUnwrappedOptionals
  var uploadTask: URLSessionUploadTask!
  var resumeData: Data?
  let offered = DispatchSemaphore(value: 0)
  let completed = DispatchSemaphore(value: 0)
  var error: (any Error)?

  lazy var session: URLSession = {
    let configuration = URLSessionConfiguration.default
    configuration.timeoutIntervalForResumption = 0.2
    return URLSession(configuration: configuration, delegate: self, delegateQueue: nil)
  }()

  init(_ request: URLRequest, _ fileURL: URL) {
    (self.request, self.fileURL) = (request, fileURL)
  }

  func begin() {
    uploadTask = session.uploadTask(with: request, fromFile: fileURL)
    uploadTask.resume()
  }

  func pause() {
    // LISTING pausing 1
  }

  func upload() async throws {
    // LISTING pausing 2
  }

  func resume() {
    // LISTING pausing 3
  }

  func urlSession(
    _ session: URLSession, task: URLSessionTask, didReceiveInformationalResponse response: HTTPURLResponse
  ) {
    guard response.statusCode == 104 else { return }
    say("offered")
    offered.signal()
  }

  func urlSession(_ session: URLSession, task: URLSessionTask, didCompleteWithError error: (any Error)?) {
    self.error = error
    completed.signal()
  }
}

func say(_ text: String) {
  print(text)
  fflush(nil)
}

// PAUSE: URL FILE pauses an upload and resumes it. RECOVER: the server stops, and restarts when a line is read.
let arguments = CommandLine.arguments
var request = URLRequest(url: URL(string: arguments[2])!)
request.httpMethod = "POST"
let transfers = Transfers(request, URL(fileURLWithPath: arguments[3]))
if arguments[1] == "pause" {
  transfers.begin()
  transfers.offered.wait()
  transfers.pause()
  transfers.completed.wait()
} else {
  say("uploading")
  try await transfers.upload()
  say("failed with resume data: \(transfers.resumeData != nil)")
  _ = readLine()
}
guard transfers.resumeData != nil else {
  say("there is no resume data")
  exit(1)
}
transfers.resume()
transfers.completed.wait()
say("completed: \(transfers.error.map { "\($0)" } ?? "no error")")
exit(transfers.error == nil ? 0 : 1)
