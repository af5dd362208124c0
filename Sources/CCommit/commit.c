#include "CCommit.h"

const char *sluice_commit(void) { return SLUICE_COMMIT; }
