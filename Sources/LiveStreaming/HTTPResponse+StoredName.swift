// The name that a server gives to what an upload or a stream has stored.

internal import JSONDocuments
internal import UploadClient

extension HTTPResponse {
  /// The name in the response, if there is one. `sluice serve` answers with a JSON object. Other servers may name the
  /// file in `Content-Location` (RFC 9110, section 8.7).
  var storedName: String? {
    if self["Content-Type"]?.hasPrefix("application/json") ?? false, let name = stringMember("name", ofJSON: body) {
      return name
    }
    return self["Content-Location"]
  }
}

extension UploadReceipt {
  /// The name under which the server stored the file, such as `film-cb1065c1106bc8bec57288abba045909.mkv`. Nil if its
  /// response has none.
  public var storedName: String? { response.storedName }
}

extension StreamSummary {
  /// The name under which the server stored the stream, such as `kitchen-cb1065c1106bc8bec57288abba045909.wav`. Nil if
  /// its final response has none.
  public var storedName: String? { response?.storedName }
}
