// The URL at which a stream continues if the stored bytes at its own URL must not be replaced.

internal import UploadClient

extension UploadRequest {
  /// `http://host/kitchen.wav?key` with the number 2 is `http://host/kitchen~2.wav?key`: the name that `sluice serve`
  /// gives a next part.
  static func numbered(_ url: String, _ number: Int) -> String {
    let pathEnd = url.firstIndex { $0 == "?" || $0 == "#" } ?? url.endIndex
    let authority = url.range(of: "://").map { $0.upperBound } ?? url.startIndex
    let name = url[authority..<pathEnd].lastIndex(of: "/").map { url.index(after: $0) }
    // A host without a path has an empty name.
    guard let name else { return "\(url[..<pathEnd])/~\(number)\(url[pathEnd...])" }
    let stem = url[name..<pathEnd].dropFirst().lastIndex(of: ".") ?? pathEnd
    return "\(url[..<stem])~\(number)\(url[stem...])"
  }
}

extension String {
  fileprivate func range(of text: String) -> Range<Index>? {
    var start = startIndex
    while start < endIndex {
      if self[start...].hasPrefix(text) { return start..<index(start, offsetBy: text.count) }
      start = index(after: start)
    }
    return nil
  }
}
