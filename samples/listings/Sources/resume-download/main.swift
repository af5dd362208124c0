// Downloads a file. If the server cannot be reached for ten minutes, start the program again: it continues.
//
//     swift run resume-download http://localhost:8080/film-1.mkv

import Downloads
import Foundation
import UploadClient

let url = CommandLine.arguments[1]

// The same with a time limit for an outage, and a record with which a later process continues.
let record = URL(filePath: "film.resume")
var configuration = FileDownload.Configuration(request: UploadRequest(url: url), to: "film.mkv")
configuration.retry.giveUpAfter = .seconds(600)
configuration.resumeData = try? JSONDecoder().decode(DownloadResumeData.self, from: Data(contentsOf: record))
for await event in FileDownload(configuration).events(on: try UploadSession()) {
  guard case .ended(let summary) = event else { continue }
  try JSONEncoder().encode(summary.resumeData).write(to: record, options: .atomic)  // null: nothing to resume
  print(summary.error?.description ?? "complete")
}
