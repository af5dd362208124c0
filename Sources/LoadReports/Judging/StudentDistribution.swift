// How far a mean of few samples may be from the true one.

internal import Glibc

/// Student's t distribution.
enum StudentDistribution {
  /// The deviation, in standard errors, that a sample's mean exceeds to either side with this probability.
  ///
  /// - Parameters:
  ///   - probability: of both sides together, above 0 and at most 1.
  ///   - freedom: the degrees of freedom, 1 or more; infinity for the normal distribution.
  static func deviation(exceededWith probability: Double, freedom: Double) -> Double {
    // With 10,000 degrees, it equals the normal distribution to three digits.
    let freedom = max(1, min(freedom, 10_000))
    var (low, high) = (0.0, 1e9)
    // Enough steps for an accuracy of a millionth.
    for _ in 0..<60 {
      let middle = (low + high) / 2
      if tails(middle, freedom) > probability { low = middle } else { high = middle }
    }
    return high
  }

  /// The probability of a larger deviation, to both sides.
  static func tails(_ deviation: Double, _ freedom: Double) -> Double {
    incompleteBeta(freedom / (freedom + deviation * deviation), freedom / 2, 0.5)
  }

  /// The regularized incomplete beta function (DLMF 8.17): its continued fraction, where that converges quickly.
  private static func incompleteBeta(_ x: Double, _ a: Double, _ b: Double) -> Double {
    guard x > 0 else { return 0 }
    guard x < 1 else { return 1 }
    let front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x))
    return x < (a + 1) / (a + b + 2) ? front * fraction(x, a, b) / a : 1 - front * fraction(1 - x, b, a) / b
  }

  /// Lentz's method.
  private static func fraction(_ x: Double, _ a: Double, _ b: Double) -> Double {
    func nonzero(_ value: Double) -> Double { abs(value) < 1e-300 ? 1e-300 : value }
    var c = 1.0
    var d = 1 / nonzero(1 - (a + b) * x / (a + 1))
    var result = d
    for step in 1...500 {
      let m = Double(step)
      let even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
      (d, c) = (1 / nonzero(1 + even * d), nonzero(1 + even / c))
      result *= d * c
      let odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
      (d, c) = (1 / nonzero(1 + odd * d), nonzero(1 + odd / c))
      result *= d * c
      if abs(d * c - 1) < 1e-12 { break }
    }
    return result
  }
}
