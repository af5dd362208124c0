#include "options.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum {
  // The number of streams per source address. There are more ports, but the search for the last free ones takes long.
  PORTS_OF_AN_ADDRESS = 10000,
  // libcurl rejects a response whose heads, including those of interim responses, are longer than this in total.
  LONGEST_HEADS = 300 * 1024,
  // More than the size of an acknowledgement's head (status line, version, offset).
  ACKNOWLEDGEMENT = 128,
};

static const char usage[] =
    "libcurl-load URL [options]\n"
    "Runs live streams with libcurl alone, as resumable uploads, for comparison with\n"
    "`sluice load`. Prints a JSON object.\n\n"
    "  --streams N    number of streams (default: 1000)\n"
    "  --bytes N      bytes per message (default: 1000)\n"
    "  --every MS     period of the messages of a stream (default: 1000)\n"
    "  --duration S   duration of the measurement (default: 10)\n"
    "  --ramp S       time in which the streams begin (default: 1 per 1000 streams)\n"
    "  --tick MS      messages that are due in one tick are sent together (default: 1)\n"
    "  --plain        send one endless PUT per stream to URL-NUMBER, for servers\n"
    "                 without resumable uploads\n"
    "  --addresses N  number of source addresses, from 127.0.0.2 on\n"
    "                 (default: 1 per 10,000 streams)\n";

static double number(const char *text, const char *option, double least, double most) {
  char *end;
  double value = strtod(text, &end);
  if (end == text || *end != '\0' || !(value >= least && value <= most)) {
    fprintf(stderr, "libcurl-load: --%s must be a number from %g to %g, not \"%s\"\n", option, least, most, text);
    exit(64);
  }
  return value;
}

struct options options_parse(int count, char **words) {
  static const struct option known[] = {
      {"streams", required_argument, NULL, 's'}, {"bytes", required_argument, NULL, 'b'},
      {"every", required_argument, NULL, 'e'},   {"duration", required_argument, NULL, 'd'},
      {"ramp", required_argument, NULL, 'r'},    {"tick", required_argument, NULL, 't'},
      {"addresses", required_argument, NULL, 'a'}, {"plain", no_argument, NULL, 'p'},
      {"help", no_argument, NULL, 'h'},          {0},
  };
  struct options options = {
      .streams = 1000, .message = 1000, .period = 1000000000, .duration = 10000000000, .ramp = -1, .tick = 1000000};
  int letter, index = 0;
  while ((letter = getopt_long(count, words, "h", known, &index)) != -1) {
    const char *name = known[index].name;
    switch (letter) {
    case 's': options.streams = (unsigned)number(optarg, name, 1, 60000); break;
    case 'b': options.message = (unsigned)number(optarg, name, 1, 1 << 20); break;
    case 'e': options.period = llround(number(optarg, name, 1, 60000) * 1e6); break;
    case 'd': options.duration = llround(number(optarg, name, 0.1, 3600) * 1e9); break;
    case 'r': options.ramp = llround(number(optarg, name, 0, 3600) * 1e9); break;
    case 't': options.tick = llround(number(optarg, name, 0.01, 1000) * 1e6); break;
    case 'a': options.addresses = (unsigned)number(optarg, name, 1, 200); break;
    case 'p': options.is_plain = true; break;
    case 'h': fputs(usage, stdout); exit(0);
    default: fputs(usage, stderr); exit(64);
    }
  }
  if (optind != count - 1) {
    fputs(usage, stderr);
    exit(64);
  }
  options.url = words[optind];
  if (options.ramp < 0) options.ramp = (int64_t)options.streams * 1000000;
  if (options.addresses == 0) options.addresses = 1 + (options.streams - 1) / PORTS_OF_AN_ADDRESS;
  if (!options.is_plain && (options.duration + options.ramp) / options.period > LONGEST_HEADS / ACKNOWLEDGEMENT) {
    fprintf(stderr,
            "libcurl-load: libcurl accepts %d bytes of heads per request, which is %d acknowledgements. "
            "Use a shorter --duration or a longer --every.\n",
            LONGEST_HEADS, LONGEST_HEADS / ACKNOWLEDGEMENT);
    exit(64);
  }
  return options;
}
