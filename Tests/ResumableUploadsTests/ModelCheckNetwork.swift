// The connections between client and server in the model: requests, their content, the answers, and their progress.

import HTTPMessages

@testable import ResumableUploads

/// What an exchange delivers to the server, in order.
enum Upstream: Equatable {
  case head(ModelRequest)
  case bytes([UInt8])
  /// The regular end of the content.
  case end
  /// The end of the connection, before or after the end of the content.
  case closed
}

/// What the server returns on the exchange.
enum Downstream: Equatable {
  case interim(HeaderFields)
  case final(ServerAnswer)
  case closed
}

struct ModelRequest: Equatable {
  var method: String
  /// The URL of the upload resource; nil for the target of creations.
  var url: String?
  var fields: HeaderFields
  var content: RequestSummary.Content
}

/// A request under way with its answers. It stands for the connection, as far as the protocol is concerned.
struct ModelExchange {
  let number: Int
  let request: ModelRequest
  /// The messages on the way to the server and to the client.
  var up: [Upstream]
  var down: [Downstream] = []
  var isClientThere = true
  var isServerThere = true
  /// All messages that the client has sent, for a replay.
  var sent: [Upstream]
}
