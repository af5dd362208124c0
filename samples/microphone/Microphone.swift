// A microphone, streamed to a server for ten seconds.
//
//     swift run sample-microphone http://localhost:8080/kitchen hw:CARD=Mic

import AudioCapture
import LiveStreaming
import StreamBuffers
import UploadClient

@main
struct MicrophoneSample {
  static func main() async throws {
    let arguments = CommandLine.arguments
    let url = arguments.count > 1 ? arguments[1] : "http://localhost:8080/kitchen"
    let device = arguments.count > 2 ? arguments[2] : "default"
    let microphone = try Microphone(MicrophoneConfiguration(device: device, maximumFrames: 480_000))
    let source = MicrophoneSource(microphone)
    var request = UploadRequest(url: url)
    request.fields.addDefault("Content-Type", source.contentType)
    var configuration = LiveStreamConfiguration(request: request)
    configuration.buffer = .time(.seconds(60), bytesPerSecond: microphone.format.bytesPerSecond)
    let streamer = try LiveStreamer(source, configuration: configuration, session: try UploadSession())
    for await event in streamer.events() {
      print(event)
    }
  }
}
