// The files that a request names and libcurl opens on the loop's thread.

internal import Glibc

extension UploadRequest {
  /// Rejects files that libcurl could not open at once. Opening a FIFO would wait for its writer, together with all
  /// requests of the loop. libcurl itself reports a missing file.
  ///
  /// - Throws: ``UploadError`` of kind ``UploadError/Kind/other``, because the file may be replaced.
  func checkFiles() throws(UploadError) {
    let files = [
      ("netrc file", netrcFile), ("file of certificate authorities", certificateAuthorities),
      ("client certificate", clientCertificate), ("client key", clientKey),
    ]
    for case (let name, let path?) in files {
      var status = stat()
      guard stat(path, &status) == 0, status.st_mode & S_IFMT != S_IFREG else { continue }
      throw UploadError(.other, "the \(name) \(quoted(path)) is not a regular file")
    }
  }
}
