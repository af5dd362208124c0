// testmic-control FILE ORDER…: gives a running test microphone its orders from a shell; `show` prints the truth as
// JSON.
#include "testmic_control.h"
#include "testmic_signal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: testmic-control FILE ORDER\n"
    "  show                  what really happened, as JSON\n"
    "  overrun MS            hold the reader until the ring has overflowed by MS milliseconds\n"
    "  overrun-in-read MS    the same in the middle of a read\n"
    "  suspend | resume      ESTRPIPE until resume\n"
    "  refuse-resume | allow-resume   whether snd_pcm_resume helps afterwards\n"
    "  disappear | appear    ENODEV from every call, and from opening\n"
    "  busy | free           EBUSY from opening\n"
    "  spurious              a wake-up with no frames\n"
    "  short FRAMES          the next read gives at most FRAMES\n"
    "  samples FIRST COUNT CHANNELS   what the device gives for these frames with seed 1, S16_LE, to standard output\n";

static void show(const struct testmic_page *page) {
  printf("{\"t0_ns\":%" PRId64 ",\"rate\":%" PRIu32 ",\"next_frame\":%" PRIu64 ",\"frames_delivered\":%" PRIu64
         ",\"frames_lost\":%" PRIu64 ",\"frames_overwritten\":%" PRIu64 ",\"opens\":%" PRIu32 ",\"starts\":%" PRIu32
         ",\"xruns\":%" PRIu32 ",\"orders_pending\":%" PRIu32 ",\"gaps\":[",
         page->t0_ns, page->rate, page->next_frame, page->frames_delivered, page->frames_lost, page->frames_overwritten,
         page->opens, page->starts, page->xruns, testmic_orders_pending(page));
  for (uint32_t i = 0; i < page->gap_count && i < TESTMIC_GAPS; i++)
    printf("%s[%" PRIu64 ",%" PRIu64 "]", i ? "," : "", page->gaps[i].first_frame, page->gaps[i].frames);
  printf("]}\n");
}

static int samples(uint64_t first, uint64_t count, uint32_t channels) {
  static int16_t buffer[4096 * 8];
  for (uint64_t frame = first; frame < first + count;) {
    uint64_t left = first + count - frame, frames = left < 4096 ? left : 4096;
    for (uint64_t i = 0; i < frames; i++)
      for (uint32_t channel = 0; channel < channels; channel++)
        buffer[i * channels + channel] = testmic_sample(1, frame + i, channel);
    if (fwrite(buffer, 2 * channels, frames, stdout) != frames) return 74;
    frame += frames;
  }
  return fflush(stdout) == 0 ? 0 : 74;
}

int main(int argc, char **argv) {
  if (argc < 3) {
    fputs(usage, stderr);
    return 64;
  }
  struct testmic_page *page = testmic_map(argv[1]);
  if (!page) {
    perror(argv[1]);
    return 74;
  }
  const char *order = argv[2];
  uint64_t number = argc > 3 ? strtoull(argv[3], NULL, 10) : 0;
  if (!strcmp(order, "show")) show(page);
  else if (!strcmp(order, "overrun")) testmic_order_overrun(page, number);
  else if (!strcmp(order, "overrun-in-read")) testmic_order_overrun_in_read(page, number);
  else if (!strcmp(order, "suspend")) testmic_set_suspended(page, true);
  else if (!strcmp(order, "resume")) testmic_set_suspended(page, false);
  else if (!strcmp(order, "refuse-resume")) testmic_set_resume_refused(page, true);
  else if (!strcmp(order, "allow-resume")) testmic_set_resume_refused(page, false);
  else if (!strcmp(order, "disappear")) testmic_set_absent(page, true);
  else if (!strcmp(order, "appear")) testmic_set_absent(page, false);
  else if (!strcmp(order, "busy")) testmic_set_busy(page, true);
  else if (!strcmp(order, "free")) testmic_set_busy(page, false);
  else if (!strcmp(order, "spurious")) testmic_order_spurious_wake(page);
  else if (!strcmp(order, "short") && number > 0) testmic_order_short_read(page, (uint32_t)number);
  else if (!strcmp(order, "samples") && argc == 6 && atoi(argv[5]) >= 1 && atoi(argv[5]) <= 8)
    return samples(number, strtoull(argv[4], NULL, 10), (uint32_t)atoi(argv[5]));
  else {
    fputs(usage, stderr);
    return 64;
  }
  return 0;
}
