// Field values that the tests of several fields share: integers, booleans, and values that only look like them.

enum FieldTables {
  /// Items that are non-negative integers, with their values.
  static let counts: [(text: String, value: UInt64)] = [
    ("0", 0), ("5", 5), ("-0", 0), ("007", 7), ("  5  ", 5), ("1234567890", 1_234_567_890),
    ("999999999999999", 999_999_999_999_999), ("000000000000001", 1),
    // Parameters are part of an item, and unknown ones are to be ignored (RFC 9651, section 3.1.2).
    ("5;unit=bytes", 5), ("5;a;b=?0; c=\"x\"", 5),
  ]

  /// Items that are not integers.
  static let otherTypes = [
    "5.0", "0.1", "\"5\"", "five", "*", ":NQ==:", "::", "?1", "?0", "@5", "%\"5\"", "(5)", "()", "a=5",
  ]

  /// Texts that are not items at all.
  static let noItems = [
    "", " ", "+5", "5 6", "5,", ",5", "5, 5", "5,6", "0x10", "5;", "5; ", "5;=1", "5;A", "5 ;a", "--5",
    "- 5",
    "1000000000000000", "0000000000000000", "99999999999999999999", "18446744073709551616", "1e3", "5_000", "٥", "５",
    "5\u{0}", "5\r\n", "\u{FEFF}5", "5.", ".5", "5.1234", "1234567890123.0",
  ]

  static let negative = ["-1", "-999999999999999"]
}
