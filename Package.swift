// swift-tools-version: 6.3
// Sluice: streams endless data to an HTTP server without losing a byte.
// No package from outside: libcurl, libcrypto and libasound are the system's own, found by pkg-config.

import PackageDescription

/// The settings of every Swift target of this package, in one place.
let settings: [SwiftSetting] = [
  .swiftLanguageMode(.v6),
  .enableUpcomingFeature("InternalImportsByDefault"),
  .enableUpcomingFeature("ExistentialAny"),
  .enableUpcomingFeature("MemberImportVisibility"),
]

/// A module: `Sources/<name>`, and its tests in `Tests/<name>Tests`.
func module(
  _ name: String, imports: [Target.Dependency] = [], testsImport: [Target.Dependency] = [], testData: [String] = []
) -> [Target] {
  [
    .target(name: name, dependencies: imports, swiftSettings: settings),
    .testTarget(
      name: "\(name)Tests",
      dependencies: [.init(stringLiteral: name), "PropertyTesting", "CallCounter", "TestThreads"] + imports
        + testsImport,
      exclude: testData, swiftSettings: settings),
  ]
}

/// The system's libraries, as Swift sees them.
let systemLibraries: [Target] = [
  .systemLibrary(name: "CLinux"),
  .systemLibrary(name: "CRunLoop"),
  .systemLibrary(name: "CALSA", pkgConfig: "alsa", providers: [.apt(["libasound2-dev"])]),
  .systemLibrary(name: "CCrypto", pkgConfig: "libcrypto", providers: [.apt(["libssl-dev"])]),
  .systemLibrary(name: "CZlib", pkgConfig: "zlib", providers: [.apt(["zlib1g-dev"])]),
  .systemLibrary(name: "CJansson", pkgConfig: "jansson", providers: [.apt(["libjansson-dev"])]),
  .systemLibrary(name: "CNats", pkgConfig: "libnats", providers: [.apt(["libnats-dev"])]),
  .systemLibrary(name: "CSQLite", pkgConfig: "sqlite3", providers: [.apt(["libsqlite3-dev"])]),
  .systemLibrary(name: "CCurl", pkgConfig: "libcurl", providers: [.apt(["libcurl4-openssl-dev"])]),
]

let modules: [Target] =
  module("EventLoops", imports: ["CLinux"])
  + module("JSONLines", imports: ["CJansson"])
  + module("JSONDocuments", imports: ["CJansson", "JSONLines"])
  + module("Metrics")
  + module("Digests", imports: ["CCrypto"], testsImport: ["NetworkTesting"])
  + module("HTTPMessages", testData: ["Vectors"])
  + module(
    "HTTPServer", imports: ["CLinux", "EventLoops", "HTTPMessages", "Metrics"], testsImport: ["NetworkTesting"],
    testData: ["Corpus"])
  + module("ResumableUploads", imports: ["HTTPMessages"])
  + module(
    "Recordings",
    imports: ["CJansson", "Digests", "DiskFiles", "EventLoops", "HTTPMessages", "JSONLines", "ResumableUploads"])
  + module(
    "JetStream", imports: ["CCurl", "CJansson", "CNats", "EventLoops"],
    testsImport: ["BrokerTesting", "NetworkTesting"])
  + module("StreamBuffers", imports: ["EventLoops", "CLinux"])
  + module("Spool", imports: ["CLinux", "CZlib", "EventLoops"], testsImport: ["SpoolTesting"])
  + module(
    "SpooledStreams", imports: ["EventLoops", "Spool", "StreamBuffers"],
    testsImport: ["ExitTesting", "NetworkTesting", "SpoolTesting", "SyncGate"])
  + module(
    "AudioCapture", imports: ["CALSA", "StreamBuffers", "EventLoops"],
    testsImport: ["TestRigs", "TestDeviceControl", "SoundCards"])
  + module(
    "UploadClient", imports: ["EventLoops", "HTTPMessages", "StreamBuffers", "CCurl", "CLinux", "Digests"],
    testsImport: ["ExitTesting", "NetworkTesting", "UploadServer"])
  + module(
    "LiveStreaming",
    imports: [
      "CLinux", "EventLoops", "HTTPMessages", "JSONDocuments", "StreamBuffers", "UploadClient", "ResumableUploads",
      "Digests", "Spool", "SpooledStreams",
    ],
    testsImport: ["ExitTesting", "NetworkTesting", "SpoolTesting", "SyncGate", "UploadServer"])
  + module("TransferClient", imports: ["CLinux", "EventLoops", "JSONLines"], testsImport: ["NetworkTesting"])
  + module(
    "TransferAgent",
    imports: [
      "CLinux", "CSQLite", "Digests", "DiskFiles", "Downloads", "EventLoops", "JSONLines", "LiveStreaming",
      "ResumableUploads", "TransferClient", "UploadClient",
    ], testsImport: ["NetworkTesting"])
  + module(
    "Downloads",
    imports: [
      "CLinux", "Digests", "DiskFiles", "EventLoops", "HTTPMessages", "JSONLines", "LiveStreaming", "UploadClient",
    ],
    testsImport: ["NetworkTesting", "Recordings", "UploadServer"])
  + module(
    "MicrophoneStreaming",
    imports: ["AudioCapture", "EventLoops", "LiveStreaming", "StreamBuffers", "UploadClient"],
    testsImport: [
      "NetworkTesting", "TestDeviceControl", "TestRigs", "UploadServer", "sample-heartbeat", "sample-microphone",
    ])
  + [
    // Parts of the server; `UploadServerTests` test them together.
    .target(name: "DiskFiles", dependencies: ["CLinux", "EventLoops"], swiftSettings: settings),
    .target(
      name: "StreamServing",
      dependencies: [
        "Digests", "DiskFiles", "EventLoops", "HTTPMessages", "HTTPServer", "JSONLines", "Metrics", "ResumableUploads",
      ], swiftSettings: settings),
    .target(
      name: "StreamStore",
      dependencies: [
        "CLinux", "Digests", "DiskFiles", "EventLoops", "HTTPMessages", "HTTPServer", "JSONLines", "Recordings",
        "ResumableUploads", "StreamServing",
      ], swiftSettings: settings),
    .target(
      name: "ResumableServing",
      dependencies: [
        "CLinux", "Digests", "DiskFiles", "EventLoops", "HTTPMessages", "HTTPServer", "Metrics", "ResumableUploads",
        "StreamServing",
      ], swiftSettings: settings),
  ]
  + module(
    "LogServing",
    imports: [
      "CZlib", "Digests", "EventLoops", "HTTPMessages", "HTTPServer", "JSONLines", "JetStream", "Metrics",
      "ResumableUploads", "StreamServing",
    ], testsImport: ["BrokerTesting", "NetworkTesting", "UploadServer"])
  + module(
    "LogCollecting",
    imports: [
      "DiskFiles", "EventLoops", "HTTPMessages", "HTTPServer", "JetStream", "LogServing", "ResumableUploads",
      "StreamServing", "StreamStore",
    ], testsImport: ["NetworkTesting", "Recordings"])
  + module(
    "UploadServer",
    imports: [
      "Digests", "DiskFiles", "EventLoops", "HTTPMessages", "HTTPServer", "JetStream", "LogServing", "Metrics",
      "ResumableServing", "StreamServing", "StreamStore",
    ],
    testsImport: [
      "BrokerTesting", "ExitTesting", "NetworkTesting", "SyncGate", "ResumableUploads", "Recordings", "JSONLines",
      "CLinux", "UploadClient",
    ])
  + [
    // Apple's names on Linux, and the only targets that link Foundation. The classes are in a module of their own: see
    // Sources/FoundationUploads/Exports.swift.
    .target(
      name: "FoundationUploadsCore",
      dependencies: [
        "CLinux", "CRunLoop", "DiskFiles", "Downloads", "EventLoops", "HTTPMessages", "LiveStreaming",
        "ResumableUploads", "StreamBuffers", "TransferClient", "UploadClient",
      ],
      swiftSettings: settings)
  ]
  + module(
    "FoundationUploads", imports: ["FoundationUploadsCore"],
    testsImport: [
      "CommandTesting", "DiskFiles", "Downloads", "EventLoops", "ExitTesting", "LiveStreaming", "NetworkTesting",
      "StreamServing", "TransferClient", "UploadClient", "sample-background-upload", "sluice",
    ])
  + module(
    "LoadReports", imports: ["JSONDocuments"], testsImport: ["EventLoops", "LoadTesting", "NetworkTesting"],
    testData: ["Golden"])
  + module(
    "LoadTesting",
    imports: [
      "CLinux", "EventLoops", "JSONDocuments", "LiveStreaming", "LoadReports", "StreamBuffers", "UploadClient",
    ], testsImport: ["UploadServer", "NetworkTesting"])

let command: Target = .executableTarget(
  name: "sluice",
  dependencies: [
    "EventLoops", "JSONLines", "StreamBuffers", "AudioCapture", "UploadClient", "LiveStreaming",
    "MicrophoneStreaming", "HTTPServer", "UploadServer", "CLinux", "HTTPMessages", "ResumableUploads", "Digests",
    "Downloads", "JSONDocuments", "LoadReports", "LoadTesting", "LogCollecting", "Metrics", "Recordings", "Spool",
    "SpooledStreams", "TransferAgent", "TransferClient",
  ],
  swiftSettings: settings, plugins: ["CommitName"])

/// For `sluice --version`.
let commitName: Target = .plugin(name: "CommitName", capability: .buildTool)

let commandTests: Target = .testTarget(
  name: "CommandTests",
  dependencies: [
    "sluice", "BrokerTesting", "CommandTesting", "Digests", "DiskFiles", "JetStream", "NetworkTesting",
    "PropertyTesting",
    "TestRigs", "EventLoops", "HTTPMessages", "JSONLines",
    "StreamBuffers", "AudioCapture", "UploadClient", "LiveStreaming", "HTTPServer", "UploadServer", "LoadReports",
    "LoadTesting", "LogCollecting", "LogServing", "Metrics", "Recordings", "Spool", "SpooledStreams", "SyncGate",
  ],
  swiftSettings: settings)

/// The real command against itself and against faults: processes, sockets, sound devices, network namespaces.
let endToEndTests: Target = .testTarget(
  name: "EndToEndTests",
  dependencies: [
    "sluice", "ChaosTesting", "SoakTesting", "CommandTesting", "NetworkTesting", "TestRigs", "TestDeviceControl",
    "PropertyTesting", "EventLoops", "LoadReports", "LoadTesting", "Spool", "TransferClient", "UploadClient",
    "CLinux",
  ],
  swiftSettings: settings)

/// Whether ARCHITECTURE.md is true about the modules.
let architectureTests: Target = .testTarget(
  name: "ArchitectureTests", dependencies: ["NetworkTesting"], swiftSettings: settings)

/// Tests the proxy that breaks connections, because other tests rely on it.
let networkTestingTests: Target = .testTarget(
  name: "NetworkTestingTests", dependencies: ["ExitTesting", "NetworkTesting", "PropertyTesting", "EventLoops"],
  swiftSettings: settings)

/// The server under many requests at the same time, faults and restarts; `make chaos-server` runs it long.
let serverChaosTests: Target = .testTarget(
  name: "ServerChaosTests",
  dependencies: ["ServerChaosTesting", "chaos-server", "CLinux", "NetworkTesting", "PropertyTesting"],
  swiftSettings: settings)

/// Servers and brokers that die, in short, and whether the judge of such runs notices what is wrong; `make chaos
/// CHAOS=--cluster` runs it long.
let clusterChaosTests: Target = .testTarget(
  name: "ClusterChaosTests",
  dependencies: [
    "ClusterChaosTesting", "BrokerTesting", "EventLoops", "HTTPServer", "JetStream", "NetworkTesting",
    "PropertyTesting", "sluice",
  ],
  swiftSettings: settings)

/// A simulated week in short, and whether its judge notices what is wrong; `make soak` runs it long.
let soakTests: Target = .testTarget(
  name: "SoakTests",
  dependencies: ["SoakTesting", "sluice", "CommandTesting", "NetworkTesting", "PropertyTesting", "TestDeviceControl"],
  swiftSettings: settings)

/// The client under odd answers; `make chaos-answers` runs it long.
let answerChaosTests: Target = .testTarget(
  name: "AnswerChaosTests", dependencies: ["AnswerChaosTesting", "chaos-answers", "sluice", "PropertyTesting"],
  swiftSettings: settings)

/// Built with everything else, so that they cannot rot.
let samples: [Target] = [
  .executableTarget(
    name: "sample-heartbeat", dependencies: ["LiveStreaming"], path: "samples/heartbeat",
    swiftSettings: settings),
  .executableTarget(
    name: "sample-microphone", dependencies: ["MicrophoneStreaming"], path: "samples/microphone",
    swiftSettings: settings),
  .executableTarget(
    name: "sample-foundation-uploads", dependencies: ["FoundationUploads"], path: "samples/foundation-uploads",
    swiftSettings: settings),
  .executableTarget(
    name: "sample-background-upload", dependencies: ["FoundationUploads"], path: "samples/background-upload",
    swiftSettings: settings),
  .executableTarget(
    name: "sample-resumable-handler", dependencies: ["UploadServer", "Digests"], path: "samples/resumable-handler",
    swiftSettings: settings),
]

/// For servers of tests that speak TLS.
let testLibraries: [Target] = [
  .systemLibrary(
    name: "CSSL", path: "Tests/CSSL", pkgConfig: "libssl", providers: [.apt(["libssl-dev"])])
]

/// What the tests of several modules share: seeds that can be run again, counts of allocations and calls, more threads
/// for tests that wait, real ALSA and PulseAudio.
let testSupport: [Target] = [
  .target(
    name: "PropertyTesting", dependencies: ["EventLoops", "HTTPMessages"], path: "Tests/PropertyTesting",
    swiftSettings: settings),
  .target(
    name: "SpoolTesting", dependencies: ["EventLoops", "PropertyTesting", "Spool"], path: "Tests/SpoolTesting",
    swiftSettings: settings),
  // Only for test targets, because it imports Testing.
  .target(name: "ExitTesting", path: "Tests/ExitTesting", swiftSettings: settings),
  .target(name: "CallCounter", path: "Tests/CallCounter"),
  .target(name: "TestThreads", path: "Tests/TestThreads"),
  .target(name: "SyncGate", path: "Tests/SyncGate"),
  .target(name: "SoundCards", path: "Tests/SoundCards"),
  .target(
    name: "NetworkTesting",
    dependencies: ["EventLoops", "HTTPServer", "ProcessStarting", "PropertyTesting", "UploadServer", "CLinux", "CSSL"],
    path: "Tests/NetworkTesting", swiftSettings: settings),
  // A real nats-server as a process, with a store of its own.
  .target(
    name: "BrokerTesting", dependencies: ["CCrypto", "EventLoops", "JetStream", "NetworkTesting"],
    path: "Tests/BrokerTesting",
    swiftSettings: settings),
  .target(
    name: "CommandTesting",
    dependencies: ["EventLoops", "LoadReports", "NetworkTesting", "TestRigs", "TransferClient"],
    path: "Tests/CommandTesting", swiftSettings: settings),
  .target(
    name: "ChaosTesting", dependencies: ["CommandTesting", "EventLoops", "NetworkTesting", "PropertyTesting"],
    path: "Tests/ChaosTesting", swiftSettings: settings),
  .target(
    name: "ClusterChaosTesting",
    dependencies: [
      "BrokerTesting", "CommandTesting", "Digests", "EventLoops", "HTTPServer", "JetStream", "LiveStreaming",
      "NetworkTesting", "PropertyTesting", "TestRigs", "UploadClient",
    ],
    path: "Tests/ClusterChaosTesting", swiftSettings: settings),
  // Runs the `sluice` beside it, which is therefore built with it.
  .executableTarget(
    name: "chaos", dependencies: ["ChaosTesting", "ClusterChaosTesting", "NetworkTesting", "sluice"],
    path: "Tests/Chaos",
    swiftSettings: settings),
  // A disk that forgets at a power cut what was not synced: linked into the program whose disk it is to be.
  .target(name: "ForgetfulDisk", path: "Tests/ForgetfulDisk"),
  .target(
    name: "ServerChaosTesting",
    dependencies: [
      "BrokerTesting", "CLinux", "Digests", "EventLoops", "JetStream", "LogServing", "NetworkTesting",
      "PropertyTesting", "ResumableUploads",
    ],
    path: "Tests/ServerChaosTesting", swiftSettings: settings),
  // Runs sequences against servers, and is each of these servers itself.
  .executableTarget(
    name: "chaos-server",
    dependencies: ["ServerChaosTesting", "UploadServer", "EventLoops", "ForgetfulDisk", "JetStream"],
    path: "Tests/ChaosServer", swiftSettings: settings),
  .target(
    name: "AnswerChaosTesting",
    dependencies: [
      "EventLoops", "HTTPMessages", "StreamBuffers", "UploadClient", "LiveStreaming", "ResumableUploads",
      "NetworkTesting", "PropertyTesting", "CommandTesting", "TestRigs",
    ],
    path: "Tests/AnswerChaosTesting", swiftSettings: settings),
  .executableTarget(
    name: "chaos-answers", dependencies: ["AnswerChaosTesting", "sluice"], path: "Tests/ChaosAnswers",
    swiftSettings: settings),
  // A clock for other programs that runs many times as fast, and what makes a program use it.
  .target(name: "ScaledClock", path: "Tests/ScaledClock"),
  .target(name: "ScaledClockPreload", dependencies: ["ScaledClock"], path: "Tests/ScaledClockPreload"),
  .target(
    name: "SoakTesting",
    dependencies: [
      "CommandTesting", "EventLoops", "JSONLines", "NetworkTesting", "PropertyTesting", "ScaledClock",
      "TestDeviceControl", "TestRigs",
    ],
    path: "Tests/SoakTesting", swiftSettings: settings),
  // Runs the `sluice` beside it, as chaos does.
  .executableTarget(
    name: "soak", dependencies: ["SoakTesting", "sluice"], path: "Tests/Soak", swiftSettings: settings),
  .target(
    name: "TestRigs", dependencies: ["ProcessStarting", "TestDeviceControl"], path: "Tests/TestRigs",
    swiftSettings: settings),
  .target(name: "ProcessStarting", path: "Tests/ProcessStarting", swiftSettings: settings),
]

/// The test microphone (`Tests/TestDevice`), the functions that give it orders, and the same as a command.
let testDevice: [Target] = [
  .target(name: "TestDeviceControl", path: "Tests/TestDeviceControl"),
  .target(
    name: "TestDevice", dependencies: ["TestDeviceControl"], path: "Tests/TestDevice",
    // ALSA's macro for a loadable plugin wants PIC defined.
    cSettings: [.define("PIC")], linkerSettings: [.linkedLibrary("asound")]),
  .executableTarget(name: "testmic-control", dependencies: ["TestDeviceControl"], path: "Tests/testmic-control"),
]

/// Programs that measure, each side by side with its rivals.
let benchmarks: [Target] = [
  .executableTarget(
    name: "circular-buffer-benchmark", dependencies: ["EventLoops", "StreamBuffers"],
    path: "benchmarks/CircularBufferBenchmark", swiftSettings: settings),
  .executableTarget(
    name: "with-stream-benchmark", dependencies: ["EventLoops", "HTTPServer", "LiveStreaming", "UploadServer"],
    path: "benchmarks/WithStreamBenchmark", swiftSettings: settings),
  .executableTarget(
    name: "foundation-uploads-benchmark", dependencies: ["FoundationUploads"],
    path: "benchmarks/FoundationUploadsBenchmark", swiftSettings: settings),
  // Foundation's own networking, for comparison.
  .executableTarget(
    name: "foundation-networking-memory", path: "benchmarks/FoundationNetworkingMemory", swiftSettings: settings),
]

/// Adds to each target what its dependencies depend on.
///
/// SwiftPM compiles a target again only if a module that the target lists has changed. But a type of such a module may
/// contain one of another module, and a target that assumes an outdated layout of it crashes or confuses values.
func listingAllBelow(_ targets: [Target]) -> [Target] {
  func name(_ dependency: Target.Dependency) -> String? {
    switch dependency {
    case .byNameItem(let name, _), .targetItem(let name, _): name
    default: nil
    }
  }
  let lists = Dictionary(uniqueKeysWithValues: targets.map { ($0.name, $0.dependencies.compactMap(name)) })
  for target in targets {
    var found = lists[target.name] ?? []
    var next = 0
    while next < found.count {
      for below in lists[found[next]] ?? [] where !found.contains(below) { found.append(below) }
      next += 1
    }
    target.dependencies += found.dropFirst(target.dependencies.count).map { .init(stringLiteral: $0) }
  }
  return targets
}

let package = Package(
  name: "sluice",
  products: [
    .library(name: "EventLoops", targets: ["EventLoops"]),
    .library(name: "ResumableUploads", targets: ["ResumableUploads"]),
    .library(name: "StreamBuffers", targets: ["StreamBuffers"]),
    .library(name: "Spool", targets: ["Spool", "SpooledStreams"]),
    .library(name: "AudioCapture", targets: ["AudioCapture"]),
    .library(name: "Digests", targets: ["Digests"]),
    .library(name: "Recordings", targets: ["Recordings"]),
    .library(name: "UploadClient", targets: ["UploadClient"]),
    .library(name: "LiveStreaming", targets: ["LiveStreaming"]),
    .library(name: "Downloads", targets: ["Downloads"]),
    .library(name: "MicrophoneStreaming", targets: ["MicrophoneStreaming"]),
    .library(name: "Metrics", targets: ["Metrics"]),
    .library(name: "HTTPMessages", targets: ["HTTPMessages"]),
    .library(name: "HTTPServer", targets: ["HTTPServer"]),
    .library(name: "UploadServer", targets: ["UploadServer", "JetStream", "StreamServing", "StreamStore"]),
    .library(name: "LoadReports", targets: ["LoadReports", "JSONDocuments"]),
    .library(name: "LoadTesting", targets: ["LoadTesting"]),
    .library(name: "FoundationUploads", targets: ["FoundationUploads"]),
    .executable(name: "sluice", targets: ["sluice"]),
    // An ALSA plugin for tests and benchmarks: a microphone that overruns, suspends and disappears on command.
    .library(name: "TestDevice", type: .dynamic, targets: ["TestDevice"]),
    // To be preloaded into programs whose time is simulated.
    .library(name: "ScaledClockPreload", type: .dynamic, targets: ["ScaledClockPreload"]),
  ],
  targets: listingAllBelow(
    systemLibraries + [commitName] + modules
      + [
        command, commandTests, endToEndTests, architectureTests, networkTestingTests, serverChaosTests,
        answerChaosTests, soakTests, clusterChaosTests,
      ]
      + samples + testLibraries + testSupport + testDevice + benchmarks)
)
