// Runs live streams with libcurl alone, on one thread, for comparison with `sluice load`.
//
// Each stream creates an upload resource with an empty POST, and appends to it with one endless, chunked PATCH. A
// message of a fixed size is due at each time of an absolute schedule. Upload-Offset in a 104 or in the final response
// acknowledges messages. The program uses curl_multi_socket_action, the interface for thousands of transfers, with
// epoll and a timerfd. It prints the results as a JSON object to standard output. The exit code is 0 if every message
// was acknowledged and every upload completed.

#include <stdio.h>
#include <stdlib.h>

#include "generator.h"
#include "options.h"

int main(int count, char **words) {
  static struct generator generator;
  generator.options = options_parse(count, words);
  bool is_good = generator_run(&generator);
  const struct options *options = &generator.options;
  double messages = generator.window_sent ? (double)generator.window_sent : 1;
  double user = generator.usage_to.user - generator.usage_from.user;
  double system = generator.usage_to.system - generator.usage_from.system;
  // The CPU time of connecting, creating, and the first messages.
  double beginning = generator.usage_from.user + generator.usage_from.system - generator.usage_before.user -
                     generator.usage_before.system;
  double grown = (double)generator.usage_to.resident - (double)generator.usage_before.resident;
  printf("{\"program\": \"libcurl-load\", \"libcurl\": \"%s\", \"streams\": %u, \"failed\": %u, ",
         curl_version_info(CURLVERSION_NOW)->version, options->streams, generator.failed);
  printf("\"message_bytes\": %u, \"period_ms\": %g, \"duration_s\": %g, \"tick_ms\": %g, ", options->message,
         (double)options->period / 1e6, (double)options->duration / 1e9, (double)options->tick / 1e6);
  printf("\"messages\": {\"due\": %llu, \"sent\": %llu, \"acknowledged\": %llu}, ",
         (unsigned long long)generator.window_due, (unsigned long long)generator.window_sent,
         (unsigned long long)generator.window_acknowledged);
  printf("\"cpu_user_s\": %.3f, \"cpu_system_s\": %.3f, \"cpu_us_per_message\": %.2f, ", user, system,
         (user + system) * 1e6 / messages);
  printf("\"cpu_us_per_stream_before\": %.1f, ", beginning * 1e6 / options->streams);
  printf("\"resident_kB\": %.0f, \"resident_kB_per_stream\": %.2f, ", (double)generator.usage_to.resident / 1e3,
         grown / 1e3 / options->streams);
  histogram_print(&generator.acknowledged, "acknowledged_ms");
  printf(", ");
  histogram_print(&generator.lateness, "lateness_ms");
  printf("}\n");
  return is_good ? 0 : 1;
}
