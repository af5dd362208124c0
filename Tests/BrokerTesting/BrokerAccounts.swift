// Accounts of a NATS system like those of an operator's tools: JWTs signed with Ed25519 (docs.nats.io, "JWT").

internal import CCrypto
internal import NetworkTesting

/// An operator with two accounts: the system's, and one for applications, which may use JetStream.
package struct BrokerAccounts: Sendable {
  /// Lines for the configuration of a broker.
  package let settings: String
  /// The contents of credentials files (`.creds`), for a user of each account.
  package let (system, application): (String, String)

  package init() throws {
    let (operator_, system, application) = try (Key(.operator), Key(.account), Key(.account))
    func account(_ key: Key, _ name: String, _ limits: String) throws -> String {
      try operator_.token(
        for: key, name,
        """
        {"limits":{"subs":-1,"data":-1,"payload":-1,"imports":-1,"exports":-1,"wildcards":true,"conn":-1,"leaf":-1\(limits)},\
        "default_permissions":{"pub":{},"sub":{}},"type":"account","version":2}
        """)
    }
    let store = #","mem_storage":-1,"disk_storage":-1,"streams":-1,"consumer":-1"#
    let operatorToken = try operator_.token(
      for: operator_, "operator", #"{"system_account":"\#(system.name)","type":"operator","version":2}"#)
    settings = """
      operator: \(operatorToken)
      system_account: \(system.name)
      resolver: MEMORY
      resolver_preload: {
        \(system.name): \(try account(system, "SYS", ""))
        \(application.name): \(try account(application, "APP", store))
      }
      """
    self.system = try system.credentials()
    self.application = try application.credentials()
  }
}

/// An nkey: a pair of Ed25519 keys, whose text begins with a letter for its purpose.
private final class Key {
  enum Kind: UInt8 {
    // The first five bits select the first letter: O, A or U.
    case `operator` = 112
    case account = 0
    case user = 160
  }

  private let kind: Kind
  private let key: OpaquePointer
  private let seed: [UInt8]
  /// The public key, for example "A" and 55 more letters.
  let name: String

  init(_ kind: Kind) throws {
    self.kind = kind
    seed = (0..<32).map { _ in UInt8.random(in: .min ... .max) }
    guard let key = EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nil, seed, seed.count) else {
      throw TestFailure("EVP_PKEY_new_raw_private_key")
    }
    self.key = key
    var (bytes, count) = ([UInt8](repeating: 0, count: 32), 32)
    guard EVP_PKEY_get_raw_public_key(key, &bytes, &count) == 1 else { throw TestFailure("no public key") }
    name = Self.text([kind.rawValue] + bytes)
  }

  deinit { EVP_PKEY_free(key) }

  /// A signed statement of this key about another one.
  func token(for subject: Key, _ name: String, _ claims: String) throws -> String {
    let body =
      #"{"jti":"T","iat":1700000000,"iss":"\#(self.name)","name":"\#(name)","sub":"\#(subject.name)","nats":\#(claims)}"#
    let signed = [#"{"typ":"JWT","alg":"ed25519-nkey"}"#, body].map { Self.base64(Array($0.utf8)) }.joined(
      separator: ".")
    return "\(signed).\(Self.base64(try sign(Array(signed.utf8))))"
  }

  /// A credentials file for a user of this account.
  func credentials() throws -> String {
    let user = try Key(.user)
    let token = try token(
      for: user, "user", #"{"pub":{},"sub":{},"subs":-1,"data":-1,"payload":-1,"type":"user","version":2}"#)
    // A seed's text begins with S and the letter of its key.
    let seed = Self.text([144 | user.kind.rawValue >> 5, (user.kind.rawValue & 31) << 3] + user.seed)
    return """
      -----BEGIN NATS USER JWT-----
      \(token)
      ------END NATS USER JWT------

      -----BEGIN USER NKEY SEED-----
      \(seed)
      ------END USER NKEY SEED------

      """
  }

  private func sign(_ bytes: [UInt8]) throws -> [UInt8] {
    let context = EVP_MD_CTX_new()
    defer { EVP_MD_CTX_free(context) }
    var (signature, count) = ([UInt8](repeating: 0, count: 64), 64)
    guard EVP_DigestSignInit(context, nil, nil, nil, key) == 1,
      EVP_DigestSign(context, &signature, &count, bytes, bytes.count) == 1
    else { throw TestFailure("EVP_DigestSign") }
    return signature
  }

  /// Base 32 (RFC 4648) without padding, followed by CRC-16 (XMODEM), low byte first.
  private static func text(_ bytes: [UInt8]) -> String {
    var sum: UInt16 = 0
    for byte in bytes {
      sum ^= UInt16(byte) << 8
      for _ in 0..<8 { sum = sum & 0x8000 == 0 ? sum << 1 : sum << 1 ^ 0x1021 }
    }
    var (text, bits, count) = ("", 0, 0)
    for byte in bytes + [UInt8(truncatingIfNeeded: sum), UInt8(sum >> 8)] {
      (bits, count) = (bits << 8 | Int(byte), count + 8)
      while count >= 5 {
        text.append(alphabet[bits >> (count - 5) & 31])
        count -= 5
      }
      bits &= 1 << count - 1
    }
    if count > 0 { text.append(alphabet[bits << (5 - count) & 31]) }
    return text
  }

  private static let alphabet = Array("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")

  /// Base 64 for URLs, without padding.
  private static func base64(_ bytes: [UInt8]) -> String {
    var text = [UInt8](repeating: 0, count: 4 * ((bytes.count + 2) / 3) + 1)
    let count = EVP_EncodeBlock(&text, bytes, Int32(bytes.count))
    return String(decoding: text.prefix(Int(count)), as: UTF8.self).filter { $0 != "=" }
      .map { $0 == "+" ? "-" : $0 == "/" ? "_" : String($0) }.joined()
  }
}
