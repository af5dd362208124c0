// A program that reads reports handles their errors, so this import includes `DocumentError`.

@_exported public import JSONDocuments
