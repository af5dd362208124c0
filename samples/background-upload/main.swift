// Uploads that continue after this program has ended, with the names of Apple's API.
//
//     sample-background-upload IDENTIFIER URL FILE    hands a file to the agent, and waits
//     sample-background-upload IDENTIFIER             waits for the uploads of earlier runs
//
// Kill it at any time: the upload continues, and the next run prints how it ended.

import Dispatch
import FoundationUploads

final class Uploads: NSObject, URLSessionDataDelegate, Sendable {
  func urlSession(_ session: URLSession, task: URLSessionTask, didCompleteWithError error: (any Error)?) {
    let status = (task.response as? HTTPURLResponse)?.statusCode ?? 0
    say(
      "\(task.taskDescription ?? "a file"): \(error.map { "failed: \($0.localizedDescription)" } ?? "status \(status)")"
    )
    endIfDone(session)
  }

  /// Ends the program when no task is left. The answer arrives after the current delegate call has returned, so the
  /// agent knows by then that this program has received the result.
  func endIfDone(_ session: URLSession) {
    session.getAllTasks { tasks in
      if tasks.isEmpty { exit(0) }
      self.say("waiting for \(tasks.count)")
    }
  }

  private func say(_ line: String) { FileHandle.standardOutput.write(Data("\(line)\n".utf8)) }
}

let arguments = CommandLine.arguments
guard arguments.count == 2 || arguments.count == 4 else {
  FileHandle.standardError.write(Data("usage: sample-background-upload IDENTIFIER [URL FILE]\n".utf8))
  exit(64)
}
let uploads = Uploads()
let session = URLSession(
  configuration: .background(withIdentifier: arguments[1]), delegate: uploads, delegateQueue: nil)
if arguments.count == 4, let url = URL(string: arguments[2]) {
  var request = URLRequest(url: url)
  request.httpMethod = "PUT"
  let task = session.uploadTask(with: request, fromFile: URL(fileURLWithPath: arguments[3]))
  task.taskDescription = arguments[3]
  task.resume()
}
uploads.endIfDone(session)
dispatchMain()
