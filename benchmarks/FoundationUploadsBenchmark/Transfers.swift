// Files through URLSession, as a program of Apple's world would send and fetch them.

import FoundationUploads

/// How a transfer ended: the program's exit code, after a line on standard error where it failed.
private func end(_ response: URLResponse?, _ error: (any Error)?) -> Never {
  let status = (response as? HTTPURLResponse)?.statusCode ?? 0
  guard error == nil, (200..<300).contains(status) else {
    FileHandle.standardError.write(Data("failed: \(error.map { "\($0)" } ?? "status \(status)")\n".utf8))
    exit(1)
  }
  exit(0)
}

/// Uploads a file and ends the process.
func upload(_ file: URL, to url: URL) -> Never {
  var request = URLRequest(url: url)
  request.httpMethod = "PUT"
  let session = URLSession(configuration: .default)
  session.uploadTask(with: request, fromFile: file) { _, response, error in end(response, error) }.resume()
  dispatchMain()
}

/// Downloads into a file, as programs do: the finished download is moved to where it belongs. Ends the process.
func download(_ url: URL, to file: URL) -> Never {
  let session = URLSession(configuration: .default)
  let task = session.downloadTask(with: url) { temporary, response, error in
    var failure = error
    if let temporary {
      do { try FileManager.default.moveItem(at: temporary, to: file) } catch { failure = error }
    }
    end(response, failure)
  }
  task.resume()
  dispatchMain()
}
