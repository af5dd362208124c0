// A run ends with a report, which thresholds can judge. A program that runs load tests imports only `LoadTesting`.

@_exported public import LoadReports
