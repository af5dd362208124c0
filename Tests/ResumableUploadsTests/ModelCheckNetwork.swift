// What is between client and server in the model: requests, what they bring, what comes back, and where all of it
// stands.

import HTTPMessages

@testable import ResumableUploads

/// What an exchange brings to the server, in order.
enum Upstream: Equatable {
  case head(ModelRequest)
  case bytes([UInt8])
  /// The content's end, as it should be.
  case end
  /// The connection's end, before that of the content or after it.
  case closed
}

/// What the server gives back on it.
enum Downstream: Equatable {
  case interim(HeaderFields)
  case final(ServerAnswer)
  case closed
}

struct ModelRequest: Equatable {
  var method: String
  /// nil for the target that uploads are for.
  var url: String?
  var fields: HeaderFields
  var content: RequestSummary.Content
}

/// A request on its way, with its answers: its connection, as far as it matters to the protocol.
struct ModelExchange {
  let number: Int
  let request: ModelRequest
  /// On the way to the server, and to the client.
  var up: [Upstream]
  var down: [Downstream] = []
  var isClientThere = true
  var isServerThere = true
  /// All that the client has sent, for a replay.
  var sent: [Upstream]
}
