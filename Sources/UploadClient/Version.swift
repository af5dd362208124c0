/// The version of Sluice, for `sluice --version` and the `User-Agent` field (semver.org).
public let sluiceVersion = "0.1.0"
