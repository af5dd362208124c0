// SQLite, as installed on the system: where the agent keeps its transfers.
#pragma once
#include <sqlite3.h>
