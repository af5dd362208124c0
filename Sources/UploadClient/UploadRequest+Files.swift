// The files that a request names, which libcurl opens on the loop's thread.

internal import Glibc

extension UploadRequest {
  /// Refuses what libcurl could not open at once: the open of a FIFO waits for its writer, and all requests of the loop
  /// with it. libcurl itself reports a file that is missing.
  ///
  /// - Throws: ``UploadError`` of kind ``UploadError/Kind/other``: another file may take its place.
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
