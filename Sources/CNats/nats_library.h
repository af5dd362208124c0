// libnats, as installed on the system: connections to NATS, with TLS, credentials and reconnects.
#pragma once
#include <nats/nats.h>
