// What a file sees that imports FoundationUploads: Foundation.

@_exported public import Foundation
