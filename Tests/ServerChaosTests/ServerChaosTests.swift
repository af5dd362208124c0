// The matrix of `make chaos-server`, with each cell once.

import ServerChaosTesting
import Testing

@Suite("Server chaos")
struct ServerChaosTests {
  @Test(
    "each operation runs concurrently with each request, in each setting of the server", arguments: [UInt64(20_261_122)]
  )
  func everyCombination(seed: UInt64) throws {
    var options = ServerChaos.Options(seed: seed, sequences: ChaosCell.all.count)
    options.jobs = 8
    options.isWanted = { !$0.setting.storage.isLog }
    let report = try ServerChaos(options).run()
    #expect(report.isClean, "\(report)")
  }

  @Test("the same holds for a log, with one server and with two", arguments: [UInt64(20_261_127)])
  func everyCombinationWithLog(seed: UInt64) throws {
    var options = ServerChaos.Options(seed: seed, sequences: ChaosCell.all.count)
    // Debian 12's broker is too old for some combinations. `make chaos-server` installs a newer one.
    let hasRecentBroker = ChaosLog.hasRecentBroker
    options.isWanted = { cell in
      cell.setting.storage.isLog && cell.setting.threads == 2
        && (hasRecentBroker ? cell.setting.durability == "always" : cell.setting.durability == "interval")
        && (hasRecentBroker || !cell.requiresRecentBroker)
    }
    let report = try ServerChaos(options).run()
    #expect(report.count == (hasRecentBroker ? 300 : 270))
    #expect(report.isClean, "\(report)")
  }

  @Test(
    "after a power failure, acknowledged bytes exist or a possible loss is reported, and no client gets another's bytes"
  )
  func powerFailure() throws {
    var options = ServerChaos.Options(seed: 20_261_122, sequences: 4 * ChaosCell.all.count)
    options.isWanted = { $0.operation == .powerCut && $0.setting.storage == .directory }
    let report = try ServerChaos(options).run()
    #expect(report.count == 360)
    #expect(report.isClean, "\(report)")
  }
}
