// What moving bytes through the circular buffer costs, beside memcpy moving the same bytes in the same pattern.
//
// Both sides do two copies of each message: from a source into the middle, and from the middle out into a sink. The
// middle is the circular buffer on the one side and a plain array of the same size on the other. Rounds of the two take
// turns in one run, so that a busy machine hits both; what counts is the ratio of each pair, and of those the median.
//
//     circular-buffer-benchmark [--bytes N] [--rounds N] [--capacity N]

import EventLoops
import StreamBuffers

/// Whole numbers by option name; an unknown or malformed one ends the program with the usage.
let settings = Settings(arguments: CommandLine.arguments.dropFirst())

print("\(settings.bytes >> 20) MiB in \(settings.rounds) rounds, a middle of \(settings.capacity >> 10) KiB")
var reached = true
for messageSize in [4 << 10, 64 << 10] {
  let contest = try Contest(settings: settings, messageSize: messageSize)
  for (threads, run) in [("one thread", contest.oneThread), ("two threads", contest.twoThreads)] {
    let result = try run()
    let size = "\(messageSize >> 10) KiB".leftPadded(6)
    print(
      "\(size)  \(threads.leftPadded(11))  circular buffer \(result.buffer.gigabytesPerSecond) GB/s  "
        + "memcpy \(result.memcpy.gigabytesPerSecond) GB/s  ratio \(result.ratio.twoDecimals)")
    reached = reached && result.ratio >= 0.8
  }
}
print(reached ? "at least 0.80 of memcpy everywhere" : "less than 0.80 of memcpy somewhere")
