/// The version of Sluice, as `sluice --version` and the `User-Agent` field say it (semver.org).
public let sluiceVersion = "0.1.0"
