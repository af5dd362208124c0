// libssl, as installed on the system: TLS for servers that tests script.
#pragma once
#include <openssl/err.h>
#include <openssl/ssl.h>
