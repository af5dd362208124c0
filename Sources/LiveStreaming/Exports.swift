// A program that streams or uploads needs one import: what configures a stream comes with it.

@_exported public import Digests
@_exported public import StreamBuffers
@_exported public import UploadClient
