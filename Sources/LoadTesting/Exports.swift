// A run ends with a report, and is judged by thresholds: a program that runs load tests imports `LoadTesting` alone.

@_exported public import LoadReports
