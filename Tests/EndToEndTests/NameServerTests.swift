// Name servers that never answer, in a network of one process. A lookup takes half a minute there, and nothing may wait
// for it.

import CommandTesting
import EventLoops
import Glibc
import NetworkTesting
import TestRigs
import Testing

@Suite(
  "Name servers that do not answer", .enabled(if: Surroundings.mayMakeNetworks && Surroundings.mayMount), .serialized)
struct NameServerTests {
  /// Runs a program with three configured name servers, none of which answers: packets to them return to a machine that
  /// does not have their addresses.
  private func inSilence(_ scratch: ScratchDirectory) -> [String] {
    let servers = (53...55).map { "nameserver 192.0.2.\($0)\n" }.joined()
    let file = scratch.write(servers, to: "resolv.conf")
    let script = """
      file=$1; shift
      ip link set lo up && ip addr add 192.0.2.1/32 dev lo && ip route add 192.0.2.0/24 dev lo src 192.0.2.1 \
        && mount --bind "$file" /etc/resolv.conf && exec "$@"
      """
    return ["unshare", "--net", "--mount", "sh", "-c", script, "sh", file]
  }

  /// The threads of a process that libcurl created, which have the network loop's name, and the loop itself.
  private func networkThreads(_ process: Int32) -> Int {
    let tasks = (try? fileNames(in: "/proc/\(process)/task")) ?? []
    return tasks.count { (try? fileContents("/proc/\(process)/task/\($0)/comm")) == Array("sluice-network\n".utf8) }
  }

  @Test("the stream continues the capture, leaves few threads behind, and ends at once at SIGQUIT")
  func outage() throws {
    let scratch = ScratchDirectory()
    let stream = try StreamProcess(
      "heartbeat", "http://nowhere.example:8080/pulse",
      more: ["--interval", "500ms", "--connect-timeout", "300ms", "--retry-ceiling", "50ms"],
      prefix: inSilence(scratch))
    // After this number of attempts, each further one would have left another thread.
    try stream.output.wait(for: "refused lookups") { events, _ in
      SluiceProcess.failures(in: events).count >= 20 ? true : nil
    }
    try stream.event("progress") { ($0.thousandths("elapsed_seconds") ?? 0) > 4000 }
    #expect(networkThreads(stream.identifier) <= 6)
    // The loop was never blocked: progress came every second, and no beat was late.
    let times = stream.events("progress").compactMap { $0.thousandths("elapsed_seconds") }
    for (earlier, later) in zip([0] + times, times) { #expect(later - earlier < 2000, "\(times)") }
    #expect(stream.events("late").isEmpty)
    stream.signal(SIGTERM)
    let signalled = MonotonicInstant.now
    stream.signal(SIGQUIT)
    #expect(try stream.exitCode() == 130)
    // A lookup takes half a minute.
    #expect(MonotonicInstant.now - signalled < .seconds(20))
  }

  @Test("--give-up ends a stream in time")
  func giveUp() throws {
    let scratch = ScratchDirectory()
    let stream = try StreamProcess(
      "heartbeat", "http://nowhere.example:8080/pulse",
      more: ["--connect-timeout", "300ms", "--retry-ceiling", "50ms", "--give-up", "2s"], prefix: inSilence(scratch))
    let ended = try stream.ended(code: 69)
    #expect((ended.thousandths("elapsed_seconds") ?? .max) < 6000)
  }
}
