// swift-format-ignore-file
// The listing is as README prints it.

// Uploads film.mkv from the current directory, pauses a tenth of a second later, and resumes.
//
//     swift run resume-upload http://localhost:8080/film

import LiveStreaming

let url = CommandLine.arguments[1]
let session = try UploadSession()
var reportCount = 0
var paused: Bool {
  reportCount += 1
  return reportCount > 1
}

// 2. The same with progress, pause, and resumption in a later process.
let upload = try session.uploadTask(file: "film.mkv", to: url)
for await progress in upload.progress { print(progress.fractionCompleted); if paused { break } }
if let resumeData = await upload.cancelProducingResumeData() {   // nil if the server cannot resume
  let receipt = try await session.upload(resuming: resumeData)   // later
}
