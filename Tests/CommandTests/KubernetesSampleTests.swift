// Tests samples/kubernetes without a cluster: runs its scripts with processes in place of pods.

import LoadReports
import NetworkTesting
import Testing

@Suite("The sample for Kubernetes")
struct KubernetesSampleTests {
  /// Replaces the programs that the scripts call: `sluice load` leaves a report of its part, `getent` knows a given
  /// number of pods, and `kubectl` reads the logs of pods from files.
  private struct Cluster {
    let directory: TemporaryDirectory
    /// The project is three levels above this file.
    static let samples =
      #filePath.split(separator: "/").dropLast(3).reduce("") { "\($0)/\($1)" } + "/samples/kubernetes"

    init(parts: Int, pods: Int, failed: Set<Int> = []) throws {
      directory = try TemporaryDirectory()
      for index in 1...parts {
        var report = LoadReport()
        report.measured = 1_000_000_000
        report.totals.messages.acknowledged = 100
        report.histograms[.acknowledged].record(5_000_000, count: 100)
        var part = LoadPart()
        (part.index, part.count) = (index, parts)
        report.parts = [part]
        try directory.write("report-\(index)", report.json)
      }
      try script(
        "sluice",
        """
        if [ "$1" != load ]; then exec \(try sluicePath()) "$@"; fi
        echo "$*" >> "$HERE/calls"
        echo "words for people"
        echo "message for people" >&2
        while [ $# -gt 0 ]; do
          case $1 in --part) part=${2%/*} ;; --json) file=$2 ;; esac
          shift
        done
        case " \(failed.map(String.init).joined(separator: " ")) " in *" $part "*) exit 69 ;; esac
        cp "$HERE/report-$part" "$file"
        """)
      // Prints two socket types for each address, as getent does, and one more pod in each answer.
      try script(
        "getent",
        """
        echo >> "$HERE/asked"
        asked=$(wc -l < "$HERE/asked")
        for pod in $(seq $(( asked < \(pods) ? asked : \(pods) ))); do
          echo "10.0.0.$pod STREAM $2"; echo "10.0.0.$pod DGRAM"
        done
        """)
      try script("sleep", "exit 0")
      try script(
        "kubectl",
        """
        case "$*" in
          *spec.completions*) echo \(parts) ;;
          *status.conditions*) echo SuccessCriteriaMet Complete ;;
          "get pods "*) index=${*##*index=}; echo "pod/load-$index" ;;
          "logs "*) cat "$HERE/log-${2##*-}" ;;
          *) echo "unexpected: $*" >&2; exit 1 ;;
        esac
        """)
    }

    private func script(_ name: String, _ text: String) throws {
      try directory.write(name, "#!/bin/sh\nHERE=\(directory.path)\n\(text)\n", mode: 0o700)
    }

    func run(_ script: String, _ arguments: [String] = [], environment: [String: String?] = [:]) throws -> TestProcess {
      let path = "\(directory.path):/usr/local/bin:/usr/bin:/bin"
      return try TestProcess(
        "sh", ["-c", "cd \"$0\" && exec \"$@\"", directory.path, "\(Self.samples)/\(script)"] + arguments,
        environment: ["PATH": path, "MESSAGES": "\(directory.path)/messages"].merging(environment) { $1 })
    }

    /// Runs a pod and keeps its log.
    func part(_ index: Int, of parts: Int, _ environment: [String: String?] = [:]) throws -> TestProcess {
      let own: [String: String?] = ["JOB_COMPLETION_INDEX": "\(index)", "PARTS": "\(parts)"]
      let process = try run("part.sh", ["http://h/", "--streams=9"], environment: own.merging(environment) { $1 })
      try process.wait()
      try directory.write("log-\(index)", process.output.map { $0 + "\n" }.joined())
      return process
    }
  }

  @Test("each pod runs its part, counted from 1, and logs only its report; merged, the reports cover the whole run")
  func parts() throws {
    let cluster = try Cluster(parts: 3, pods: 3)
    for index in 0..<3 {
      let pod = try cluster.part(index, of: 3, ["SERVICE": "sluice-load"])
      #expect(try pod.wait() == 0)
      #expect(pod.output.first == "{" && pod.errors.isEmpty)
    }
    let calls = String(decoding: try cluster.directory.contents("calls"), as: UTF8.self).split(separator: "\n")
    #expect(calls.count == 3)
    for (index, call) in calls.enumerated() {
      #expect(call.hasPrefix("load http://h/ --streams=9 --part \(index + 1)/3 --progress none --json "))
    }
    #expect(try cluster.directory.contents("asked").count >= 3, "it asked until all were there")
    let collected = try cluster.run("collect.sh", ["sluice-load", "--html", "page.html", "--fail-if", "errors > 0"])
    #expect(try collected.wait() == 0, "\(collected.errors)")
    #expect(collected.output.contains { $0.contains("300 acknowledged") })
    #expect(collected.errors == ["met: errors is 0, and must be 0"])
    #expect(try cluster.directory.contents("page.html").count > 10_000)
    let judged = try cluster.run("collect.sh", ["sluice-load", "--fail-if", "ack.p99 > 1ms"])
    #expect(try judged.wait() == 3)
  }

  @Test("a failed part is missing from the merged report, which states this")
  func missing() throws {
    let cluster = try Cluster(parts: 3, pods: 3, failed: [2])
    for index in 0..<3 { #expect(try cluster.part(index, of: 3).wait() == (index == 1 ? 69 : 0)) }
    let collected = try cluster.run("collect.sh", ["sluice-load"])
    #expect(try collected.wait() == 0)
    #expect(collected.errors == ["part 2 of 3 has left no report: see kubectl describe pod/load-1"])
    #expect(collected.output.contains { $0.contains("of 3 parts these are missing: 2") })
    #expect(collected.output.contains { $0.contains("200 acknowledged") })
  }

  @Test("a pod whose peers never start gives up, and reports the number of started pods")
  func alone() throws {
    let cluster = try Cluster(parts: 3, pods: 2)
    let pod = try cluster.part(0, of: 3, ["SERVICE": "sluice-load", "WAIT_SECONDS": "5"])
    #expect(try pod.wait() == 69)
    let messages = String(decoding: try cluster.directory.contents("messages"), as: UTF8.self)
    #expect(messages.hasPrefix("only 2 of 3 pods are there after 5 s"))
  }

  @Test("the Job's number of parts is the same in each place")
  func numbers() throws {
    let yaml = String(decoding: try fileContents("\(Cluster.samples)/load-test.yaml"), as: UTF8.self)
    let found = try [/completions: (\d+)/, /parallelism: (\d+)/, /name: PARTS\n *value: "(\d+)"/].map {
      try #require(yaml.firstMatch(of: $0)).1
    }
    #expect(Set(found).count == 1 && yaml.contains("completionMode: Indexed"))
  }
}
