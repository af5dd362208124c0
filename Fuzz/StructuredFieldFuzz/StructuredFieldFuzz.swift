// libFuzzer on structured fields and the protocol's own (see ../run.sh).
//
// Checked besides memory errors and traps: what can be read can be written, is read again as the same and written again
// as the same; no key is there twice; no text is of two types; an offset, a limit or a version that is read is in its
// range.

@_cdecl("LLVMFuzzerTestOneInput")
public func fuzzStructuredFields(_ data: UnsafePointer<UInt8>?, _ size: Int) -> CInt {
  // As fields are received: invalid UTF-8 becomes U+FFFD.
  let text = String(decoding: UnsafeBufferPointer(start: data, count: size), as: UTF8.self)
  check(item: text)
  check(dictionary: text)
  check(fields: text)
  return 0
}

private func check(item text: String) {
  guard let item = Item(parsing: text) else { return }
  guard let canonical = item.serialized else { preconditionFailure("read, but cannot be written") }
  precondition(Item(parsing: canonical) == item)
  precondition(Item(parsing: canonical)?.serialized == canonical)
  precondition(canonical.utf8.allSatisfy { (0x20...0x7e).contains($0) })
}

private func check(dictionary text: String) {
  guard let dictionary = StructuredDictionary(parsing: text) else { return }
  guard let canonical = dictionary.serialized else { preconditionFailure("read, but cannot be written") }
  precondition(StructuredDictionary(parsing: canonical) == dictionary)
  precondition(StructuredDictionary(parsing: canonical)?.serialized == canonical)
  precondition(Set(dictionary.members.map(\.key)).count == dictionary.members.count)
}

private func check(fields text: String) {
  var fields = HeaderFields()
  for name in [
    UploadFields.offset, UploadFields.limit, InteropVersion.fieldName, "Upload-Complete", "Upload-Incomplete",
  ] {
    fields.append(name, text)
  }
  let offset = UploadFields.offset(fields)
  if let offset { precondition(UploadFields.value(offset) != nil) }
  for version in [InteropVersion.none] + InteropVersion.drafts {
    precondition(offset == nil || version.completeness(fields) == nil)
    if let limits = UploadLimits(fields, version: version) {
      var again = HeaderFields()
      again.append(UploadFields.limit, limits.value(version: version))
      var expected = limits
      // No limit at all is written as one that limits nothing.
      if limits == UploadLimits() { expected.minimumSize = 0 }
      precondition(UploadLimits(again, version: version) == expected)
    }
  }
  if case .known(let version) = InteropVersion.Named(fields) {
    precondition(version.number.map(UInt64.init) == offset)
  }
  if let digests = DigestField(parsing: text) { precondition(DigestField(parsing: digests.value) == digests) }
  precondition(DigestField.wanted(parsing: text).count <= text.utf8.count)
}
