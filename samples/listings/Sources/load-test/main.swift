// Streams 100 microphones for five seconds, and prints how the server performed.
//
//     swift run load-test http://localhost:8080/load

import LoadTesting
import UploadClient

let url = CommandLine.arguments[1]

// 8. Load-test an endpoint with 100 live streams, and judge it.
var configuration = LoadConfiguration(request: UploadRequest(url: url))
configuration.streams = 100
configuration.duration = .seconds(5)
let report = try LoadTest(configuration).run()
if let failure = try Threshold("ack.p99 > 500ms").failure(in: report) { print(failure) }

print(report.table)
