// A line with the time, once a second, to a server, for as long as the program runs:
// what Apple's article "Uploading streams of data" does, with recovery from every dropout.
//
//     swift run sample-heartbeat http://localhost:8080/pulse

import LiveStreaming
import UploadClient

@main
struct Heartbeat {
  static func main() async throws {
    let url = CommandLine.arguments.dropFirst().first ?? "http://localhost:8080/pulse"
    let session = try UploadSession()
    let configuration = LiveStreamConfiguration(request: UploadRequest(url: url))
    let streamer = try LiveStreamer(HeartbeatSource(), configuration: configuration, session: session)
    for await event in streamer.events() {
      print(event)
    }
  }
}
