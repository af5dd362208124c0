// What to do about an error of the brokers, in words.

package import JetStream

extension BrokerError {
  private static let payloadSetting = "max_payload"

  /// The brokers accept only messages that are too short for the uploads of that stream.
  package static func shortPayload(_ stream: String, limit: Int) -> BrokerError {
    .unsuitableStream(
      stream,
      reason: "the brokers accept messages of at most \(limit) bytes (\(payloadSetting)), "
        + "and \(UploadLog.leastMessageLength) are required")
  }

  /// A sentence that follows ``description``.
  package var remedy: String {
    switch self {
    case .unreachable, .disconnected, .timedOut: "Start a broker there, or correct its address."
    case .notAuthorized: "Correct the token or the credentials."
    case .unusableFile: "Correct the file or its path."
    case .noResponders: "Enable JetStream in the configuration of the brokers."
    case .unsuitableStream(_, let reason) where reason.contains(Self.payloadSetting):
      "Raise \(Self.payloadSetting) in the configuration of the brokers."
    case .unsuitableStream: "Change the stream, or name another one."
    case .refused, .invalidReply, .messageTooLarge: "Correct the configuration of the brokers."
    case .resources: "Allow the process more."
    }
  }
}
