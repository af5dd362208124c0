// Tests each option of each subcommand with each kind of bad value. A usage error must name the option and quote the
// value.

import NetworkTesting
import Synchronization
import Testing
import UploadClient

@testable import sluice

@Suite("Bad values of options")
struct OptionTableTests {
  /// The kind of value that an option takes. It determines which values are bad.
  private enum Value {
    case nothing, text, time, positiveTime, size, sizeOrNone, count, positiveCount, choice, inputFile, proxy, socket,
      address
    case other([String])

    static let huge = "99999999999999999999999999"

    /// Values that are bad for each option except switches.
    static let anywhere = ["", "\u{1B}[2J", "a\r\nb", "\u{9B}31m"]

    var bad: [String] { Self.anywhere + own }

    /// A bad value that only this kind of option refuses.
    var firstOwn: String? { own.first }

    /// Whether the error for a bad value shows the allowed range.
    var isRanged: Bool {
      switch self {
      case .size, .sizeOrNone: true
      default: false
      }
    }

    private var own: [String] {
      switch self {
      // A missing file has its own exit code, which another test checks.
      case .nothing, .text, .inputFile: []
      case .time: ["soon", "-1s", "5kB", "1e3", "nan", "1.2.3s", Self.huge + "s"]
      case .positiveTime: ["soon", "-1s", "5kB", "0", "0s", "1e3", Self.huge]
      case .size: ["many", "-1", "5s", "0", "0.1", "1e9", "1000TiB", Self.huge + "GB"]
      case .sizeOrNone: ["many", "-1", "5s", "1e9", "1000TiB", Self.huge + "GB"]
      case .count: ["many", "-1", "5s", "1.5", Self.huge]
      case .positiveCount: ["many", "-1", "5s", "0", "1.5", Self.huge]
      case .choice: ["perhaps", "-1", "0", Self.huge]
      case .proxy: ["nonsense://", "ftp://host", "http://", "nonsense://host:80", "http://host:port", "://"]
      case .socket: ["/nowhere/socket", "/dev/null"]
      case .address: ["nowhere", "host:", "host:99999", "host:-1", "::1:80", "unix:"]
      case .other(let values): values
      }
    }
  }

  /// All options, as `subcommand.name` if subcommands differ.
  private static let table: [String: Value] = [
    "help": .nothing, "json": .nothing, "netrc": .nothing, "ipv4": .nothing, "ipv6": .nothing, "http1": .nothing,
    "http2": .nothing, "request-per-message": .nothing, "resume": .nothing, "abandon": .nothing, "merge": .nothing,
    "compare": .nothing,
    "split": .other([
      "many", "-1s", "3600", "1ms", "9s", "0s", "1kB", "24:00", "00:60", "1:00", ":", "0:0:0", Value.huge,
    ]),
    "discard": .nothing, "force": .nothing, "background": .nothing, "detach": .nothing, "all": .nothing,
    "state-directory": .text, "socket": .text, "idle-exit": .positiveTime,
    "names": .other(["", "x", "/x", "../x", "a/../b", "a/", "{x}/y", "%n/%Y", "a/%", "a/b\\c", "-a/b", ".a/b", "a b/c"]
    ),
    "spool": .text, "spool-limit": .size, "spool-keep": .other(["many", "-1s", "5kB", "59s", "0", Value.huge]),
    "sync-interval": .other(["soon", "-1s", "5kB", "0", "9ms", "2h", Value.huge]), "backlog": .choice,
    "catch-up-rate": .size,
    "keep": .other(["many", "-1s", "30", "59s", "1ms", "0s", "1kB", Value.huge + "d"]),
    "keep-size": .other(["many", "-1", "500", "5s", "0", Value.huge + "GB"]),
    "keep-free": .other(["many", "-1%", "10", "0%", "100%", "%", "5s", "1e3", Value.huge + "GB"]),
    "keep-at-least": .other(["many", "-1", "500", "5s", "0", Value.huge + "GB"]),
    "no-sidecars": .nothing, "allow-download": .nothing, "quiet": .nothing,
    "test": .nothing, "device": .text, "time-format": .other(["%512d", "%5000d"]),
    "content-type": .other(["=", "text", "/plain", "text/plain/x", "text plain", "text/plain; a=\"b", "\u{FC}/x"]),
    "resume-file": .text,
    "directory": .text, "output": .text,
    "html": .text, "csv": .text, "report.json": .text, "load.json": .text, "i-may-load-this": .text,
    "local-address": .text,
    "give-up": .time, "finish-timeout": .time, "give-up-on-refusal": .time, "ramp": .time, "grace": .time,
    "head-timeout": .time, "drain-timeout": .time,
    "body-timeout": .time,
    "idle-timeout": .time,
    "period": .positiveTime, "device-buffer": .positiveTime, "duration": .positiveTime, "interval": .positiveTime,
    "roll-over-after": .positiveTime, "connect-timeout": .positiveTime, "stall-timeout": .positiveTime,
    "response-timeout": .positiveTime, "retry-ceiling": .positiveTime, "chunk": .positiveTime,
    "drop-every": .positiveTime, "max-age": .positiveTime, "finish-after": .positiveTime,
    "buffer": .other(["many", "-1", "-1s", "0", "0s", "1e9", "1000000h", Value.huge]),
    "load.buffer": .size, "roll-over-bytes": .size, "send-buffer": .size, "max-segment": .size, "load.rate": .size,
    "slow-rate": .size, "max-bytes": .size, "max-hole": .size, "max-finished": .positiveCount,
    "max-finished-size": .sizeOrNone, "max-body": .size, "receive-buffer": .size,
    "max-size": .sizeOrNone, "max-append-size": .sizeOrNone, "min-append-size": .sizeOrNone, "quota": .sizeOrNone,
    "quota-per-client": .sizeOrNone, "min-rate": .sizeOrNone, "proxied-interims": .count, "seed": .count,
    "rate": .positiveCount, "channels": .positiveCount, "threads": .positiveCount, "streams": .positiveCount,
    "max-connections": .positiveCount, "max-downloads": .positiveCount, "max-uploads": .positiveCount,
    "max-uploads-per-client": .positiveCount,
    "streams-per-connection": .positiveCount, "max-under-way": .positiveCount,
    "format": .choice, "container": .choice, "gap-fill": .choice, "overflow": .choice, "progress": .choice,
    "resumable": .choice, "location": .choice, "digest": .choice, "durability": .choice, "profile": .choice,
    "bearer-token-file": .inputFile, "netrc-file": .inputFile, "ca-file": .inputFile, "cert": .inputFile,
    "key": .inputFile, "token-file": .inputFile, "body": .inputFile,
    "proxy": .proxy, "unix-socket": .socket, "listen": .address, "metrics": .address,
    "header": .other(["nothing", "a b: c", ": c", "Content-Length: 5"]),
    "method": .other(["GET", "get", "HEAD", "post", "PO ST", "Ü"]),
    "stream-id": .other(["a b", ".a", "a/b", "ü", String(repeating: "a", count: 65)]),
    "fail-if": .other(["nothing", "errors", "errors > many", "nothing > 5"]),
    "stage": .other(["many", "5s", "5s:-1", "x:5", "5s:1:2", "5s:1.5", "0s:5", "5s:0"]),
    "arrival-rate": .other(["many", "5", "0/s", "-1/s", "1e99/s", "1e3/s", "nan/s", "/s", "10000001/s"]),
    "part": .other(["1", "0/0", "5/4", "-1/2", "1/\(Value.huge)", "a/b"]),
    "slow-fraction": .other(["many", "-1", "2", "nan", "5s"]),
    "public-url": .other([
      "nowhere", "ftp://host/", "http://", "http:///x", "http://h:x/", "http://h:99999/", "http://a b/", "http://h/<>",
      "http://h/?q", "/a b", "/a|b", "/a#b", "/a?", "/%zz", "*",
    ]),
    "store": .other(["http://h", "nats://", "nats://h,", "nats://:4222", "tls://h/x"]),
    "store-stream": .other(["a b", "a.b", "a*", "ü", ">", String(repeating: "a", count: 65)]),
    "replicas": .other(["many", "-1", "0", "6", "1.5", Value.huge]),
    "store-monitor": .other([
      "nats://h", "ftp://h", "http://", "http://h,", "http://h:x", "http://h:65536", "http://u@h",
    ]
    ),
    "partition": .other(["1", "0/1", "2/1", "1/0", "1/257", "-1/2", "a/b", "1/2/3", "1/\(Value.huge)"]),
    "after-collect": .choice,
    "store-token-file": .inputFile, "store-credentials": .inputFile, "store-ca": .inputFile,
    "store-cert": .inputFile, "store-key": .inputFile,
    "store-system-credentials": .inputFile,
  ]

  private static func value(_ option: String, of subcommand: String) -> Value? {
    table["\(subcommand).\(option)"] ?? table[option]
  }

  /// The operands that a subcommand needs.
  private func operands(_ name: String, _ url: String, _ file: String) -> [String] {
    switch name {
    case "put": [file, url]
    case "report": [file]
    case "serve", "devices", "agent": []
    case "transfers": ["list"]
    case "verify": ["/nowhere"]
    // No server listens at this address, so a value that is accepted leads to another exit code.
    case "collect": ["nats://127.0.0.1:9"]
    case "spool": ["drain", "/nowhere"]
    default: [url]
    }
  }

  @Test("every option is in the table", arguments: SluiceCommand.subcommands.map(\.syntax.name))
  func complete(_ name: String) throws {
    for option in try SluiceCommand.find(name).syntax.allOptions {
      let value = try #require(Self.value(option.name, of: name), "\(name) --\(option.name)")
      if case .nothing = value { #expect(option.value == nil, "\(name) --\(option.name)") }
    }
  }

  /// Tries an option that several subcommands share with the first of them, but tests its parsing with each. Because
  /// `load` has its own code for them, it gets one bad value of each.
  @Test(
    "a bad value is a usage error that names the option and quotes the value, before any connection",
    arguments: SluiceCommand.subcommands.map(\.syntax.name))
  func bad(_ name: String) throws {
    let directory = try TemporaryDirectory()
    let file = try directory.write("file", "{}")
    let connections = Atomic(0)
    let server = try ScriptedServer { _, _ in connections.add(1, ordering: .relaxed) }
    let subcommand = try SluiceCommand.find(name)
    let shared = Set(
      (StreamOptions.shown + StreamOptions.resuming.options + StreamOptions.connection.options).map(\.name))
    for option in subcommand.syntax.allOptions where option.value != nil {
      let value = try #require(Self.value(option.name, of: name))
      for bad in value.bad {
        let arguments = [name] + operands(name, server.url, file) + ["--\(option.name)", bad]
        let isOnlyParsed = bad.isEmpty || bad.contains { $0.isNewline || $0 == "\u{1B}" || $0 == "\u{9B}" }
        let isTried = !shared.contains(option.name) || name == "heartbeat" || name == "load" && bad == value.firstOwn
        guard isOnlyParsed || isTried else { continue }
        var (code, text) = (Int32(0), "")
        if isOnlyParsed {
          do throws(CommandError) { _ = try subcommand.syntax.parse(arguments[1...]) } catch {
            (code, text) = (error.code.rawValue, error.message)
          }
        } else {
          let process = try sluice(arguments)
          code = try process.wait()
          text = process.errors.joined(separator: "\n")
        }
        #expect(code == 64, "\(arguments): \(text)")
        #expect(text.contains("--\(option.name)"), "\(arguments): \(text)")
        // The error for a value with a size names the smallest and the largest value.
        if value.isRanged, !isOnlyParsed {
          #expect(text.contains(/from \S+ to \S+[.]/), "\(arguments): \(text)")
        }
        // Nothing of a password in a URL is shown, and only the beginning of a long value.
        #expect(text.contains(bad.escaped.prefix(90)), "\(arguments): \(text)")
        #expect(!text.unicodeScalars.contains { $0.value < 0x20 && $0 != "\n" || $0.value == 0x9B }, "\(arguments)")
      }
    }
    #expect(connections.load(ordering: .relaxed) == 0)
  }

  @Test("a missing or repeated value, or a value for a switch, is a usage error that names the option")
  func form() {
    func message(_ syntax: CommandLineSyntax, _ arguments: [String]) -> String? {
      do throws(CommandError) {
        _ = try syntax.parse((syntax.operands + arguments)[...])
        return nil
      } catch {
        return error.code == .usage ? error.message : nil
      }
    }
    for subcommand in SluiceCommand.subcommands {
      for option in subcommand.syntax.allOptions {
        let written = "--\(option.name)"
        if option.value == nil {
          #expect(message(subcommand.syntax, ["\(written)=yes"])?.contains(written) == true)
          #expect(message(subcommand.syntax, [written, written])?.contains("\(written) is given twice") == true)
        } else {
          #expect(message(subcommand.syntax, [written])?.contains("\(written) requires a value") == true)
          guard !option.mayRepeat else { continue }
          #expect(
            message(subcommand.syntax, [written, "a", "\(written)=b"])?.contains("\(written) is given twice") == true)
        }
      }
    }
  }

  @Test(
    "a missing file or a directory has one code, for each option that names it",
    arguments: SluiceCommand.subcommands.map(\.syntax.name))
  func inputFiles(_ name: String) throws {
    let directory = try TemporaryDirectory()
    let file = try directory.write("file", "{}")
    for option in try SluiceCommand.find(name).syntax.allOptions {
      guard case .inputFile = try #require(Self.value(option.name, of: name)) else { continue }
      for path in ["\(directory.path)/missing", directory.path] {
        let process = try sluice([name] + operands(name, "http://127.0.0.1:9/", file) + ["--\(option.name)", path])
        let code = try process.wait()
        let text = process.errors.joined(separator: "\n")
        #expect(code == 66 && text.contains(path), "\(name) --\(option.name) \(path): \(code) \(text)")
      }
    }
    for arguments in [
      ["put", "/nowhere/x", "http://h/"], ["report", "/nowhere/x"], ["load", "http://h/", "--profile", "/nowhere/x"],
    ] {
      #expect(try sluice(arguments).wait() == 66, "\(arguments)")
    }
  }

  @Test(
    "options that contradict each other are a usage error that names both",
    arguments: [
      ["heartbeat", "http://h/", "-4", "-6"], ["load", "http://localhost/", "--http1", "--http2"],
      ["load", "http://localhost/", "--stage", "5s:5", "--ramp", "1s"],
      ["load", "http://localhost/", "--max-under-way", "5"], ["load", "http://localhost/", "--slow-rate", "5B"],
      ["load", "http://localhost/", "--request-per-message", "--buffer", "1MB"],
      ["load", "http://localhost/", "--request-per-message", "--roll-over-after", "1s"],
      ["load", "http://localhost/", "--request-per-message", "--give-up", "1s"],
      ["load", "http://localhost/", "--request-per-message", "--give-up-on-refusal", "1s"],
      ["load", "http://localhost/", "--request-per-message", "--retry-ceiling", "1s"],
      ["load", "http://localhost/", "--json", "/tmp/sluice-report", "--csv", "/tmp/sluice-report"],
      ["load", "http://localhost/", "--json", "-", "--html", "-"],
      ["put", "/dev/null", "http://h/", "--resume", "--abandon"],
      ["report", "a", "b", "--merge", "--compare"], ["serve", "--discard", "--directory", "/tmp"],
      ["serve", "--store", "nats://h", "--directory", "/tmp"], ["serve", "--store", "nats://h", "--discard"],
      ["serve", "--store", "nats://h", "--quota-per-client", "1GB"],
      ["serve", "--store", "nats://h", "--keep", "30d"],
      ["serve", "--replicas", "3"], ["serve", "--store-monitor", "http://h"],
      ["serve", "--store", "nats://h", "--durability", "always"],
      ["serve", "--store", "nats://h", "--durability", "none"],
      ["serve", "--min-append-size", "2MB", "--max-append-size", "1MB"],
      ["serve", "--min-append-size", "2MB", "--max-size", "1MB"],
      ["serve", "--allow-download", "--no-sidecars"], ["serve", "--allow-download", "--discard"],
      ["serve", "--store", "nats://h", "--allow-download"], ["serve", "--max-downloads", "5"],
      ["mic", "http://h/", "--period", "1s", "--device-buffer", "1s"],
      ["load", "http://localhost/", "--ramp", "2s", "--duration", "1s"],
    ])
  func contradictions(_ arguments: [String]) throws {
    let process = try sluice(arguments)
    #expect(try process.wait() == 64)
    let text = process.errors.joined()
    for option in arguments where option.hasPrefix("--") { #expect(text.contains(option), "\(text)") }
  }

  @Test("a private key without its certificate is a usage error", arguments: ["heartbeat", "put", "get", "load"])
  func keyWithoutCertificate(_ name: String) throws {
    let directory = try TemporaryDirectory()
    let file = try directory.write("file", "{}")
    let process = try sluice([name] + operands(name, "http://localhost:9/x", file) + ["--key", file])
    #expect(try process.wait() == 64)
    #expect(process.errors == ["sluice: --key requires --cert. Add the certificate of the key."])
  }

  @Test(
    "a rate at which the stream would count as stalled is refused with the lowest possible rate, which is accepted",
    arguments: [
      (["spool", "drain", "/nonexistent/spool"], "728", "at least 729B"),
      (["spool", "drain", "/nonexistent/spool", "--stall-timeout", "1s"], "21845B", "at least 21846B"),
      (["spool", "drain", "/nonexistent/spool"], "729", nil),
      (["spool", "drain", "/nonexistent/spool", "--stall-timeout", "40s"], "728", nil),
      (["pipe", "http://h/", "--spool", "/nonexistent/spool"], "11650B", "at least 11651B"),
    ] as [([String], String, String?)])
  func lowRate(_ arguments: [String], _ rate: String, _ advice: String?) throws {
    let process = try sluice(arguments + ["--catch-up-rate", rate])
    #expect(try process.wait() == (advice == nil ? 66 : 64), "\(process.errors)")
    let text = process.errors.joined()
    #expect(text.contains("--catch-up-rate \"\(rate)\": too low") == (advice != nil), "\(text)")
    if let advice { #expect(text.contains(advice) && text.contains("--stall-timeout"), "\(text)") }
  }

  @Test(
    "a media type is sent as it was written, with its parameters",
    arguments: [nil, "text/plain", "text/plain; charset=utf-8", #"multipart/mixed; boundary="a b; \"c\"""#])
  func mediaType(_ text: String?) throws {
    let values = try Pipe.syntax.parse((["http://h/"] + (text.map { ["--content-type", $0] } ?? []))[...])
    #expect(try StreamOptions.contentType(values) == text ?? "application/octet-stream")
  }

  @Test("a buffer beyond the machine's memory is refused with the size of the memory")
  func largeBuffer() throws {
    func message(_ text: String) -> String? {
      do throws(CommandError) {
        _ = try StreamOptions.capacity(text, bytesPerSecond: 96_000, memory: 8 << 30)
        return nil
      } catch {
        return error.message
      }
    }
    #expect(
      message("1000h")
        == #"--buffer "1000h" requires 346 GB at 96.0 kB per second, and this machine has 8.59 GB of memory. Choose at most 1d."#
    )
    #expect(message("16GiB")?.contains("Choose at most 8192MiB.") == true)
    #expect(message("1d") == nil && message("8GiB") == nil && message("10min") == nil && message("0.001TiB") == nil)
    #expect(
      message("300")
        == #"--buffer "300": the unit is missing. Write 300B, 300s, or another unit such as MiB or min."#)
  }

  @Test(
    "the error for an absurd size or time has the possible range",
    arguments: [
      (["load", "--buffer", "0"], "from 1B to 1000TB."), (["load", "--buffer", "1000TiB"], "from 1B to 1000TB."),
      (["load", "--rate", "0"], "from 1B to 10GB."), (["load", "--rate", "11GB"], "from 1B to 10GB."),
      (["load", "--max-bytes", "0"], "from 1B to 1000TB."),
      (["load", "--grace", "1000000h"], "from 0s to 30d."), (["load", "--give-up", "31d"], "from 0s to 30d."),
      (["heartbeat", "--buffer", "0"], "Write a size from 1B to "), (["heartbeat", "--buffer", "0B"], "from 1B to "),
      (["heartbeat", "--buffer", "2000TB"], "from 1B to "), (["heartbeat", "--buffer", "0s"], "from 1ms to 104166d."),
      (["heartbeat", "--interval", "9999999999s"], "to 104166d."),
      (["load", "--duration", "31d"], "from 1ms to 30d."), (["load", "--chunk", "2h"], "from 1ms to 1h."),
      (["heartbeat", "--max-segment", "10"], "from 88B to 32767B."),
    ])
  func ranges(_ arguments: [String], _ range: String) throws {
    let process = try sluice([arguments[0], "http://localhost:9/"] + arguments[1...])
    #expect(try process.wait() == 64)
    let text = process.errors.joined()
    #expect(text.contains("\(arguments[1]) \"\(arguments[2])\": invalid ") && text.contains(range), "\(text)")
  }

  @Test(
    "the error for 0 and other invalid limits of recordings has the range, and never advises a value that is refused",
    arguments: [
      ("keep", "0", "a time from 1min to 104166d."), ("keep", "-1", "a time from 1min to 104166d."),
      ("keep", "30", "Write 30d for days"), ("keep-size", "0", "from 1B to 1000TB."),
      ("keep-size", "500", "Write 500GB, "), ("keep-size", "2000000", "from 1B to 1000TB."),
      ("keep-free", "0", "between 0% and 100%, or a size from 1B to 1000TB."),
      ("keep-free", "100%", "between 0% and 100%, or a size from 1B to 1000TB."),
      ("keep-free", "10", "Write 10%, "), ("keep-free", "500", "Write 500GB, "),
      ("split", "0", "a time from 10s to 104166d, a size from 1MB to 1000TB, or "),
      ("split", "1B", "a size from 1MB to 1000TB, or "), ("split", "2000TB", "a size from 1MB to 1000TB, or "),
      ("split", "3600", "Write 3600s, "), ("split", "5", "Write 5min, "),
    ])
  func limits(_ option: String, _ text: String, _ advice: String) throws {
    let values = try Serve.syntax.parse(["--\(option)", text])
    func parse() throws(CommandError) {
      _ = try SplitOption.parse(values.all("split"))
      _ = try KeepOptions.parse(values)
    }
    let error = try #require(throws: CommandError.self) { try parse() }
    #expect(error.code == .usage && error.message.hasPrefix("--\(option) \"\(text)\": "), "\(error.message)")
    #expect(error.message.contains(advice), "\(error.message)")
  }

  @Test("a proxy of the environment is checked, too")
  func environment() throws {
    let process = try sluice(["heartbeat", "http://h/"], environment: ["http_proxy": "nonsense://me:SECRET@x"])
    #expect(try process.wait() == 64)
    #expect(process.errors.joined().contains("http_proxy") && !process.errors.joined().contains("SECRET"))
    for proxy in ["http://h:80", "h:80", "socks5h://h", "localhost", "https://me:word@h:1/"] {
      #expect(UploadRequest.isProxy(proxy), "\(proxy)")
    }
  }
}
