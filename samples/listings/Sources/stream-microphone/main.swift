// Streams the second sound card, for as long as the program runs.
//
//     swift run stream-microphone http://localhost:8080/kitchen

import MicrophoneStreaming

let url = CommandLine.arguments[1]
let session = try UploadSession()

// 4. Stream a microphone, or any asynchronous sequence of bytes, and follow what happens.
let stream = try session.stream(Microphone(device: "hw:1"), to: url)
for await event in stream.events { print(event) }
let summary = try await stream.value

print("streamed \(summary.progress.acknowledged) bytes")
