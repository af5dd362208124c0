// Credentials by the content of a protection space. On Linux, Foundation finds only those of the same object.

internal import Foundation
internal import FoundationNetworking

extension URLCredentialStorage {
  /// The default credential of a protection space with the same content.
  func defaultCredential(forSpaceLike space: URLProtectionSpace) -> URLCredential? {
    allCredentials.keys.first { $0.isLike(space) }.flatMap { defaultCredential(for: $0) }
  }
}

extension URLProtectionSpace {
  fileprivate func isLike(_ other: URLProtectionSpace) -> Bool {
    host.lowercased() == other.host.lowercased() && port == other.port && realm == other.realm
      && `protocol` == other.protocol && authenticationMethod == other.authenticationMethod
      && isProxy() == other.isProxy()
  }
}
