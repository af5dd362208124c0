// What keeps a test from going on: said with everything that helps to see why.

/// A condition that a test waited for in vain, or a step of its preparation that failed.
struct TestFailure: Error, CustomStringConvertible {
  let description: String
  init(_ description: String) { self.description = description }
}
