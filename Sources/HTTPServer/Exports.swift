// Whoever serves requests has to do with their fields, heads and responses.

@_exported public import HTTPMessages
