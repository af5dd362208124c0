// A program that sets the fields of a request, or reads those of a response, needs only one import.

@_exported public import struct HTTPMessages.HeaderFields
