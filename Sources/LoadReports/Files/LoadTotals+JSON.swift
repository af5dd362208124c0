// The counts of a report as JSON.

package import JSONDocuments

extension LoadTotals: JSONObject {
  package mutating func map(_ member: inout JSONMembers) throws(DocumentError) {
    try member("streams", &streams)
    try member("messages", &messages)
    try member("bytes", &bytes)
    try member("interruptions", &interruptions)
    try member("connects", &connects)
    try member("interim_responses", &interimResponses)
    var statuses = Dictionary(uniqueKeysWithValues: responses.map { (String($0.key), $0.value) })
    try member("responses", &statuses)
    responses = [:]
    for (key, count) in statuses {
      guard let status = Int(key), (100...999).contains(status) else {
        throw member.error("has \"\(key)\", which is not a status", at: "responses")
      }
      responses[status] = count
    }
    try member("errors", &errors)
    var list = outages.outages
    try member("outages", &list)
    outages = OutageLedger(list)
  }
}

extension LoadTotals.Streams: JSONObject {
  package mutating func map(_ member: inout JSONMembers) throws(DocumentError) {
    try member("started", &started)
    try member("finished", &finished)
    try member("failed", &failed)
    try member("peak_live", &peakLive)
    try member.optional("fewest_live_at_end", &fewestLiveAtEnd)
  }
}

extension LoadTotals.Messages: JSONObject {
  package mutating func map(_ member: inout JSONMembers) throws(DocumentError) {
    try member("due", &due)
    try member("sent", &sent)
    try member("acknowledged", &acknowledged)
    try member.mapIfPresent("dropped", &dropped)
  }
}

extension LoadTotals.Bytes: JSONObject {
  package mutating func map(_ member: inout JSONMembers) throws(DocumentError) {
    try member("offered", &offered)
    try member("sent", &sent)
    try member("accepted", &accepted)
    try member("acknowledged", &acknowledged)
    try member("sent_again", &sentAgain)
    try member("lost", &lost)
  }
}

extension LoadTotals.Interruptions: JSONObject {
  package mutating func map(_ member: inout JSONMembers) throws(DocumentError) {
    try member("on_purpose", &onPurpose)
    try member("unplanned", &unplanned)
    try member("failed_attempts", &failedAttempts)
  }
}

extension LoadTotals.ErrorClass: JSONObject {
  package mutating func map(_ member: inout JSONMembers) throws(DocumentError) {
    try member("count", &count)
    try member("example", &example)
  }
}
