// Faults from a generator: equal seeds and kinds give equal faults.

package import PropertyTesting

extension ChaosFault {
  /// The moment in an upload's life at which a fault strikes, which determines the possible requests.
  package enum Moment: Sendable {
    /// Before the upload exists: discovery and creation.
    case start
    /// Appends follow one another.
    case steady
    /// Another fault has just struck, and the client asks for the offset and continues.
    case recovery
    /// The request that ends the upload, and its answer.
    case completion
  }

  /// The meaning of "a little" for the affected client.
  package struct Scale: Sendable {
    /// The maximum number of content bytes before a fault within the content.
    package var span: Int
    /// The time after which the client gives up a silent request.
    package var patience: Duration

    package init(span: Int, patience: Duration) {
      self.span = span
      self.patience = patience
    }
  }

  /// A fault of this kind for this moment; nil if the two do not fit.
  package static func draw(
    _ kind: Kind, at moment: Moment, scale: Scale, using random: inout SplitMix64
  ) -> ChaosFault? {
    guard let place = place(kind, moment, scale, &random) else { return nil }
    var fault = ChaosFault(kind, place, effect(kind, place, scale, &random))
    switch moment {
    case .start: fault.methods = ["OPTIONS", "POST"]
    case .steady: fault.methods = ["PATCH"]
    case .recovery: fault.methods = ["HEAD", "PATCH"]
    case .completion:
      fault.methods = ["PATCH"]
      fault.atCompletion = true
    }
    return fault
  }

  private static func place(
    _ kind: Kind, _ moment: Moment, _ scale: Scale, _ random: inout SplitMix64
  ) -> Place? {
    var places: [Place]
    switch kind {
    case .reset, .doubleFin: places = [.beforeRequest, .beforeResponse, .withinResponse, .afterResponse]
    case .finToClient: places = [.beforeResponse, .withinResponse]
    case .blackhole, .delay: places = [.beforeRequest, .beforeResponse, .withinResponse]
    case .serverError, .serverKill: places = [.beforeRequest, .beforeResponse]
    // Neither answers a creation, because either would end the upload.
    case .conflict, .locked: places = moment == .start ? [] : [.beforeRequest, .beforeResponse]
    case .dropResponse: return .beforeResponse
    case .finToServer, .truncate, .replay, .dropInterims, .offsetLower, .offsetHigher, .offsetBeyond: places = []
    }
    // A creation, an answer to HEAD and the end of an upload have no content, or an unpredictable amount.
    if moment == .steady, places.isEmpty || random.chance(60) {
      return .requestBody(after: random.size(upTo: scale.span) - 1)
    }
    return places.randomElement(using: &random)
  }

  private static func effect(
    _ kind: Kind, _ place: Place, _ scale: Scale, _ random: inout SplitMix64
  ) -> Effect {
    switch kind {
    case .reset: return .reset
    // Often the client's side must find out by itself.
    case .finToServer: return .finToServer(reachesClient: random.chance(70))
    case .finToClient: return .finToClient
    case .blackhole: return .blackhole
    case .delay:
      // Sometimes so long that the client has given up the connection before it continues.
      let milliseconds = Int(scale.patience.milliseconds)
      return .delay(
        .milliseconds(
          random.chance(20)
            ? Int.random(in: milliseconds...2 * milliseconds, using: &random)
            : Int.random(in: 1...max(1, milliseconds / 2), using: &random)))
    case .truncate: return .truncate(random.size(upTo: scale.span))
    case .doubleFin: return .doubleFin(.milliseconds(Int.random(in: 1...40, using: &random)))
    case .replay:
      return .replay(.milliseconds(Int.random(in: 0...60, using: &random)), ends: random.chance(50) ? .hang : .reset)
    case .serverError:
      let status = [500, 502, 503, 503, 504].randomElement(using: &random) ?? 500
      return .answer(Answer(status: status, retryAfter: status == 503 && random.chance(25) ? 1 : nil))
    case .conflict:
      let wrong = Int.random(in: 1...scale.span, using: &random) * (random.chance(50) ? 1 : -1)
      return .answer(Answer(status: 409, offsetFromRequest: random.chance(50) ? wrong : nil))
    case .locked: return .answer(Answer(status: 423))
    case .dropResponse: return .dropResponse
    case .dropInterims: return .dropInterims(.milliseconds(Int.random(in: 50...1000, using: &random)))
    case .offsetLower: return .lie(.lower(Int.random(in: 0..<1024, using: &random)))
    case .offsetHigher: return .lie(.higher(Int.random(in: 0..<1024, using: &random)))
    case .offsetBeyond: return .lie(.beyond(random.size(upTo: 1 << 20)))
    case .serverKill: return .tell
    }
  }
}

extension Duration {
  /// In whole milliseconds.
  package var milliseconds: Int64 { components.seconds * 1000 + components.attoseconds / 1_000_000_000_000_000 }
}
