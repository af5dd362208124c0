// swift-tools-version: 6.3
// Sluice: streams something that never ends to an HTTP server and loses none of it.
// No package from outside: libcurl and libasound are the system's own, found by pkg-config.

import PackageDescription

/// What every Swift target of this package is compiled with, in one place.
let settings: [SwiftSetting] = [
  .swiftLanguageMode(.v6),
  .enableUpcomingFeature("InternalImportsByDefault"),
  .enableUpcomingFeature("ExistentialAny"),
  .enableUpcomingFeature("MemberImportVisibility"),
]

/// A room of the house: `Sources/<name>`, and its tests in `Tests/<name>Tests`.
func room(_ name: String, imports: [Target.Dependency], testData: [String] = []) -> [Target] {
  [
    .target(name: name, dependencies: imports, swiftSettings: settings),
    .testTarget(
      name: "\(name)Tests", dependencies: [.init(stringLiteral: name)] + imports, exclude: testData,
      name: "\(name)Tests",
      dependencies: [.init(stringLiteral: name), "PropertyTesting", "CAllocationCounter"] + imports,
      swiftSettings: settings),
  ]
}

/// The test microphone (`Tests/TestDevice`), the functions that give it orders, and the same as a command.
let testDevice: [Target] = [
  .target(name: "TestDeviceControl", path: "Tests/TestDeviceControl"),
  .target(
    name: "TestDevice", dependencies: ["TestDeviceControl"], path: "Tests/TestDevice",
    // ALSA's macro for a loadable plugin wants PIC defined.
    cSettings: [.define("PIC")], linkerSettings: [.linkedLibrary("asound")]),
  .executableTarget(name: "testmic-control", dependencies: ["TestDeviceControl"], path: "Tests/testmic-control"),
]

let package = Package(
  name: "sluice",
  products: [
    .library(name: "StreamBuffers", targets: ["StreamBuffers"]),
    .library(name: "UploadServer", targets: ["UploadServer"]),
    .library(name: "AudioCapture", targets: ["AudioCapture"]),
    // An ALSA plugin for tests and benchmarks: a microphone that overruns, suspends and disappears on command.
    .library(name: "TestDevice", type: .dynamic, targets: ["TestDevice"]),
  ],
  targets: [
    .systemLibrary(name: "CLinux"),
    // For the tests of every room: seeds that can be run again, and a count of allocations.
    .target(
      name: "PropertyTesting", dependencies: ["EventLoops"], path: "Tests/PropertyTesting", swiftSettings: settings),
    .target(name: "CAllocationCounter", path: "Tests/CAllocationCounter"),
  ]
    + room("EventLoops", imports: ["CLinux"])
    + room("JSONLines", imports: [])
    + room("StreamBuffers", imports: ["EventLoops", "CLinux"])
    + room("UploadClient", imports: ["EventLoops", "StreamBuffers", "CCurl", "CLinux"])
    + room("LiveStreaming", imports: ["EventLoops", "StreamBuffers", "UploadClient"])
    + [
      .executableTarget(
        name: "sluice",
        dependencies: ["EventLoops", "JSONLines", "StreamBuffers", "UploadClient", "LiveStreaming", "CLinux"],
        swiftSettings: settings)
    ]
    + room("UploadServer", imports: ["EventLoops", "CLinux"], testData: ["Corpus"])
    + [
      .target(
        name: "AudioCapture", dependencies: ["CALSA", "StreamBuffers", "EventLoops"], swiftSettings: settings)
    ]
    + testDevice
)
