// Statuses with which a server confirms that it has the content of a request.

/// The statuses of final responses that confirm the whole content of a request without resumable uploads.
package enum ConfirmingStatus {
  /// Whether the server has accepted all of the content (RFC 9110, section 15.3). A 206 answers a GET for a range
  /// (section 15.3.7). Some services send it if they have accepted only a part.
  package static func contains(_ status: Int) -> Bool { (200..<300).contains(status) && status != 206 }
}
