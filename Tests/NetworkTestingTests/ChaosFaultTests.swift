// The random faults: equal for equal seeds, every kind eventually, and only those that fit the moment.

import NetworkTesting
import PropertyTesting
import Testing

@Suite("Random faults")
struct ChaosFaultTests {
  private let scale = ChaosFault.Scale(span: 100_000, patience: .milliseconds(500))
  private let moments: [ChaosFault.Moment] = [.start, .steady, .recovery, .completion]

  private func draw(_ kind: ChaosFault.Kind, _ moment: ChaosFault.Moment, _ random: inout SplitMix64) -> ChaosFault? {
    ChaosFault.draw(kind, at: moment, scale: scale, using: &random)
  }

  @Test("a seed gives the same faults again", arguments: Seed.several(5))
  func replay(seed: Seed) {
    func draws() -> [String] {
      var random = seed.generator
      return (0..<200).map { index in
        let kind = ChaosFault.Kind.allCases[index % ChaosFault.Kind.allCases.count]
        return "\(String(describing: draw(kind, moments[index % 4], &random)))"
      }
    }
    #expect(draws() == draws())
  }

  @Test(
    "a fault occurs only at a moment with requests, and never answers a creation with a final refusal",
    arguments: Seed.several(5))
  func moments(seed: Seed) {
    var random = seed.generator
    for kind in ChaosFault.Kind.allCases {
      #expect(draw(kind, .steady, &random) != nil, "\(kind)")
      for moment in moments {
        for _ in 0..<50 {
          guard let fault = draw(kind, moment, &random) else { continue }
          #expect(fault.kind == kind)
          if case .requestBody(let count) = fault.place {
            // Only appends of the steady state have a predictable amount of content.
            #expect(moment == .steady && (0..<scale.span).contains(count), "\(fault)")
          }
          if moment == .start { #expect(kind != .conflict && kind != .locked, "\(fault)") }
          #expect(fault.atCompletion == (moment == .completion))
        }
      }
    }
  }

  @Test("every place and every status occurs eventually", arguments: Seed.several(1))
  func variety(seed: Seed) {
    var random = seed.generator
    var places: Set<String> = []
    var statuses: Set<Int> = []
    for _ in 0..<2000 {
      for kind in [ChaosFault.Kind.reset, .serverError, .conflict, .locked] {
        guard let fault = draw(kind, .steady, &random) else { continue }
        places.insert(String("\(fault.place)".prefix { $0 != "(" }))
        if case .answer(let answer) = fault.effect { statuses.insert(answer.status) }
      }
    }
    #expect(places == ["beforeRequest", "requestBody", "beforeResponse", "withinResponse", "afterResponse"])
    #expect(statuses == [500, 502, 503, 504, 409, 423])
  }
}
