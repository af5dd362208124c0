// Numbers in the human-readable format.

import Testing

@testable import LoadReports

@Suite("Figures as text")
struct FigureTests {
  @Test("numbers have three significant digits, and a sign only if they are not zero")
  func digits() {
    let words: [(Double, String)] = [
      (0, "0.00"), (-0.0, "0.00"), (0.004, "0.00"), (-0.004, "0.00"), (0.005, "0.01"), (-0.01, "-0.01"),
      (9.994, "9.99"), (9.995, "10.0"), (99.94, "99.9"), (99.95, "100"), (-123.4, "-123"), (1e15, "?"),
      (.nan, "?"), (-.infinity, "?"),
    ]
    for (value, text) in words { #expect(Figure.digits(value) == text, "\(value)") }
  }
}
