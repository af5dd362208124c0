// The kinds of events, for comparisons.

import LiveStreaming

extension LiveStreamEvent {
  /// The name of its case, such as `connecting`.
  var kind: String { Mirror(reflecting: self).children.first?.label ?? "" }
}
