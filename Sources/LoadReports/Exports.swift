// A program that reads reports hears what is wrong with them: `DocumentError` comes with this import.

@_exported public import JSONDocuments
