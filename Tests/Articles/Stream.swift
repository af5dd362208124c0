// The parts that the article "Uploading streams of data" omits: the class around its listings, and a program that uses
// it.
//
// articles.py replaces the lines that name listings.

import FoundationUploads

class Uploader: NSObject, URLSessionTaskDelegate, StreamDelegate {
  var canWrite = false
  var timer: Timer?

  // LISTING stream 1

  // LISTING stream 3

  // LISTING stream 4

  // LISTING stream 5

  func beginUpload() {
    // LISTING stream 2
  }

  func beginTimer() {
    // LISTING stream 6
  }

  func end() {
    timer?.invalidate()
    boundStreams.output.close()
  }

  func urlSession(_ session: URLSession, task: URLSessionTask, didCompleteWithError error: (any Error)?) {
    print("completed:", error.map { "\($0)" } ?? "no error")
    exit(error == nil ? 0 : 1)
  }
}

let seconds = CommandLine.arguments.dropFirst().first.flatMap { Double($0) } ?? 60
let uploader = Uploader()
uploader.beginUpload()
uploader.beginTimer()
Timer.scheduledTimer(withTimeInterval: seconds + 0.5, repeats: false) { _ in uploader.end() }
RunLoop.main.run()
