// Uploads film.mkv from the current directory. If the program is killed, start it again: it continues.
//
//     swift run survive-crash http://localhost:8080/film

import Foundation
import LiveStreaming

let url = CommandLine.arguments[1]
let session = try UploadSession()

// 9. Keep the resume data in a file, so that the next process continues after a crash of this one.
let record = URL(filePath: "film.resume")
let kept = (try? String(contentsOf: record, encoding: .utf8)).flatMap { FileResumeData($0) }
let upload = try kept.map { try session.uploadTask(resuming: $0) } ?? session.uploadTask(file: "film.mkv", to: url)
for await resumeData in upload.resumeData {
  try (resumeData?.text ?? "").write(to: record, atomically: true, encoding: .utf8)  // empty: nothing to resume
}
let receipt = try await upload.value

print(receipt)
