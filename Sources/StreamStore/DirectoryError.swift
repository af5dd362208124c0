// The reasons why a server cannot store into a directory.

package enum DirectoryError: Error {
  /// The directory cannot be created or opened.
  case missing(reason: String)
  /// The names of the files in it cannot be read.
  case unreadable(reason: String)
  /// No file can be created in it.
  case unwritable(reason: String)
  /// Another server stores into the directory.
  case inUse
  /// A collector has stored into it, and its next start would undo the writes of others.
  case collected
}
