// A program that serves uploads with custom handlers imports only `UploadServer`. This includes requests, responses,
// addresses, handlers, events and the settings of the store.

@_exported public import HTTPServer
@_exported public import JetStream
@_exported public import StreamServing
@_exported public import StreamStore
