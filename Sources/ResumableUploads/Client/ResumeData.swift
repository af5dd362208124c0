// What another process needs to carry an upload on.

internal import HTTPMessages

/// A small value that names an upload resource, and the stream that it belongs to.
///
/// As text it is one structured dictionary (RFC 9651), e.g.
///
///     format=1, upload="http://host/.uploads/0f…", version=8, target="http://host/take", base=0, length=1048576
///
/// `format` is this description's version; a reader refuses any other. `version` is the interop version, missing for
/// the RFC. `base` is the stream offset of the upload's first byte. It is as secret as the upload's URL is.
public struct ResumeData: Equatable, Sendable {
  /// The upload resource's absolute URL.
  public var upload: String
  /// The URL that the upload was begun at.
  public var target: String
  /// The stream offset of the upload's first byte.
  public var base: UInt64
  /// Of the whole stream, in bytes, where it is known.
  public var length: UInt64?
  /// The `Stream-ID`; nil for an upload that is not a live stream.
  public var streamID: String?
  /// The interop version; nil for the RFC.
  public var version: Int?

  static let format: Int64 = 1

  package init(
    upload: String, target: String, base: UInt64, length: UInt64?, streamID: String?, version: InteropVersion
  ) {
    self.upload = upload
    self.target = target
    self.base = base
    self.length = length
    self.streamID = streamID
    self.version = version.number
  }

  /// Reads ``text``; nil for anything else, an unknown format included.
  public init?(_ text: String) {
    guard let fields = StructuredDictionary(parsing: text), Self.integer(fields["format"]) == Self.format,
      let upload = Self.string(fields["upload"]), let target = Self.string(fields["target"]),
      let base = Self.integer(fields["base"]), base >= 0
    else { return nil }
    self.upload = upload
    self.target = target
    self.base = UInt64(base)
    length = Self.integer(fields["length"]).flatMap { UInt64(exactly: $0) }
    streamID = Self.string(fields["stream-id"])
    version = Self.integer(fields["version"]).map { Int($0) }
    if let version, InteropVersion(number: Int64(version)) == nil { return nil }
  }

  /// nil for values that structured fields cannot hold: a URL with other than ASCII characters, which is none.
  public var text: String? {
    var fields = StructuredDictionary()
    fields.set("format", .item(Item(.integer(Self.format))))
    fields.set("upload", .item(Item(.string(upload))))
    if let version { fields.set("version", .item(Item(.integer(Int64(version))))) }
    fields.set("target", .item(Item(.string(target))))
    fields.set("base", .item(Item(.integer(Int64(clamping: base)))))
    if let length { fields.set("length", .item(Item(.integer(Int64(clamping: length))))) }
    if let streamID { fields.set("stream-id", .item(Item(.string(streamID)))) }
    return fields.serialized
  }

  package var interopVersion: InteropVersion {
    version.flatMap { InteropVersion(number: Int64($0)) } ?? .none
  }

  private static func string(_ value: StructuredDictionary.Value?) -> String? {
    if case .item(let item)? = value, case .string(let text) = item.value { text } else { nil }
  }

  private static func integer(_ value: StructuredDictionary.Value?) -> Int64? {
    if case .item(let item)? = value, case .integer(let number) = item.value { number } else { nil }
  }
}
