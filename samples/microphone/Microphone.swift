// A microphone, streamed to a server for ten seconds.
//
//     swift run sample-microphone http://localhost:8080/kitchen hw:CARD=Mic

import MicrophoneStreaming

@main
struct MicrophoneSample {
  static func main() async throws {
    let arguments = CommandLine.arguments
    let url = arguments.count > 1 ? arguments[1] : "http://localhost:8080/kitchen"
    let device = arguments.count > 2 ? arguments[2] : "default"
    let microphone = try Microphone(MicrophoneConfiguration(device: device, maximumFrames: 480_000))
    let session = try UploadSession()
    let stream = try session.stream(microphone, to: url)
    for await event in stream.events {
      print(event)
    }
  }
}
