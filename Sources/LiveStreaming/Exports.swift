// A program that streams or uploads needs only one import, which includes the modules for configuration.

@_exported public import Digests
@_exported public import StreamBuffers
@_exported public import UploadClient
