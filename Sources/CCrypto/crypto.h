// libcrypto, as installed on the system: OpenSSL's digests (EVP), which libcurl has loaded anyway.
#pragma once
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/provider.h>
