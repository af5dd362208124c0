// A program that serves requests uses their fields, heads and responses.

@_exported public import HTTPMessages
