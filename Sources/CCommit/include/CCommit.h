// The commit of the source that this program was built from, as the manifest passes it to the compiler.

/// In hexadecimal, 12 digits; empty if the source is in no git repository.
const char *sluice_commit(void);
