// Uploads film.mkv from the current directory.
//
//     swift run upload-file http://localhost:8080/film

import LiveStreaming

let url = CommandLine.arguments[1]

// 1. Upload a file. It resumes after every interruption.
let session = try UploadSession()
let receipt = try await session.upload(file: "film.mkv", to: url)

print("uploaded \(receipt.byteCount) bytes")
