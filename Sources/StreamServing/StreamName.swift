// The name of a stream's files, made of what a client sent, such that none can be anywhere but in the directory.

internal import Glibc
internal import HTTPMessages

/// What identifies a stream, and what its files are called.
///
/// A stream is named `<last component of the path>-<Stream-ID>`, and its files are that name and one extension: `.part`
/// while it grows, `.gaps` for its holes, `.sidecar` for what else is known of it, and at its end what its media type
/// says. The name holds nothing but `[A-Za-z0-9._-]` and begins with neither a dot nor a hyphen. So it is one component
/// of a path, it is not hidden, and no command takes it for an option.
///
/// The extension is not part of the identity: a requester chooses it, and must not reach or shadow another stream by
/// it. An extension has no dot, so a file name belongs to exactly one stream: the one named by what precedes its last
/// dot.
package struct StreamName: Hashable, Sendable {
  package let streamID: String
  /// Without extension.
  package let base: String
  /// What the complete file's name ends in, dot included.
  package private(set) var finalExtension: String
  /// Which of the stream's recordings the files belong to, counted from 1.
  package var part = 1

  /// The name of the files without extension.
  package var fileBase: String { part == 1 ? base : "\(base)~\(part)" }
  package var partial: String { fileBase + ".part" }
  package var gaps: String { fileBase + ".gaps" }
  package var final: String { fileBase + finalExtension }
  package var sidecar: String { fileBase + ".sidecar" }
  /// What the sidecar is called while something of it is not known yet: a hidden file.
  package var pendingSidecar: String { ".\(fileBase).sidecar" }
  /// What is written there before it replaces either.
  package var newSidecar: String { ".\(fileBase).sidecar~" }

  /// The same stream, whose complete file has this extension, dot included.
  package func withExtension(_ finalExtension: String) -> StreamName {
    var name = self
    name.finalExtension = finalExtension
    return name
  }

  /// Splits the name of a file into its stream and its extension, dot included; nil if it has no extension or is
  /// hidden.
  package static func parts(ofFile name: Substring) -> (base: Substring, finalExtension: Substring)? {
    guard let dot = name.lastIndex(of: "."), dot != name.startIndex, name.first != "." else { return nil }
    return (name[..<dot], name[dot...])
  }

  /// Every extension that a media type gives, dot included, and the one of a file whose type nobody named.
  package static let commonExtensions = [
    ".wav", ".raw", ".flac", ".ogg", ".mp3", ".txt", ".csv", ".json", ".jsonl", ".bin",
  ]

  /// Streams are the same when their files are, whichever part these belong to.
  package static func == (a: StreamName, b: StreamName) -> Bool { a.base == b.base }
  package func hash(into hasher: inout Hasher) { hasher.combine(base) }

  /// - Parameters:
  ///   - path: of the request target, percent-encoded.
  ///   - streamID: checked by ``isValidID(_:)``.
  ///   - mediaType: the `Content-Type`, or nil.
  package init(path: String, streamID: String, mediaType: String?) {
    self.streamID = streamID
    var (stem, suffix) = Self.split(Self.sanitized(Self.lastComponent(path)))
    if stem.isEmpty { (stem, suffix) = ("stream", nil) }
    base = "\(stem)-\(streamID)"
    finalExtension = "." + Self.fileExtension(mediaType: mediaType, pathExtension: suffix)
  }

  /// The stream of a recording that an earlier server left unfinished; nil if the file is not called like one. Nobody
  /// knows its ``finalExtension`` or ``streamID`` any more: both are empty.
  package init?(partialFile file: String) {
    guard file.hasSuffix(".part") else { return nil }
    let pieces = file.dropLast(5).split(separator: "~", omittingEmptySubsequences: false)
    guard let base = pieces.first, let first = base.utf8.first, first != UInt8(ascii: "."), first != UInt8(ascii: "-"),
      base.utf8.allSatisfy(Self.isSafe)
    else { return nil }
    if pieces.count > 1 {
      guard pieces.count == 2, let part = Int(pieces[1]), part > 1, String(part) == pieces[1] else { return nil }
      self.part = part
    }
    self.base = String(base)
    (streamID, finalExtension) = ("", "")
  }

  /// The recording's file that a path names by its last component, and the stream that it is of; nil if no recording is
  /// called so. The name may be that of any file without dots at its beginning: whether there is a recording is another
  /// question.
  package static func recording(path: String) -> (file: String, name: StreamName)? {
    // What is hidden is the server's own, as is what is behind a hidden name.
    guard !path.utf8.split(separator: UInt8(ascii: "/")).contains(where: { $0.first == UInt8(ascii: ".") }) else {
      return nil
    }
    let file = String(decoding: lastComponent(path), as: UTF8.self)
    guard let (base, finalExtension) = parts(ofFile: file[...]), finalExtension.utf8.count > 1,
      ![".part", ".gaps", ".sidecar"].contains(finalExtension), finalExtension.utf8.dropFirst().allSatisfy(isSafe),
      let name = StreamName(partialFile: base + ".part")
    else { return nil }
    return (file, name.withExtension(String(finalExtension)))
  }

  /// A stream of which only the files are known.
  package init(base: String) {
    self.base = base
    (streamID, finalExtension) = ("", "")
  }

  /// `Stream-ID`: one to 64 of `[A-Za-z0-9._-]`, the first not a dot.
  package static func isValidID(_ text: String) -> Bool {
    (1...64).contains(text.utf8.count) && text.utf8.first != UInt8(ascii: ".") && text.utf8.allSatisfy(isSafe)
  }

  /// 128 random bits in hexadecimal: two servers, or two years, do not make the same one twice.
  package static func randomID() -> String {
    // The system generator is getrandom(2).
    var generator = SystemRandomNumberGenerator()
    return [generator.next(), generator.next()].map { (half: UInt64) in
      let digits = String(half, radix: 16)
      return String(repeating: "0", count: 16 - digits.count) + digits
    }.joined()
  }

  private static func isSafe(_ octet: UInt8) -> Bool {
    Octet.isDigit(octet) || Octet.isLetter(octet) || octet == UInt8(ascii: ".") || octet == UInt8(ascii: "_")
      || octet == UInt8(ascii: "-")
  }

  /// What follows the last slash, percent-decoded first: an encoded slash separates as well as a plain one.
  private static func lastComponent(_ path: String) -> [UInt8] {
    var decoded: [UInt8] = []
    var octets = path.utf8.makeIterator()
    while let octet = octets.next() {
      guard octet == UInt8(ascii: "%") else {
        decoded.append(octet)
        continue
      }
      // The parser has checked that two digits follow; a lone percent sign would be dropped.
      if let high = octets.next().flatMap(Octet.hexValue), let low = octets.next().flatMap(Octet.hexValue) {
        decoded.append(high << 4 | low)
      }
    }
    return decoded.split(separator: UInt8(ascii: "/"), omittingEmptySubsequences: false).last.map(Array.init) ?? []
  }

  /// Runs of anything else become one `_`. Leading dots and hyphens are left out. A hundred characters are enough to
  /// recognise it by.
  private static func sanitized(_ component: [UInt8]) -> String {
    var result: [UInt8] = []
    for octet in component.prefix(100) {
      if isSafe(octet) {
        let isLeading = result.isEmpty && (octet == UInt8(ascii: ".") || octet == UInt8(ascii: "-"))
        if !isLeading { result.append(octet) }
      } else if result.last != UInt8(ascii: "_") {
        result.append(UInt8(ascii: "_"))
      }
    }
    return String(decoding: result, as: UTF8.self)
  }

  /// `mic.wav` as `mic` and `wav`; an extension is one to eight letters and digits.
  private static func split(_ name: String) -> (stem: String, extension: String?) {
    guard let dot = name.lastIndex(of: "."), dot != name.startIndex else { return (name, nil) }
    let suffix = name[name.index(after: dot)...]
    guard (1...8).contains(suffix.utf8.count),
      suffix.utf8.allSatisfy({ Octet.isDigit($0) || Octet.isLetter($0) })
    else { return (name, nil) }
    return (String(name[..<dot]), suffix.lowercasedASCII)
  }

  private static func fileExtension(mediaType: String?, pathExtension: String?) -> String {
    // By octets: Swift's characters join what HTTP tells apart.
    let type = mediaType?.utf8.prefix { $0 != UInt8(ascii: ";") }.filter { !Octet.isBlank($0) }
    switch type.map({ String(decoding: $0, as: UTF8.self).lowercasedASCII }) {
    case "audio/wav", "audio/x-wav", "audio/wave", "audio/vnd.wave": return "wav"
    case "audio/l16", "audio/l24", "audio/basic": return "raw"
    case "audio/flac", "audio/x-flac": return "flac"
    case "audio/ogg", "application/ogg": return "ogg"
    case "audio/mpeg": return "mp3"
    case "text/plain": return "txt"
    case "text/csv": return "csv"
    case "application/json": return "json"
    case "application/x-ndjson", "application/jsonl": return "jsonl"
    default:
      // These have a meaning of ours: a complete file must not look like a growing one.
      guard let pathExtension, !["part", "gaps", "sidecar"].contains(pathExtension) else { return "bin" }
      return pathExtension
    }
  }
}
