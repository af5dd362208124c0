// Publishes live streams to JetStream with libnats alone, for comparison with `sluice serve --store`.
//
// Each stream is one subject. A message is due at each time of an absolute schedule, and it names the sequence of the
// subject's last message, so one message of a stream is in flight at a time. A message that is due before the
// acknowledgement of the one before it is omitted, and counted. With `--headers`, each message also has the headers of
// an upload's message, with constant values. One thread publishes. libnats's own threads read and deliver the
// acknowledgements. The result is a JSON object on standard output. The exit code is 0 if every message was
// acknowledged.

#include <nats/nats.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define INBOX "_INBOX.least"
#define STREAM "least"

struct subject {
  char name[32], reply[40];
  // The thread that delivers acknowledgements changes this while a message is in flight.
  uint64_t sequence;
  int64_t due;  // of the message in flight
  atomic_bool is_waiting;
};

static struct subject *subjects;
static unsigned subject_count;
static atomic_uint acknowledged, failed;
static float *delays;
static unsigned delay_limit;

static int64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static void check(natsStatus status, const char *what) {
  if (status == NATS_OK) return;
  fprintf(stderr, "least-publisher: %s: %s\n", what, natsStatus_GetText(status));
  exit(1);
}

static void answered(natsConnection *connection, natsSubscription *subscription, natsMsg *message, void *closure) {
  (void)connection, (void)subscription, (void)closure;
  struct subject *subject = &subjects[strtoul(strrchr(natsMsg_GetSubject(message), '.') + 1, NULL, 10)];
  // {"stream":"least","seq":12}
  const char *found = strstr(natsMsg_GetData(message), "\"seq\":");
  if (found && !strstr(natsMsg_GetData(message), "\"error\"")) {
    subject->sequence = strtoull(found + 6, NULL, 10);
    unsigned place = atomic_fetch_add(&acknowledged, 1);
    if (place < delay_limit) delays[place] = (float)(now() - subject->due) / 1e6f;
  } else {
    atomic_fetch_add(&failed, 1);
  }
  natsMsg_Destroy(message);
  atomic_store_explicit(&subject->is_waiting, false, memory_order_release);
}

static const char *const headers[][2] = {
  {"Stream-ID", "5b0c61d2a1e94f0c8d7b6a5948372615"},
  {"Stream-Offset", "1234567"},
  {"Upload-Offset", "1234567"},
  {"Sluice-CRC32", "9ae0daaf"},
  {"Sluice-Publisher", "5b0c61d2a1e94f0c8d7b6a5948372615-12.345"},
  {"Sluice-Number", "1234"},
  {"Sluice-Chain", "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"},
};

static void publish(natsConnection *connection, struct subject *subject, const char *payload, int length, int64_t due,
                    bool has_headers) {
  natsMsg *message = NULL;
  check(natsMsg_Create(&message, subject->name, subject->reply, payload, length), "a message");
  char text[24];
  snprintf(text, sizeof text, "%llu", (unsigned long long)subject->sequence);
  if (has_headers) {
    for (size_t number = 0; number < sizeof headers / sizeof *headers; number++)
      check(natsMsgHeader_Add(message, headers[number][0], headers[number][1]), "a header");
  }
  check(natsMsgHeader_Add(message, "Nats-Expected-Last-Subject-Sequence", text), "a header");
  subject->due = due;
  atomic_store_explicit(&subject->is_waiting, true, memory_order_release);
  check(natsConnection_PublishMsg(connection, message), "publish");
  natsMsg_Destroy(message);
}

static int compare(const void *one, const void *other) {
  float first = *(const float *)one, second = *(const float *)other;
  return (first > second) - (first < second);
}

int main(int count, char **words) {
  if (count < 7) {
    fprintf(stderr, "least-publisher URL REPLICAS STREAMS BYTES PERIOD_MS SECONDS [--headers]\n");
    return 64;
  }
  int replicas = atoi(words[2]), length = atoi(words[4]);
  subject_count = (unsigned)atoi(words[3]);
  int64_t period = (int64_t)(atof(words[5]) * 1e6);
  double seconds = atof(words[6]);
  bool has_headers = count > 7 && !strcmp(words[7], "--headers");

  natsOptions *options = NULL;
  natsConnection *connection = NULL;
  check(natsOptions_Create(&options), "options");
  check(natsOptions_SetURL(options, words[1]), words[1]);
  check(natsOptions_SetSendAsap(options, true), "options");
  check(natsConnection_Connect(&connection, options), words[1]);
  jsCtx *context = NULL;
  check(natsConnection_JetStream(&context, connection, NULL), "JetStream");
  jsStreamConfig configuration;
  jsStreamConfig_Init(&configuration);
  const char *filter[] = {STREAM ".*"};
  configuration.Name = STREAM;
  configuration.Subjects = filter;
  configuration.SubjectsLen = 1;
  configuration.Storage = js_FileStorage;
  configuration.Discard = js_DiscardNew;
  configuration.Replicas = replicas;
  check(js_AddStream(NULL, context, &configuration, NULL, NULL), "the stream");

  subjects = calloc(subject_count, sizeof *subjects);
  delay_limit = (unsigned)(subject_count * (seconds * 1e9 / (double)period + 2));
  delays = calloc(delay_limit, sizeof *delays);
  char *payload = calloc(1, (size_t)length);
  if (!subjects || !delays || !payload) return 1;
  for (unsigned number = 0; number < subject_count; number++) {
    snprintf(subjects[number].name, sizeof subjects[number].name, STREAM ".%u", number);
    snprintf(subjects[number].reply, sizeof subjects[number].reply, INBOX ".%u", number);
  }
  natsSubscription *subscription = NULL;
  check(natsConnection_Subscribe(&subscription, connection, INBOX ".*", answered, NULL), "the answers");
  check(natsSubscription_SetPendingLimits(subscription, -1, -1), "the answers");

  // The due times are spread evenly over each period. One pass per millisecond publishes the due messages.
  int64_t start = now(), end = start + (int64_t)(seconds * 1e9);
  unsigned sent = 0, late = 0;
  uint64_t next = 0;  // the number of the next message of the schedule, in the order of due times
  for (int64_t time = start; time < end; time = now()) {
    uint64_t until = (uint64_t)((double)(time - start) / (double)period * subject_count) + 1;
    for (; next < until; next++) {
      struct subject *subject = &subjects[next % subject_count];
      int64_t due = start + (int64_t)((double)next / subject_count * (double)period);
      if (atomic_load_explicit(&subject->is_waiting, memory_order_acquire)) {
        late++;
        continue;
      }
      publish(connection, subject, payload, length, due, has_headers);
      sent++;
    }
    struct timespec pause = {0, 1000000};
    nanosleep(&pause, NULL);
  }
  for (int waits = 0; waits < 5000 && atomic_load(&acknowledged) + atomic_load(&failed) < sent; waits++)
    nats_Sleep(1);
  unsigned total = atomic_load(&acknowledged);
  unsigned kept = total < delay_limit ? total : delay_limit;
  qsort(delays, kept, sizeof *delays, compare);
  float median = kept ? delays[kept / 2] : 0, high = kept ? delays[(unsigned)(kept * 0.99)] : 0;
  printf("{\"sent\": %u, \"acknowledged\": %u, \"not_sent\": %u, \"acknowledged_ms\": {\"p50\": %.3f, \"p99\": %.3f, "
         "\"max\": %.3f}}\n",
         sent, total, late, median, high, kept ? delays[kept - 1] : 0);
  js_DeleteStream(context, STREAM, NULL, NULL);
  jsCtx_Destroy(context);
  natsSubscription_Destroy(subscription);
  natsConnection_Destroy(connection);
  natsOptions_Destroy(options);
  return total == sent ? 0 : 1;
}
