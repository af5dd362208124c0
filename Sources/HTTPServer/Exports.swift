// A program that serves requests uses the fields, heads and responses of this module.

@_exported public import HTTPMessages
