// The parts that the talk omits: functions around its listings, and a program that calls them.

import FoundationUploads

class Recorder: NSObject, URLSessionDownloadDelegate, URLSessionDataDelegate {
  func urlSession(_ session: URLSession, downloadTask: URLSessionDownloadTask, didFinishDownloadingTo location: URL) {
    say("downloaded \((try? Data(contentsOf: location))?.count ?? -1)")
  }

  func urlSession(_ session: URLSession, task: URLSessionTask, didCompleteWithError error: (any Error)?) {
    say(
      "completed \(task is URLSessionUploadTask ? "upload" : "download"): \((error as? URLError)?.code.rawValue ?? 0)")
  }
}

func say(_ text: String) {
  print(text)
  fflush(nil)
}

func beginDownload(_ session: URLSession, _ request: URLRequest) {
  // LISTING talk 4:53
}

func pauseDownload(_ session: URLSession, _ request: URLRequest) async {
  // LISTING talk 5:21
}

func resumeDownload(_ session: URLSession, _ request: URLRequest) async {
  // LISTING talk 6:11
}

func awaitDownload(_ session: URLSession, _ request: URLRequest) async throws {
  // LISTING talk 6:34
}

func beginUpload(_ session: URLSession, _ request: URLRequest, _ fileURL: URL) {
  // LISTING talk 8:29
}

func pauseUpload(_ session: URLSession, _ request: URLRequest, _ fileURL: URL) async {
  // LISTING talk 8:37
}

func resumeUpload(_ session: URLSession, _ request: URLRequest, _ fileURL: URL) async {
  // LISTING talk 8:57
}

func awaitUpload(_ session: URLSession, _ request: URLRequest, _ fileURL: URL) async throws {
  // LISTING talk 9:22
}

// UPLOAD-URL DOWNLOAD-URL FILE
let arguments = CommandLine.arguments
let session = URLSession(configuration: .default, delegate: Recorder(), delegateQueue: nil)
let fileURL = URL(fileURLWithPath: arguments[3])
let download = URLRequest(url: URL(string: arguments[2])!)
func upload(_ name: String) -> URLRequest {
  var request = URLRequest(url: URL(string: "\(arguments[1])/\(name)")!)
  request.httpMethod = "POST"
  return request
}

beginDownload(session, download)
await pauseDownload(session, download)
await resumeDownload(session, download)
try await awaitDownload(session, download)
beginUpload(session, upload("begun"), fileURL)
await pauseUpload(session, upload("paused"), fileURL)
await resumeUpload(session, upload("resumed"), fileURL)
try await awaitUpload(session, upload("awaited"), fileURL)
while await !session.allTasks.isEmpty { try await Task.sleep(for: .milliseconds(20)) }
session.finishTasksAndInvalidate()
say("the end")
