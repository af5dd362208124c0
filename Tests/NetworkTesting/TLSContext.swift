// TLS on a connection of a script: OpenSSL, so that a test controls each connection and each byte.

internal import CSSL
internal import Glibc

/// A server's certificate and key. It uses HTTP/2 with a client that offers it, and HTTP/1.1 otherwise.
package final class TLSContext: @unchecked Sendable {
  // OpenSSL counts references to SSL_CTX and locks it (SSL_CTX_new(3)).
  fileprivate let context: OpaquePointer

  /// - Parameters:
  ///   - certificate: a PEM file.
  ///   - key: a PEM file.
  package init(certificate: String, key: String) throws {
    guard let context = SSL_CTX_new(TLS_server_method()) else { throw TestFailure("SSL_CTX_new") }
    self.context = context
    guard SSL_CTX_use_certificate_file(context, certificate, SSL_FILETYPE_PEM) == 1,
      SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM) == 1
    else { throw TestFailure("the certificate \(certificate) cannot be used") }
    // SSL_OP_IGNORE_UNEXPECTED_EOF, a macro with arguments: a client may end a connection without close_notify.
    _ = SSL_CTX_set_options(context, 1 << 7)
    SSL_CTX_set_alpn_select_cb(
      context,
      { _, selected, selectedLength, offered, offeredLength, _ in
        var rest = UnsafeBufferPointer(start: offered, count: Int(offeredLength))[...]
        var choice: Slice<UnsafeBufferPointer<UInt8>>?
        while let length = rest.popFirst(), length <= rest.count {
          let name = rest.prefix(Int(length))
          rest = rest.dropFirst(Int(length))
          if name.elementsEqual("h2".utf8) || choice == nil && name.elementsEqual("http/1.1".utf8) { choice = name }
        }
        guard let choice, let offered else { return SSL_TLSEXT_ERR_NOACK }
        selected?.pointee = offered + choice.startIndex
        selectedLength?.pointee = UInt8(choice.count)
        return SSL_TLSEXT_ERR_OK
      }, nil)
  }

  deinit { SSL_CTX_free(context) }
}

/// One connection's TLS. Used by one thread at a time.
final class TLSSession {
  private let session: OpaquePointer

  /// Waits for the handshake.
  init(_ context: TLSContext, _ descriptor: Int32) throws {
    guard let session = SSL_new(context.context) else { throw TestFailure("SSL_new") }
    self.session = session
    SSL_set_fd(session, descriptor)
    guard SSL_accept(session) == 1 else { throw TestFailure("the TLS handshake failed") }
  }

  deinit { SSL_free(session) }

  /// Like recv(2): 0 at the end.
  func receive(_ buffer: inout [UInt8]) -> Int {
    let count = SSL_read(session, &buffer, Int32(clamping: buffer.count))
    if count > 0 { return Int(count) }
    return SSL_get_error(session, count) == SSL_ERROR_ZERO_RETURN ? 0 : -1
  }

  /// Like send(2).
  func send(_ bytes: ArraySlice<UInt8>) -> Int {
    bytes.withUnsafeBytes { Int(SSL_write(session, $0.baseAddress, Int32(clamping: $0.count))) }
  }

  /// Sends the end of the TLS stream.
  func end() { SSL_shutdown(session) }
}
