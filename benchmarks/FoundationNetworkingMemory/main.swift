// The counterpart of `foundation-uploads-benchmark memory`: a program that imports Foundation's own networking, makes a
// session's configuration, prints `ready`, and waits until its standard input ends.

import Foundation
import FoundationNetworking

_ = URLSessionConfiguration.default
FileHandle.standardOutput.write(Data("ready\n".utf8))
while readLine() != nil {}
