// A program that serves uploads with handlers of its own imports `UploadServer` alone: requests, responses, addresses and
// handlers come with it.

@_exported public import HTTPServer
