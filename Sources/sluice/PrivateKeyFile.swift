// Private keys in PEM files. An encrypted key cannot be used, because the network thread reads the file repeatedly and
// cannot ask for a pass phrase.

enum PrivateKeyFile {
  /// - Throws: ``CommandError`` with exit code 66 for a file whose first private key is encrypted.
  static func check(_ path: String, option: String) throws(CommandError) {
    let bytes = try InputFile.contents(of: path, option: option, limit: 16 << 20, isReadAgain: true)
    guard isEncrypted(bytes) else { return }
    throw CommandError(
      .noInput,
      "--\(option) \(path.shown): the private key is encrypted. Decrypt it into a file that only you can read: openssl pkey -in \(path.shellQuoted) -out decrypted.key"
    )
  }

  /// Recognizes PKCS #8 and the older header of RFC 1421.
  static func isEncrypted(_ bytes: [UInt8]) -> Bool {
    let lines = bytes.split { $0 == 0x0A || $0 == 0x0D }.lazy.map { String(decoding: $0, as: UTF8.self) }
    var isFirstLine = false
    for line in lines {
      if isFirstLine { return line.hasPrefix("Proc-Type:") && line.contains("ENCRYPTED") }
      guard line.hasPrefix("-----BEGIN "), line.contains("PRIVATE KEY-----") else { continue }
      if line.contains("ENCRYPTED") { return true }
      isFirstLine = true
    }
    return false
  }
}
