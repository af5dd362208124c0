// Captures libasound's messages on standard error. They belong in the text of an error, not on the user's terminal.

internal import CALSA
internal import Glibc

enum AlsaMessages {
  private static let capacity = 1024

  /// The destination of a thread's messages. A thread-specific pointer, because libasound passes its handler no
  /// context.
  private static let destination: pthread_key_t = {
    var key = pthread_key_t()
    // Fails only after other libraries have used PTHREAD_KEYS_MAX (1024) keys. Then messages are dropped, see
    // `handler`.
    return pthread_key_create(&key, nil) == 0 ? key : pthread_key_t.max
  }()

  /// Appends one message to the calling thread's destination, or drops it without one. Allocates nothing.
  private static let handler: snd_local_error_handler_t = { _, _, _, _, format, arguments in
    guard let format, let arguments, let raw = pthread_getspecific(destination) else { return }
    let text = raw.assumingMemoryBound(to: CChar.self)
    var used = strlen(text)
    guard used == 0 || used + 2 < capacity else { return }
    if used > 0 {
      text[used] = CChar(UInt8(ascii: ";"))
      text[used + 1] = CChar(UInt8(ascii: " "))
      text[used + 2] = 0
      used += 2
    }
    vsnprintf(text + used, capacity - used, format, arguments)
  }

  /// Runs `body`. Returns libasound's messages of that time on this thread as one line, instead of printing them.
  static func collected<Result>(_ body: () -> Result) -> (result: Result, messages: String) {
    withUnsafeTemporaryAllocation(of: CChar.self, capacity: capacity) { text in
      text.initialize(repeating: 0)
      let outer = pthread_getspecific(destination)
      pthread_setspecific(destination, text.baseAddress)
      let outerHandler = snd_lib_error_set_local(handler)
      let result = body()
      snd_lib_error_set_local(outerHandler)
      pthread_setspecific(destination, outer)
      // The buffer is not empty (1024), so it has an address, and vsnprintf adds the terminating zero.
      let line = String(cString: text.baseAddress!)
      return (result, line.split(whereSeparator: \.isNewline).joined(separator: " "))
    }
  }

  /// From now on, libasound's messages on the calling thread are not printed. For the capture thread.
  static func dropOnThisThread() { snd_lib_error_set_local(handler) }
}
