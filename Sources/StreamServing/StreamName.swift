// The name of a stream's files. It is derived from the client's input and can only be in the directory.

internal import Glibc
internal import HTTPMessages

/// Identifies a stream and names its files.
///
/// A stream is named `<last component of the path>-<Stream-ID>`, and its files have that name and one extension:
/// `.part` while it grows, `.gaps` for its holes, `.sidecar` for further information, and at its end the extension of
/// its media type. The name contains only `[A-Za-z0-9._-]`, and begins with neither a dot nor a hyphen. So it is one
/// component of a path, it is not hidden, and no command mistakes it for an option.
///
/// The extension is not part of the identity, because the client chooses it and must not use it to reach or shadow
/// another stream. An extension contains no dot, so a file name belongs to exactly one stream: the one named by the
/// text before its last dot.
package struct StreamName: Hashable, Sendable {
  package let streamID: String
  /// The name without extension.
  package let base: String
  /// The extension of the complete file, with the dot.
  package private(set) var finalExtension: String
  /// The number of the stream's recording that the files belong to, counted from 1.
  package var part = 1

  /// The name of the files without extension.
  package var fileBase: String { part == 1 ? base : "\(base)~\(part)" }
  package var partial: String { fileBase + ".part" }
  package var gaps: String { fileBase + ".gaps" }
  package var final: String { fileBase + finalExtension }
  package var sidecar: String { fileBase + ".sidecar" }
  /// The hidden name of the sidecar while some of its information is missing.
  package var pendingSidecar: String { ".\(fileBase).sidecar" }
  /// The name under which it is written before it replaces either.
  package var newSidecar: String { ".\(fileBase).sidecar~" }

  /// The same stream with this extension for its complete file, with the dot.
  package func withExtension(_ finalExtension: String) -> StreamName {
    var name = self
    name.finalExtension = finalExtension
    return name
  }

  /// Splits the name of a file into its stream and its extension, with the dot; nil if it has no extension or is
  /// hidden.
  package static func parts(ofFile name: Substring) -> (base: Substring, finalExtension: Substring)? {
    guard let dot = name.lastIndex(of: "."), dot != name.startIndex, name.first != "." else { return nil }
    return (name[..<dot], name[dot...])
  }

  /// Every extension that a media type gives, with the dot, and the one for an unknown type.
  package static let commonExtensions = [
    ".wav", ".raw", ".flac", ".ogg", ".mp3", ".txt", ".csv", ".json", ".jsonl", ".bin",
  ]

  /// Two names are equal if the streams are the same, whichever part they belong to.
  package static func == (a: StreamName, b: StreamName) -> Bool { a.base == b.base }
  package func hash(into hasher: inout Hasher) { hasher.combine(base) }

  /// - Parameters:
  ///   - path: the percent-encoded path of the request target.
  ///   - streamID: an identifier accepted by ``isValidID(_:)``.
  ///   - mediaType: the `Content-Type`, or nil.
  package init(path: String, streamID: String, mediaType: String?) {
    self.streamID = streamID
    var (stem, suffix) = Self.split(Self.sanitized(Self.lastComponent(path)))
    if stem.isEmpty { (stem, suffix) = ("stream", nil) }
    base = "\(stem)-\(streamID)"
    finalExtension = "." + Self.fileExtension(mediaType: mediaType, pathExtension: suffix)
  }

  /// The stream of a recording that an earlier server left unfinished; nil if the file's name is not of that form. Its
  /// ``finalExtension`` and ``streamID`` are no longer known, and are empty.
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

  /// The recording's file that the last component of a path names, and its stream; nil if no recording can have that
  /// name. Any file name without leading dots is accepted. Whether the recording exists is a separate question.
  package static func recording(path: String) -> (file: String, name: StreamName)? {
    // Hidden files belong to the server itself, as does everything below a hidden name.
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

  /// A stream known only by its files.
  package init(base: String) {
    self.base = base
    (streamID, finalExtension) = ("", "")
  }

  /// `Stream-ID`: one to 64 of `[A-Za-z0-9._-]`, the first not a dot.
  package static func isValidID(_ text: String) -> Bool {
    (1...64).contains(text.utf8.count) && text.utf8.first != UInt8(ascii: ".") && text.utf8.allSatisfy(isSafe)
  }

  /// 128 random bits in hexadecimal, so that no server ever generates the same one twice.
  package static func randomID() -> String {
    // The system generator uses getrandom(2).
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

  /// The text after the last slash. It is percent-decoded first, because an encoded slash separates as well as a plain
  /// one.
  private static func lastComponent(_ path: String) -> [UInt8] {
    var decoded: [UInt8] = []
    var octets = path.utf8.makeIterator()
    while let octet = octets.next() {
      guard octet == UInt8(ascii: "%") else {
        decoded.append(octet)
        continue
      }
      // The parser has checked that two digits follow. A lone percent sign would be dropped.
      if let high = octets.next().flatMap(Octet.hexValue), let low = octets.next().flatMap(Octet.hexValue) {
        decoded.append(high << 4 | low)
      }
    }
    return decoded.split(separator: UInt8(ascii: "/"), omittingEmptySubsequences: false).last.map(Array.init) ?? []
  }

  /// Replaces each run of other characters by one `_`, and drops leading dots and hyphens. A hundred characters are
  /// enough to recognise it.
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
    // By octets, because Swift's characters combine octets that HTTP distinguishes.
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
      // These have a meaning of their own: a complete file must not look like a growing one.
      guard let pathExtension, !["part", "gaps", "sidecar"].contains(pathExtension) else { return "bin" }
      return pathExtension
    }
  }
}
