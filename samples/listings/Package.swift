// swift-tools-version: 6.3
// The listings of README and docs, in a package that depends on Sluice as yours would. `make listings` builds and runs
// them.

import PackageDescription

/// One listing, and the products that it needs.
func listing(_ name: String, _ modules: String...) -> Target {
  .executableTarget(name: name, dependencies: modules.map { .product(name: $0, package: "sluice") })
}

let package = Package(
  name: "listings",
  dependencies: [.package(name: "sluice", path: "../..")],
  targets: [
    listing("upload-file", "LiveStreaming"),
    listing("resume-upload", "LiveStreaming"),
    listing("survive-crash", "LiveStreaming"),
    listing("stream-lines", "LiveStreaming"),
    listing("stream-configured", "LiveStreaming"),
    listing("stream-sequence", "LiveStreaming"),
    listing("stream-microphone", "MicrophoneStreaming"),
    listing("download-file", "Downloads", "UploadClient"),
    listing("resume-download", "Downloads", "UploadClient"),
    listing("serve-checksum", "Digests", "UploadServer"),
    listing("serve-configured", "UploadServer"),
    listing("serve-resumable", "Digests", "HTTPMessages", "UploadServer"),
    listing("load-test", "LoadTesting", "UploadClient"),
  ]
)
