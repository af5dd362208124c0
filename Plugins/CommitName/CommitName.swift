// Writes the commit of the source into a file of the target, before each build: a manifest is evaluated too seldom for
// that.

import Foundation
import PackagePlugin

@main
struct CommitName: BuildToolPlugin {
  /// Outside a git repository, such as in an unpacked archive, the commit is an empty string.
  private static let script = #"""
    commit=$(git -C "$1" rev-parse --short=12 HEAD 2>/dev/null) || commit=
    line="let commitName = \"$commit\""
    [ "$(cat "$2" 2>/dev/null)" = "$line" ] || echo "$line" > "$2"
    """#

  func createBuildCommands(context: PluginContext, target: any Target) -> [Command] {
    let folder = context.pluginWorkDirectoryURL
    return [
      .prebuildCommand(
        displayName: "The commit of the source", executable: URL(filePath: "/bin/sh"),
        arguments: [
          "-c", Self.script, "sh", context.package.directoryURL.path(percentEncoded: false),
          folder.appending(path: "CommitName.swift").path(percentEncoded: false),
        ], outputFilesDirectory: folder)
    ]
  }
}
