// Uploads with the names of Apple's API. On Apple's systems only the import line differs.
//
//     sample-foundation-uploads clock URL        streams a line per second until it is interrupted
//     sample-foundation-uploads file URL FILE    uploads a file; interrupted, it keeps resume data in FILE.resume

import Dispatch
import FoundationUploads

/// Streams the time. The task reads the input stream of a bound pair, and this class writes into its output stream.
final class Clock: NSObject, URLSessionTaskDelegate, StreamDelegate, @unchecked Sendable {
  private let input: InputStream
  private let output: OutputStream
  private var mayWrite = false

  override init() {
    var (input, output): (InputStream?, OutputStream?)
    Stream.getBoundStreams(withBufferSize: 4096, inputStream: &input, outputStream: &output)
    guard let input, let output else { fatalError("getBoundStreams gives two streams, always") }
    (self.input, self.output) = (input, output)
    super.init()
    output.delegate = self
    output.schedule(in: .main, forMode: .default)
    output.open()
  }

  func stream(_ aStream: Stream, handle eventCode: Stream.Event) {
    if eventCode.contains(.hasSpaceAvailable) { mayWrite = true }
    if eventCode.contains(.errorOccurred) { print("the upload reads no more") }
  }

  func tick() {
    guard mayWrite else { return }
    mayWrite = false
    let line = Array("\(Date())\n".utf8)
    _ = output.write(line, maxLength: line.count)
  }

  func end() { output.close() }

  func urlSession(
    _ session: URLSession, task: URLSessionTask,
    needNewBodyStream completionHandler: @escaping @Sendable (InputStream?) -> Void
  ) {
    completionHandler(input)
  }

  func urlSession(_ session: URLSession, task: URLSessionTask, didCompleteWithError error: (any Error)?) {
    print(error.map { "failed: \($0)" } ?? "complete")
    exit(error == nil ? 0 : 1)
  }
}

/// Calls `action` once, when the program is interrupted.
func onInterrupt(_ action: @escaping @Sendable () -> Void) -> any DispatchSourceSignal {
  signal(SIGINT, SIG_IGN)
  let source = DispatchSource.makeSignalSource(signal: SIGINT, queue: .main)
  source.setEventHandler { action() }
  source.resume()
  return source
}

let arguments = CommandLine.arguments
guard arguments.count > 2, let url = URL(string: arguments[2]) else {
  print("usage: sample-foundation-uploads clock URL | file URL FILE")
  exit(64)
}
var request = URLRequest(url: url)
request.httpMethod = "POST"

if arguments[1] == "clock" {
  let clock = Clock()
  let session = URLSession(configuration: .default, delegate: clock, delegateQueue: .main)
  session.uploadTask(withStreamedRequest: request).resume()
  let interrupt = onInterrupt { clock.end() }
  _ = Timer.scheduledTimer(withTimeInterval: 1, repeats: true) { _ in clock.tick() }
  RunLoop.main.run()
  withExtendedLifetime(interrupt) {}
}

let file = URL(fileURLWithPath: arguments.count > 3 ? arguments[3] : "")
let record = file.appendingPathExtension("resume")
let session = URLSession(configuration: .default)
let ended: @Sendable (Data?, URLResponse?, (any Error)?) -> Void = { _, response, error in
  if let data = (error as? URLError)?.uploadTaskResumeData { try? data.write(to: record) }
  print(error.map { "failed: \($0)" } ?? "complete: \((response as? HTTPURLResponse)?.statusCode ?? 0)")
  exit(error == nil ? 0 : 1)
}
let task: URLSessionUploadTask
if let resumeData = try? Data(contentsOf: record) {
  try? FileManager.default.removeItem(at: record)
  task = session.uploadTask(withResumeData: resumeData, completionHandler: ended)
} else {
  task = session.uploadTask(with: request, fromFile: file, completionHandler: ended)
}
task.resume()
let interrupt = onInterrupt {
  task.cancel { resumeData in
    try? resumeData?.write(to: record)
    print(resumeData == nil ? "it cannot be resumed" : "start the program again to resume")
    exit(0)
  }
}
dispatchMain()
