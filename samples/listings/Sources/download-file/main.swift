// Downloads a file.
//
//     swift run download-file http://localhost:8080/film-1.mkv

import Downloads
import UploadClient

let url = CommandLine.arguments[1]

// 7. Download a file. It resumes after every interruption.
let download = FileDownload(.init(request: UploadRequest(url: url), to: "film.mkv"))
for await event in download.events(on: try UploadSession()) { print(event) }
