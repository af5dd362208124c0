import Testing

@testable import LoadReports

@Suite("Student's t distribution")
struct StudentDistributionTests {
  @Test(
    "it gives the deviations of the printed tables",
    arguments: [
      // Probability of both sides, degrees of freedom, deviation: NIST/SEMATECH e-Handbook, 1.3.6.7.2.
      (0.05, 1.0, 12.706), (0.05, 5, 2.571), (0.01, 5, 4.032), (0.05, 30, 2.042), (0.01, 10, 3.169),
      (0.002, 8, 4.501), (0.05, .infinity, 1.960), (0.002, .infinity, 3.090), (0.001, .infinity, 3.291),
    ])
  func table(_ probability: Double, _ freedom: Double, _ deviation: Double) {
    let found = StudentDistribution.deviation(exceededWith: probability, freedom: freedom)
    #expect(abs(found - deviation) < 0.0015, "\(found)")
    #expect(abs(StudentDistribution.tails(found, min(freedom, 10_000)) - probability) < 1e-6)
  }
}
