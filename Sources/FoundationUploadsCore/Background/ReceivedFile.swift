// The result of a download in a background session.

internal import Foundation
internal import FoundationNetworking
internal import HTTPMessages
internal import TransferClient

/// The file that a delegate receives.
enum ReceivedFile: Sendable {
  /// The agent's file. It removes the file once the end is acknowledged.
  case agent(URL)
  /// The beginning of a response other than the resource, such as the page of a 404.
  case answer([UInt8])

  /// Calls `body` with the file, which exists until it returns.
  func withURL(_ body: (URL) -> Void) {
    switch self {
    case .agent(let url): body(url)
    case .answer(let bytes):
      let url = FileManager.default.temporaryDirectory.appendingPathComponent("sluice-\(UUID().uuidString)")
      guard
        FileManager.default.createFile(
          atPath: url.path, contents: Data(bytes), attributes: [.posixPermissions: 0o600])
      else { return }
      body(url)
      try? FileManager.default.removeItem(at: url)
    }
  }
}

extension TransferResult {
  /// Whether a server has refused the transfer, or has not confirmed it (206). For a program, that is a response
  /// instead of an error.
  var isAnswer: Bool {
    guard ["refused", "notPermitted"].contains(cause ?? ""), let status else { return false }
    return status >= 200 && !ConfirmingStatus.contains(status)
  }
}

extension URLError {
  init(_ result: TransferResult, _ url: URL?) {
    let code: Code =
      switch result.cause {
      case _ where result.outcome == .cancelled: .cancelled
      case "fileUnreadable", "fileChanged": .cannotOpenFile
      case "file", "exists": .cannotWriteToFile
      case "timedOut": .timedOut
      case "notTrusted": .serverCertificateUntrusted
      case "notPermitted": .userAuthenticationRequired
      case "invalidRequest": .badURL
      case "refused", "protocolBroken", "http2NotSupported", "insecureLocation", "corrupt": .badServerResponse
      default: .unknown
      }
    self.init(code, url, result.message)
  }
}
