// A program that serves uploads with handlers of its own imports `UploadServer` alone: requests, responses, addresses,
// handlers, events and what can be chosen of the store come with it.

@_exported public import HTTPServer
@_exported public import JetStream
@_exported public import StreamServing
@_exported public import StreamStore
