// libcurl, as installed on the system, and typed doors to its variadic calls, which Swift cannot make.
#pragma once
#include <curl/curl.h>

static inline CURLcode sluice_setopt_long(CURL *easy, CURLoption option, long value) {
  return curl_easy_setopt(easy, option, value);
}
static inline CURLcode sluice_setopt_offset(CURL *easy, CURLoption option, curl_off_t value) {
  return curl_easy_setopt(easy, option, value);
}
static inline CURLcode sluice_setopt_string(CURL *easy, CURLoption option, const char *value) {
  return curl_easy_setopt(easy, option, value);
}
static inline CURLcode sluice_setopt_pointer(CURL *easy, CURLoption option, void *value) {
  return curl_easy_setopt(easy, option, value);
}
static inline CURLcode sluice_setopt_slist(CURL *easy, CURLoption option, struct curl_slist *value) {
  return curl_easy_setopt(easy, option, value);
}
static inline CURLcode sluice_setopt_transfer(CURL *easy, CURLoption option, curl_read_callback callback) {
  return curl_easy_setopt(easy, option, callback);
}
static inline CURLcode sluice_setopt_sockopt(CURL *easy, curl_sockopt_callback callback) {
  return curl_easy_setopt(easy, CURLOPT_SOCKOPTFUNCTION, callback);
}
static inline CURLcode sluice_setopt_opensocket(CURL *easy, curl_opensocket_callback callback) {
  return curl_easy_setopt(easy, CURLOPT_OPENSOCKETFUNCTION, callback);
}
static inline CURLcode sluice_setopt_prereq(CURL *easy, curl_prereq_callback callback) {
  return curl_easy_setopt(easy, CURLOPT_PREREQFUNCTION, callback);
}
static inline CURLcode sluice_setopt_debug(CURL *easy, curl_debug_callback callback) {
  return curl_easy_setopt(easy, CURLOPT_DEBUGFUNCTION, callback);
}
static inline CURLcode sluice_setopt_resolverstart(CURL *easy, curl_resolver_start_callback callback) {
  return curl_easy_setopt(easy, CURLOPT_RESOLVER_START_FUNCTION, callback);
}
static inline CURLcode sluice_setopt_closesocket(CURL *easy, curl_closesocket_callback callback) {
  return curl_easy_setopt(easy, CURLOPT_CLOSESOCKETFUNCTION, callback);
}

static inline CURLcode sluice_getinfo_long(CURL *easy, CURLINFO info, long *value) {
  return curl_easy_getinfo(easy, info, value);
}
static inline CURLcode sluice_getinfo_offset(CURL *easy, CURLINFO info, curl_off_t *value) {
  return curl_easy_getinfo(easy, info, value);
}
/// Valid until the handle is used again; NULL where there is none.
static inline const char *sluice_getinfo_string(CURL *easy, CURLINFO info) {
  char *value = NULL;
  return curl_easy_getinfo(easy, info, &value) == CURLE_OK ? value : NULL;
}
/// What CURLOPT_PRIVATE was given; NULL for a handle of libcurl's own.
static inline void *sluice_getinfo_private(CURL *easy) {
  char *value = NULL;
  return curl_easy_getinfo(easy, CURLINFO_PRIVATE, &value) == CURLE_OK ? value : NULL;
}

static inline CURLMcode sluice_multi_setopt_long(CURLM *multi, CURLMoption option, long value) {
  return curl_multi_setopt(multi, option, value);
}
static inline CURLMcode sluice_multi_setopt_socket(CURLM *multi, curl_socket_callback callback, void *context) {
  CURLMcode code = curl_multi_setopt(multi, CURLMOPT_SOCKETFUNCTION, callback);
  return code ? code : curl_multi_setopt(multi, CURLMOPT_SOCKETDATA, context);
}
static inline CURLMcode sluice_multi_setopt_timer(CURLM *multi, curl_multi_timer_callback callback, void *context) {
  CURLMcode code = curl_multi_setopt(multi, CURLMOPT_TIMERFUNCTION, callback);
  return code ? code : curl_multi_setopt(multi, CURLMOPT_TIMERDATA, context);
}

/// Macros that cast, which Swift does not import.
static const unsigned long sluice_curlauth_bearer = CURLAUTH_BEARER;

/// The verdict that a finished message carries; CURLMsg's union is not imported.
static inline CURLcode sluice_message_result(const CURLMsg *message) { return message->data.result; }
