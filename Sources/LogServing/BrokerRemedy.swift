// What to do about an error of the brokers, in words.

package import JetStream

extension BrokerError {
  /// A sentence that follows ``description``.
  package var remedy: String {
    switch self {
    case _ where lacksJetStream, .noResponders: "Enable JetStream in the configuration of the brokers."
    case .unreachable, .disconnected, .timedOut:
      "Start a broker there, correct its address, or name a client certificate if it requires one."
    case .notAuthorized: "Correct the token, the credentials or the client certificate."
    case .unusableFile: "Correct the file or its path."
    case .shortPayload, .messageTooLarge: "Raise max_payload in the configuration of the brokers."
    case .unsuitableStream: "Change the stream, or name another one."
    case .refused, .invalidReply: "Correct the configuration of the brokers."
    case .resources: "Raise the limits of the process, such as ulimit -n."
    }
  }
}
