// The neutral judge of load testers. It receives request bodies on many connections, discards them, and reports whether
// the bytes of each connection arrived at the claimed rate in a window of time.
//
//   rate-receiver PORT [ADDRESS]
//
// ADDRESS is a loopback address (default: 127.0.0.1). A destination has 28,232 local ports, and a process 20,000
// descriptors, so tens of thousands of streams need several receivers.
//
// It reads orders from standard input, one per line, and prints answers as JSON lines to standard output:
//
//   open          begins a window. Its streams are the requests that are being received now.
//   close RATE MS ends the window. A stream is held if it existed throughout the window and its bytes arrived at RATE
//                 bytes per second within 10 %. It is live if it was also never silent for more than MS milliseconds.
//
// If a stream arrives in bursts, the limits of the window must not affect its rate. So its rate is measured from the
// beginning of its first burst in the window to the beginning of its last.
//
// It also ends at the end of standard input.

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "framing.h"

enum {
  EVENTS_AT_ONCE = 512,
  BUFFER = 128 * 1024,
  BACKLOG = 16384,
  // Bytes after a silence of this many nanoseconds belong to another burst.
  PAUSE = 20000000,
};

struct burst {
  int64_t begun;
  uint64_t before;  // bytes that arrived earlier in the window
};

struct connection {
  struct framing framing;
  uint64_t bytes;    // of bodies, in the window
  int64_t last;      // the last arrival, or the beginning of the window
  int64_t silence;   // the longest in the window, ns
  struct burst first_burst, last_burst;
  bool is_open;
  bool is_watched;   // a request that was being received when the window began, and still is
};

static struct connection *connections;
static int highest, epoll_descriptor;
static unsigned open_count, requests_in_window;
static int64_t window_from;

static int64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static void forget(int socket) {
  free(connections[socket].framing.head);
  connections[socket] = (struct connection){0};
  open_count -= 1;
  close(socket);
}

static void note(struct connection *connection, size_t count, int64_t time) {
  int64_t silence = time - connection->last;
  if (silence > connection->silence) connection->silence = silence;
  if (silence > PAUSE) {
    connection->last_burst = (struct burst){time, connection->bytes};
    if (connection->first_burst.begun == 0) connection->first_burst = connection->last_burst;
  }
  connection->last = time;
  connection->bytes += count;
}

// Bytes per second, of the whole window unless the stream arrived in bursts up to the end of the window.
static double rate_of(const struct connection *connection, int64_t time) {
  const struct burst *first = &connection->first_burst, *last = &connection->last_burst;
  bool has_stopped = time - connection->last > 2 * connection->silence;
  if (has_stopped || last->begun - first->begun < (time - window_from) / 3) {
    return (double)connection->bytes * 1e9 / (double)(time - window_from);
  }
  return (double)(last->before - first->before) * 1e9 / (double)(last->begun - first->begun);
}

static void say(int socket, const char *text) {
  // If the socket's buffer has no space for a line, the client does not read. The line is dropped.
  if (send(socket, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) return;
}

static void receive(int socket) {
  static char buffer[BUFFER];
  struct connection *connection = &connections[socket];
  ssize_t count = recv(socket, buffer, sizeof buffer, 0);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (count <= 0) return forget(socket);
  int64_t time = now();
  for (size_t at = 0; at < (size_t)count || connection->framing.state == FRAMING_LENGTH;) {
    size_t taken, body;
    enum framing_event event = framing_feed(&connection->framing, buffer + at, (size_t)count - at, &taken, &body);
    at += taken;
    if (body > 0) note(connection, body, time);
    if (event == FRAMING_BAD) return forget(socket);
    if (event == FRAMING_BEGAN) {
      requests_in_window += 1;
      if (connection->framing.wants_continue) say(socket, "HTTP/1.1 100 Continue\r\n\r\n");
    } else if (event == FRAMING_ENDED) {
      connection->is_watched = false;
      say(socket, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    } else if (at == (size_t)count) {
      break;
    }
  }
}

static void accept_all(int listener) {
  for (int socket; (socket = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0;) {
    struct epoll_event interest = {.events = EPOLLIN, .data.fd = socket};
    epoll_ctl(epoll_descriptor, EPOLL_CTL_ADD, socket, &interest);
    connections[socket] = (struct connection){.is_open = true};
    if (socket > highest) highest = socket;
    open_count += 1;
  }
}

static void open_window(void) {
  window_from = now();
  requests_in_window = 0;
  unsigned streams = 0;
  for (int socket = 0; socket <= highest; socket++) {
    struct connection *connection = &connections[socket];
    connection->is_watched = connection->is_open && connection->framing.state != FRAMING_HEAD;
    streams += connection->is_watched;
    connection->bytes = 0;
    connection->silence = 0;
    connection->first_burst = connection->last_burst = (struct burst){0};
    connection->last = window_from;
  }
  printf("{\"event\": \"opened\", \"streams\": %u, \"connections\": %u}\n", streams, open_count);
}

static int ascending(const void *left, const void *right) {
  double difference = *(const double *)left - *(const double *)right;
  return difference < 0 ? -1 : difference > 0;
}

static void print_spread(const char *name, double *values, size_t count) {
  qsort(values, count, sizeof *values, ascending);
  static const double shares[] = {0, 0.01, 0.5, 0.99, 1};
  static const char *const names[] = {"min", "p1", "p50", "p99", "max"};
  printf(", \"%s\": {", name);
  for (int i = 0; i < 5; i++) {
    double value = count ? values[(size_t)llround(shares[i] * (double)(count - 1))] : 0;
    printf("%s\"%s\": %.1f", i ? ", " : "", names[i], value);
  }
  printf("}");
}

static void close_window(double rate, double silence_ms) {
  int64_t time = now();
  double seconds = (double)(time - window_from) / 1e9;
  size_t room = (size_t)highest + 1;
  double *rates = malloc(room * sizeof *rates), *silences = malloc(room * sizeof *silences);
  if (!rates || !silences) abort();
  size_t streams = 0, held = 0, live = 0;
  double bytes = 0;
  for (int socket = 0; socket <= highest; socket++) {
    struct connection *connection = &connections[socket];
    bytes += (double)connection->bytes;
    if (!connection->is_watched) continue;
    rates[streams] = rate_of(connection, time);
    int64_t silence = time - connection->last;
    silences[streams] = (double)(silence > connection->silence ? silence : connection->silence) / 1e6;
    bool is_held = fabs(rates[streams] - rate) <= rate / 10;
    held += is_held;
    live += is_held && silences[streams] <= silence_ms;
    streams += 1;
  }
  printf("{\"event\": \"closed\", \"seconds\": %.3f, \"streams\": %zu, \"held\": %zu, \"live\": %zu, \"bytes\": %.0f, "
         "\"requests\": %u, \"connections\": %u",
         seconds, streams, held, live, bytes, requests_in_window, open_count);
  print_spread("stream_bytes_per_second", rates, streams);
  print_spread("longest_silence_ms", silences, streams);
  printf("}\n");
  free(rates);
  free(silences);
}

// Returns false at the end of the orders.
static bool obey(void) {
  static char line[256];
  if (!fgets(line, sizeof line, stdin)) return false;
  double rate, silence_ms;
  if (strcmp(line, "open\n") == 0) open_window();
  else if (sscanf(line, "close %lf %lf", &rate, &silence_ms) == 2) close_window(rate, silence_ms);
  else fprintf(stderr, "rate-receiver: unknown order: %s", line);
  fflush(stdout);
  return true;
}

int main(int count, char **words) {
  if (count != 2 && count != 3) {
    fputs("rate-receiver PORT [ADDRESS]\n", stderr);
    return 64;
  }
  struct rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  connections = calloc(limit.rlim_cur, sizeof *connections);
  epoll_descriptor = epoll_create1(EPOLL_CLOEXEC);
  int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), yes = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(words[1]))};
  if (inet_pton(AF_INET, count == 3 ? words[2] : "127.0.0.1", &address.sin_addr) != 1) {
    fprintf(stderr, "rate-receiver: invalid address: %s\n", words[2]);
    return 64;
  }
  struct epoll_event on_listener = {.events = EPOLLIN, .data.fd = listener};
  struct epoll_event on_orders = {.events = EPOLLIN, .data.fd = STDIN_FILENO};
  if (!connections || bind(listener, (struct sockaddr *)&address, sizeof address) != 0 ||
      listen(listener, BACKLOG) != 0 ||
      epoll_ctl(epoll_descriptor, EPOLL_CTL_ADD, listener, &on_listener) != 0 ||
      epoll_ctl(epoll_descriptor, EPOLL_CTL_ADD, STDIN_FILENO, &on_orders) != 0) {
    perror("rate-receiver");
    return 74;
  }
  // Read one line at a time, because epoll does not see bytes that stdio has read ahead.
  setvbuf(stdin, NULL, _IONBF, 0);
  printf("{\"event\": \"listening\", \"ns\": %lld}\n", (long long)now());
  fflush(stdout);
  for (;;) {
    struct epoll_event events[EVENTS_AT_ONCE];
    int ready = epoll_wait(epoll_descriptor, events, EVENTS_AT_ONCE, -1);
    for (int i = 0; i < ready; i++) {
      if (events[i].data.fd == listener) accept_all(listener);
      else if (events[i].data.fd != STDIN_FILENO) receive(events[i].data.fd);
      else if (!obey()) return 0;
    }
  }
}
