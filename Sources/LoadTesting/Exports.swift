// A run ends with a report, and thresholds judge it. A program that runs load tests imports only `LoadTesting`.

@_exported public import LoadReports
