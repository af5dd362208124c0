#include "generator.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum {
  EVENTS_AT_ONCE = 512,
  SECOND = 1000000000,
  // The time limit for the last acknowledgements, and for the ends of the requests.
  PATIENCE_SECONDS = 60,
  ERRORS_SHOWN = 5,
};

// The events of a descriptor that libcurl requests, and those that epoll watches (EPOLLIN, EPOLLOUT).
struct watch {
  uint8_t wanted, watched;
  bool is_known, is_changed;
};

static int64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * SECOND + time.tv_nsec;
}

static struct usage usage(void) {
  struct rusage spent;
  getrusage(RUSAGE_SELF, &spent);
  unsigned long long pages = 0, resident = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  if (!file || fscanf(file, "%llu %llu", &pages, &resident) != 2) abort();  // every Linux has it (proc(5))
  fclose(file);
  return (struct usage){
      .user = (double)spent.ru_utime.tv_sec + (double)spent.ru_utime.tv_usec / 1e6,
      .system = (double)spent.ru_stime.tv_sec + (double)spent.ru_stime.tv_usec / 1e6,
      .resident = resident * (uint64_t)sysconf(_SC_PAGESIZE),
  };
}

// MARK: libcurl's callbacks

static int watch_socket(CURL *easy, curl_socket_t socket, int what, void *context, void *unused) {
  (void)unused;
  struct generator *generator = context;
  struct watch *watch = &generator->watches[socket];
  if (what == CURL_POLL_REMOVE) {
    // Do this now, because libcurl closes the socket next, and may reuse its number within this call.
    if (watch->is_known) epoll_ctl(generator->epoll, EPOLL_CTL_DEL, socket, NULL);
    watch->is_known = false;
    watch->wanted = 0;
    return 0;
  }
  struct stream *stream;
  curl_easy_getinfo(easy, CURLINFO_PRIVATE, &stream);
  stream->socket = socket;
  watch->wanted = (uint8_t)((what & CURL_POLL_IN ? EPOLLIN : 0) | (what & CURL_POLL_OUT ? EPOLLOUT : 0));
  if (!watch->is_changed) generator->changed[generator->changed_count++] = socket;
  watch->is_changed = true;
  return 0;
}

static int set_timer(CURLM *multi, long milliseconds, void *context) {
  (void)multi;
  struct generator *generator = context;
  generator->curl_deadline =
      milliseconds < 0 ? INT64_MAX : milliseconds == 0 ? 0 : now() + (int64_t)milliseconds * 1000000;
  return 0;
}

// MARK: Events of the streams

void generator_is_live(struct generator *generator) {
  generator->live += 1;
  if (generator->live + generator->failed == generator->options.streams) generator->settled = now();
}

void generator_is_over(struct generator *generator) { generator->over += 1; }

void generator_failed(struct generator *generator, const struct stream *stream, const char *what, const char *why) {
  if (++generator->failed > ERRORS_SHOWN) return;
  fprintf(stderr, "libcurl-load: stream %u, %s: %s\n", (unsigned)(stream - generator->streams), what, why);
}

static int64_t due_time(const struct generator *generator, uint64_t slot) {
  return generator->epoch + (int64_t)(slot * (uint64_t)generator->options.period / generator->options.streams);
}

static int64_t due_time_of(const struct stream *stream, uint32_t message) {
  const struct generator *generator = stream->generator;
  uint64_t round = (uint64_t)stream->first_round + message;
  return due_time(generator, round * generator->options.streams + (uint64_t)(stream - generator->streams));
}

static bool is_measured(const struct generator *generator, int64_t due) {
  return due >= generator->window_from && due < generator->window_to;
}

void generator_sent(struct stream *stream, uint32_t message) {
  struct generator *generator = stream->generator;
  int64_t due = due_time_of(stream, message);
  if (!is_measured(generator, due)) return;
  generator->window_sent += 1;
  histogram_record(&generator->lateness, now() - due);
}

void generator_acknowledged(struct stream *stream, uint32_t message) {
  struct generator *generator = stream->generator;
  int64_t due = due_time_of(stream, message);
  if (!is_measured(generator, due)) return;
  generator->window_acknowledged += 1;
  histogram_record(&generator->acknowledged, now() - due);
}

void generator_drive(struct generator *generator, int socket, int readiness) {
  int running;
  curl_multi_socket_action(generator->multi, socket, readiness, &running);
}

// MARK: The loop

static void open_generator(struct generator *generator) {
  const struct options *options = &generator->options;
  struct rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  // Standard input, output and error, epoll, the timer, and what libcurl and the C library keep open.
  rlim_t needed = options->streams + 16;
  if (limit.rlim_cur < needed) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  if (limit.rlim_cur < needed) {
    fprintf(stderr, "libcurl-load: %u streams need %llu descriptors, and a process may have %llu: ulimit -n %llu\n",
            options->streams, (unsigned long long)needed, (unsigned long long)limit.rlim_cur,
            (unsigned long long)needed);
    exit(74);
  }
  curl_global_init(CURL_GLOBAL_DEFAULT);
  generator->multi = curl_multi_init();
  generator->streams = calloc(options->streams, sizeof *generator->streams);
  generator->watches = calloc(limit.rlim_cur, sizeof *generator->watches);
  generator->changed = calloc(limit.rlim_cur, sizeof *generator->changed);
  generator->epoll = epoll_create1(EPOLL_CLOEXEC);
  generator->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  if (!generator->multi || !generator->streams || !generator->watches || !generator->changed) abort();
  struct epoll_event interest = {.events = EPOLLIN, .data.fd = generator->timer};
  if (generator->epoll < 0 || generator->timer < 0 ||
      epoll_ctl(generator->epoll, EPOLL_CTL_ADD, generator->timer, &interest) != 0) {
    perror("libcurl-load: opening epoll and timerfd");
    exit(74);
  }
  curl_multi_setopt(generator->multi, CURLMOPT_SOCKETFUNCTION, watch_socket);
  curl_multi_setopt(generator->multi, CURLMOPT_SOCKETDATA, generator);
  curl_multi_setopt(generator->multi, CURLMOPT_TIMERFUNCTION, set_timer);
  curl_multi_setopt(generator->multi, CURLMOPT_TIMERDATA, generator);
  // Between two requests of a stream, its connection is idle. libcurl must not close it to stay within a limit.
  curl_multi_setopt(generator->multi, CURLMOPT_MAXCONNECTS, (long)options->streams + 1);
  static const char *const creation[] = {"Expect:", "Content-Type: application/octet-stream",
                                         "Upload-Draft-Interop-Version: 8", "Upload-Complete: ?0"};
  for (int i = 0; i < 4; i++) generator->creation_fields = curl_slist_append(generator->creation_fields, creation[i]);
  static const char *const appending[] = {"Expect:", "Upload-Draft-Interop-Version: 8", "Upload-Offset: 0",
                                          "Upload-Complete: ?0", "Content-Type: application/partial-upload",
                                          "Incremental: ?1"};
  for (int i = 0; i < 6; i++) generator->append_fields = curl_slist_append(generator->append_fields, appending[i]);
  generator->plain_fields = curl_slist_append(NULL, "Expect:");
  for (unsigned i = 0; i < options->streams; i++) {
    generator->streams[i] = (struct stream){.generator = generator, .socket = -1};
  }
  generator->curl_deadline = INT64_MAX;
  generator->window_from = generator->window_to = INT64_MAX;
}

static int64_t begin_time(const struct generator *generator, unsigned number) {
  return generator->epoch + generator->options.ramp / generator->options.streams * number;
}

// Begins the streams, and adds the messages that are due.
static void follow_schedule(struct generator *generator, int64_t time) {
  unsigned streams = generator->options.streams;
  for (; generator->begun < streams && begin_time(generator, generator->begun) <= time; generator->begun++) {
    stream_begin(&generator->streams[generator->begun]);
  }
  for (int64_t due; (due = due_time(generator, generator->next_slot)) <= time; generator->next_slot++) {
    if (due >= generator->window_to) break;
    struct stream *stream = &generator->streams[generator->next_slot % streams];
    if (stream->state != STREAM_LIVE) continue;
    if (stream->due == 0) stream->first_round = (uint32_t)(generator->next_slot / streams);
    if (is_measured(generator, due)) generator->window_due += 1;
    stream_push(stream);
  }
}

// Opens the window when all streams have been live for two messages, and closes it at the end of its duration.
static void measure(struct generator *generator, int64_t time) {
  const struct options *options = &generator->options;
  if (generator->window_from == INT64_MAX && generator->settled != 0) {
    int64_t warm = 2 * options->period > SECOND ? 2 * options->period : SECOND;
    if (time >= generator->settled + warm) {
      generator->usage_from = usage();
      generator->window_from = due_time(generator, generator->next_slot);
      generator->window_to = generator->window_from + options->duration;
    }
  }
  if (time >= generator->window_to && generator->usage_to.resident == 0) generator->usage_to = usage();
}

static void set_alarm(const struct generator *generator) {
  int64_t next = INT64_MAX;
  if (generator->begun < generator->options.streams) next = begin_time(generator, generator->begun);
  int64_t due = due_time(generator, generator->next_slot);
  if (due >= generator->window_to) due = generator->window_to;
  if (due < next && generator->usage_to.resident == 0) next = due;
  if (next == INT64_MAX) return;
  // Use the end of the tick that contains it.
  int64_t tick = generator->options.tick;
  next += tick - 1 - (next - generator->epoch + tick - 1) % tick;
  struct itimerspec alarm = {.it_value = {.tv_sec = next / SECOND, .tv_nsec = next % SECOND}};
  timerfd_settime(generator->timer, TFD_TIMER_ABSTIME, &alarm, NULL);
}

// Performs all requests of libcurl since its last call.
static void settle(struct generator *generator) {
  int running, left;
  do {
    while (generator->curl_deadline <= now()) {
      generator->curl_deadline = INT64_MAX;
      curl_multi_socket_action(generator->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    }
    for (CURLMsg *message; (message = curl_multi_info_read(generator->multi, &left));) {
      struct stream *stream;
      curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &stream);
      if (message->msg == CURLMSG_DONE) stream_request_ended(stream, message->data.result);
    }
  } while (generator->curl_deadline == 0);
  // Do this last, because libcurl requests "writable" and withdraws it within one message.
  for (unsigned i = 0; i < generator->changed_count; i++) {
    int socket = generator->changed[i];
    struct watch *watch = &generator->watches[socket];
    watch->is_changed = false;
    if (watch->wanted == 0 || (watch->is_known && watch->wanted == watch->watched)) continue;
    struct epoll_event interest = {.events = watch->wanted, .data.fd = socket};
    epoll_ctl(generator->epoll, watch->is_known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, socket, &interest);
    watch->is_known = true;
    watch->watched = watch->wanted;
  }
  generator->changed_count = 0;
}

static void turn(struct generator *generator, int64_t deadline) {
  struct epoll_event events[EVENTS_AT_ONCE];
  int64_t until = generator->curl_deadline < deadline ? generator->curl_deadline : deadline;
  int64_t wait = (until - now() + 999999) / 1000000;
  int count = epoll_wait(generator->epoll, events, EVENTS_AT_ONCE, wait < 0 ? 0 : wait > 1000 ? 1000 : (int)wait);
  if (count < 0 && errno != EINTR) abort();  // impossible, because the descriptor and the array are valid
  bool is_time = false;
  for (int i = 0; i < count; i++) {
    if (events[i].data.fd == generator->timer) {
      uint64_t expirations;
      is_time = read(generator->timer, &expirations, sizeof expirations) > 0;
      continue;
    }
    uint32_t ready = events[i].events;
    generator_drive(generator, events[i].data.fd,
                    (ready & (EPOLLIN | EPOLLHUP) ? CURL_CSELECT_IN : 0) | (ready & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
                        (ready & EPOLLERR ? CURL_CSELECT_ERR : 0));
  }
  if (is_time) {
    measure(generator, now());
    follow_schedule(generator, now());
    measure(generator, now());
    set_alarm(generator);
  }
  settle(generator);
}

bool generator_run(struct generator *generator) {
  open_generator(generator);
  generator->usage_before = usage();
  generator->epoch = now();
  set_alarm(generator);
  unsigned streams = generator->options.streams;
  while (generator->usage_to.resident == 0 && generator->over < streams) turn(generator, INT64_MAX);
  int64_t deadline = now() + (int64_t)PATIENCE_SECONDS * SECOND;
  bool is_plain = generator->options.is_plain;
  while (!is_plain && generator->window_acknowledged < generator->window_due && now() < deadline) {
    turn(generator, deadline);
  }
  for (unsigned i = 0; i < streams; i++) stream_end(&generator->streams[i]);
  deadline = now() + (int64_t)PATIENCE_SECONDS * SECOND;
  settle(generator);
  while (generator->over < streams && now() < deadline) turn(generator, deadline);
  return generator->failed == 0 && generator->over == streams &&
         (is_plain ? generator->window_sent : generator->window_acknowledged) == generator->window_due;
}
