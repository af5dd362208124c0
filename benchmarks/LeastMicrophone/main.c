// The minimum cost of a microphone's stream with the design of Sluice. One thread captures from ALSA into a ring, and
// another sends the ring's bytes with libcurl as one chunked PUT. There are no retries, acknowledgements or reports.
// `make bench-live` compares `sluice mic` with it.
//
//     least-microphone URL DEVICE PERIOD_MICROSECONDS RATE CHANNELS

#include <alsa/asoundlib.h>
#include <curl/curl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { RING = 1 << 20 };  // bytes, a power of two

static char ring[RING];
// The numbers of bytes written and read since the start. One thread changes each number.
static _Atomic uint64_t written, taken;
// The sender has found the ring empty, and waits for `data`.
static atomic_bool is_waiting;
static atomic_bool has_ended;
static int data;
static snd_pcm_t *device;
static size_t frame_bytes;
static snd_pcm_uframes_t period;

static void fail(const char *what, const char *why) {
  fprintf(stderr, "least-microphone: %s: %s\n", what, why);
  exit(1);
}

static int checked(int result, const char *call) {
  if (result < 0) fail(call, snd_strerror(result));
  return result;
}

static void wake_sender(void) {
  if (atomic_exchange(&is_waiting, false)) eventfd_write(data, 1);
}

static void open_device(const char *name, unsigned period_microseconds, unsigned rate, unsigned channels) {
  snd_pcm_hw_params_t *hardware;
  snd_pcm_hw_params_alloca(&hardware);
  unsigned buffer_microseconds = 500000;
  checked(snd_pcm_open(&device, name, SND_PCM_STREAM_CAPTURE, 0), "snd_pcm_open");
  checked(snd_pcm_hw_params_any(device, hardware), "snd_pcm_hw_params_any");
  checked(snd_pcm_hw_params_set_access(device, hardware, SND_PCM_ACCESS_RW_INTERLEAVED), "set_access");
  checked(snd_pcm_hw_params_set_format(device, hardware, SND_PCM_FORMAT_S16_LE), "set_format");
  checked(snd_pcm_hw_params_set_channels(device, hardware, channels), "set_channels");
  checked(snd_pcm_hw_params_set_rate(device, hardware, rate, 0), "set_rate");
  checked(snd_pcm_hw_params_set_period_time_near(device, hardware, &period_microseconds, NULL), "set_period_time");
  checked(snd_pcm_hw_params_set_buffer_time_near(device, hardware, &buffer_microseconds, NULL), "set_buffer_time");
  checked(snd_pcm_hw_params(device, hardware), "snd_pcm_hw_params");
  checked(snd_pcm_hw_params_get_period_size(hardware, &period, NULL), "get_period_size");
  frame_bytes = 2 * channels;
}

static void *capture(void *unused) {
  (void)unused;
  char *frames = malloc(period * frame_bytes);
  if (!frames) abort();
  while (!has_ended) {
    snd_pcm_sframes_t count = snd_pcm_readi(device, frames, period);
    if (count < 0) {
      checked(snd_pcm_recover(device, (int)count, 1), "snd_pcm_readi");
      continue;
    }
    size_t size = (size_t)count * frame_bytes;
    uint64_t end = atomic_load_explicit(&written, memory_order_relaxed);
    if (end + size - atomic_load_explicit(&taken, memory_order_acquire) > RING) fail("ring", "the network is too slow");
    size_t place = end % RING, first = size < RING - place ? size : RING - place;
    memcpy(ring + place, frames, first);
    memcpy(ring, frames + first, size - first);
    atomic_store(&written, end + size);
    wake_sender();
  }
  return NULL;
}

static size_t read_body(char *into, size_t size, size_t count, void *unused) {
  (void)unused;
  uint64_t begin = atomic_load_explicit(&taken, memory_order_relaxed), end = atomic_load(&written);
  if (begin == end) {
    if (has_ended) return 0;
    atomic_store(&is_waiting, true);
    // A period that arrived before `is_waiting` was set has not woken this thread.
    if ((end = atomic_load(&written)) == begin && !has_ended) return CURL_READFUNC_PAUSE;
    atomic_store(&is_waiting, false);
    if (begin == end) return 0;
  }
  size_t most = size * count, place = begin % RING;
  if (most > end - begin) most = (size_t)(end - begin);
  size_t first = most < RING - place ? most : RING - place;
  memcpy(into, ring + place, first);
  memcpy(into + first, ring, most - first);
  atomic_store_explicit(&taken, begin + most, memory_order_release);
  return most;
}

static size_t discard(char *bytes, size_t size, size_t count, void *unused) {
  (void)bytes, (void)unused;
  return size * count;
}

static void end(int signal) {
  (void)signal;
  has_ended = true;
  // Wake the sender even if it does not wait, because an additional call of `read_body` does no harm.
  eventfd_write(data, 1);
}

int main(int count, char **arguments) {
  if (count != 6) fail("usage", "least-microphone URL DEVICE PERIOD_MICROSECONDS RATE CHANNELS");
  if ((data = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) < 0) fail("eventfd", strerror(errno));
  signal(SIGINT, end);
  signal(SIGTERM, end);
  curl_global_init(CURL_GLOBAL_DEFAULT);
  CURLM *multi = curl_multi_init();
  CURL *easy = curl_easy_init();
  struct curl_slist *fields = curl_slist_append(NULL, "Expect:");
  fields = curl_slist_append(fields, "Transfer-Encoding: chunked");
  if (!multi || !easy || !fields) abort();
  curl_easy_setopt(easy, CURLOPT_URL, arguments[1]);
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(easy, CURLOPT_UPLOAD, 1L);
  curl_easy_setopt(easy, CURLOPT_HTTPHEADER, fields);
  curl_easy_setopt(easy, CURLOPT_READFUNCTION, read_body);
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, discard);
  curl_multi_add_handle(multi, easy);

  open_device(arguments[2], (unsigned)atoi(arguments[3]), (unsigned)atoi(arguments[4]), (unsigned)atoi(arguments[5]));
  pthread_t thread;
  if (pthread_create(&thread, NULL, capture, NULL) != 0) abort();

  struct curl_waitfd waited = {.fd = data, .events = CURL_WAIT_POLLIN};
  int running = 1;
  while (curl_multi_perform(multi, &running) == CURLM_OK && running) {
    waited.revents = 0;
    curl_multi_poll(multi, &waited, 1, 60000, NULL);
    eventfd_t number;
    if (waited.revents && eventfd_read(data, &number) == 0) curl_easy_pause(easy, CURLPAUSE_CONT);
  }
  has_ended = true;
  pthread_join(thread, NULL);
  int left;
  CURLMsg *message = curl_multi_info_read(multi, &left);
  if (message && message->data.result != CURLE_OK) fail("libcurl", curl_easy_strerror(message->data.result));
  return 0;
}
