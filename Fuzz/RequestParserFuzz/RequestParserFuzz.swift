// libFuzzer on the request parser (see ../run.sh).
//
// Checked besides memory errors and traps: the events do not depend on how the bytes are split, all bytes are used,
// body ranges lie within what was handed in, and no request ends that did not begin. Whatever is accepted could be sent
// on as it is: its fields are valid, and nobody can read another framing in them.

/// What every server must read alike (RFC 9112, section 6.3).
private func checkFraming(_ head: RequestHead) {
  var sent = HeaderFields()
  for field in head.fields.all { sent.append(field.name, field.value) }
  precondition(sent == head.fields && sent.isValid)
  let lengths = head.fields.all.filter { $0.name == "content-length" }.map { Array($0.value.utf8) }
  let codings = head.fields.all.filter { $0.name == "transfer-encoding" }.map { Array($0.value.utf8) }
  switch head.framing {
  case .absent: precondition(lengths.isEmpty && codings.isEmpty)
  case .sized(let length):
    precondition(codings.isEmpty && lengths.count == 1 && lengths[0].allSatisfy { $0 >= 0x30 && $0 <= 0x39 })
    // Leading zeros are digits, too.
    precondition(lengths[0].drop { $0 == 0x30 }.elementsEqual(length == 0 ? [] : Array(String(length).utf8)))
  case .chunked:
    precondition(lengths.isEmpty && codings.count == 1 && head.minorVersion == 1)
    precondition(codings[0].map { $0 | 0x20 } == Array("chunked".utf8))
  }
  precondition(head.minorVersion == 0 || head.fields.count("host") == 1)
}

/// The events of one run as bytes, bodies joined.
private func trace(_ octets: UnsafeBufferPointer<UInt8>, cuts: [Int]) -> [UInt8] {
  var limits = RequestParser.Limits()
  // Small, so that a fuzzer finds them.
  (limits.requestLine, limits.head, limits.fields) = (256, 512, 8)
  (limits.chunkExtension, limits.trailers, limits.body) = (16, 64, 512)
  var parser = RequestParser(limits: limits)
  var result: [UInt8] = []
  var begun = 0
  var ended = 0
  var start = 0
  for end in cuts + [octets.count] {
    // An allocation of its own, so that the address sanitizer sees a read past its end.
    let piece = Array(octets[start..<end])
    var position = 0
    reading: while true {
      switch parser.next(piece.span, &position) {
      case .incomplete:
        precondition(position == piece.count)
        break reading
      case .head(let head):
        begun += 1
        checkFraming(head)
        result += Array("H\(head)".utf8)
      case .body(let range):
        precondition(!range.isEmpty && range.lowerBound >= 0 && range.upperBound <= position)
        result += piece[range]
      case .end:
        ended += 1
        precondition(ended == begun)
        result += Array("E".utf8)
      case .refused(let refusal): result += Array("R\(refusal)".utf8)
      }
    }
    start = end
  }
  return result
}

@_cdecl("LLVMFuzzerTestOneInput")
public func fuzzRequestParser(_ data: UnsafePointer<UInt8>?, _ size: Int) -> CInt {
  let octets = UnsafeBufferPointer(start: data, count: size)
  let whole = trace(octets, cuts: [])
  precondition(trace(octets, cuts: Array(0..<size)) == whole)
  // A place that depends on the content, so that every one of them is tried in time.
  let cut = octets.reduce(0) { ($0 &* 31 &+ Int($1)) & 0xFFFF } % (size + 1)
  precondition(trace(octets, cuts: [cut]) == whole)
  return 0
}
