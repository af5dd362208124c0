// A line with the time, once per second, to a server, for as long as the program runs. This is what Apple's article
// "Uploading streams of data" does, and it resumes after every interruption.
//
//     swift run sample-heartbeat http://localhost:8080/pulse

import LiveStreaming

@main
struct Heartbeat {
  static func main() async throws {
    let url = CommandLine.arguments.dropFirst().first ?? "http://localhost:8080/pulse"
    let session = try UploadSession()
    let stream = try session.stream(HeartbeatSource(), to: url, contentType: "text/plain")
    for await event in stream.events {
      print(event)
    }
  }
}
