// libFuzzer on a server's side of resumable uploads (see ../run.sh): requests as text, an upload resource that they are
// made to in any order, records as text.
//
// An input is a script: the first octet of a line determines what happens, the rest is its text. Checked besides traps:
// the offset never goes back and is never announced before it may be, nothing but the one transfer in progress adds
// bytes, a retrieved offset is accepted, what is over stays over, a record that is read is written as it was.

@_cdecl("LLVMFuzzerTestOneInput")
public func fuzzUploadResource(_ data: UnsafePointer<UInt8>?, _ size: Int) -> CInt {
  let text = String(decoding: UnsafeBufferPointer(start: data, count: size), as: UTF8.self)
  if let record = UploadRecord(parsing: text) { precondition(record.text == text) }
  var script = Script()
  for line in text.split(separator: "\n") { script.perform(line) }
  return 0
}

private struct Script {
  private var state: UploadResourceState?
  private var fields = HeaderFields()
  private var numbers: [Int] = []
  private var retrieved: UInt64?
  private var announced: UInt64 = 0

  mutating func perform(_ line: Substring) {
    let text = String(line.dropFirst())
    switch line.first {
    case "f":  // a field of the next request
      let parts = text.split(separator: ":", maxSplits: 1)
      if parts.count == 2 { fields.append(String(parts[0]), String(parts[1])) }
      return
    case "c": request("POST", text)
    case "p": request("PATCH", text)
    case "h": retrieve()
    case "b": receive(text)
    case "e": end(text)
    case "x": if let number = number(text) { state?.ended(number) }
    case "s": state?.synced(to: UInt64(text) ?? .max)
    case "d": _ = try? state?.deactivate(.cancelled)
    case "r": _ = state?.responded()
    case "n": state?.processingPostponed()
    default: return
    }
    check()
  }

  /// One of the transfers that there were.
  private func number(_ text: String) -> Int? {
    guard !numbers.isEmpty else { return nil }
    return numbers[(Int(text) ?? 0).magnitude.quotientAndRemainder(dividingBy: UInt(numbers.count)).remainder.asIndex]
  }

  private mutating func request(_ method: String, _ text: String) {
    let content: RequestSummary.Content = text.isEmpty ? .unsized : UInt64(text).map { .sized($0) } ?? .absent
    let target: RequestSummary.Target = method == "PATCH" ? .uploadResource : .other
    let request = ServerRequest(
      RequestSummary(method: method, target: target, fields: fields, content: content))
    fields = HeaderFields()
    switch request {
    case .create(let creation):
      guard state == nil else { return }
      var limits = UploadLimits()
      limits.maximumAppendSize = 1000
      state = try? UploadResourceState(creating: creation, limits: limits, awaitsDisk: text.isEmpty)
      if let number = state?.transfer?.number { numbers.append(number) }
    case .append(let append):
      guard let before = state else { return }
      let action = state?.append(append)
      switch action {
      case .begin?:
        precondition(append.offset == before.offset && before.phase == .incomplete)
        if let number = state?.transfer?.number { numbers.append(number) }
      case .refuse(let refusal)?:
        precondition(state == before)
        if case .mismatchingOffset = refusal { precondition(append.offset != retrieved) }
        _ = ServerAnswer.refused(refusal, append.version, limits: before.limits)
      case .invalidate?: precondition(before.phase == .incomplete && state?.isInactive == true)
      case .awaitResponse?:
        precondition(before.phase == .processing || before.phase == .complete && append.content == .unsized)
        if let number = state?.transfer?.number { numbers.append(number) }
      case .replay?: precondition(before.phase == .complete)
      case nil: break
      }
      retrieved = nil
    case .plain, .discover, .retrieve, .cancel, .discoverResource, .refuse: break
    }
  }

  private mutating func retrieve() {
    guard state != nil, (try? state?.retrieve()) != nil else { return }
    state?.synced(to: .max)
    retrieved = state?.announceOffset()
    precondition(state?.transfer == nil)
  }

  private mutating func receive(_ text: String) {
    guard let number = number(text), let before = state else { return }
    let count = UInt64(text) ?? 7
    guard let intake = state?.received(count, by: number) else { return }
    precondition(intake.count <= count)
    if before.transfer?.number != number { precondition(intake.count == 0) }
    // A disk that takes about half of it.
    state?.kept(intake.count - intake.count / 3)
    if before.transfer?.number == number { retrieved = nil }
  }

  private mutating func end(_ text: String) {
    guard let number = number(text), let before = state else { return }
    if before.transfer?.request.hasDigest == true { state?.contentVerified() }
    let action = state?.contentEnded(number)
    if action == .process { precondition(state?.length == state?.offset) }
    if before.transfer?.number != number { precondition(action == .ignore) }
  }

  private mutating func check() {
    guard let state else { return }
    precondition(state.announced >= announced && state.announced <= state.offset)
    if state.awaitsDisk { precondition(state.announced <= state.durable) }
    precondition(state.offset <= state.keptCount && state.offset <= UInt64(BareItem.largestInteger))
    if state.isInactive { precondition(state.transfer == nil) }
    announced = state.announced
  }
}

extension UInt {
  /// A number that is smaller than some array is long.
  fileprivate var asIndex: Int { Int(truncatingIfNeeded: self) }
}
