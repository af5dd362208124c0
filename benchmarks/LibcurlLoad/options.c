#include "options.h"

#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum {
  // A client's ports towards one address of a server: some are left alone, as searching for the last ones takes long.
  PORTS_OF_AN_ADDRESS = 10000,
  // libcurl refuses a response whose heads, interim ones included, are longer than this in total.
  LONGEST_HEADS = 300 * 1024,
  // More than an acknowledgement's head takes (status line, version, offset).
  ACKNOWLEDGEMENT = 128,
};

static const char usage[] =
    "libcurl-load URL [options]\n"
    "Live streams by libcurl alone, as resumable uploads: what `sluice load` is compared with.\n"
    "Prints a JSON object.\n\n"
    "  --streams N    how many (default 1000)\n"
    "  --bytes N      in a message (default 1000)\n"
    "  --every MS     from one message of a stream to its next (default 1000)\n"
    "  --duration S   measured, once all streams are open (default 10)\n"
    "  --ramp S       over which the streams are begun (default: 1 for each thousand)\n"
    "  --tick MS      what becomes due within it goes out together (default 1)\n"
    "  --plain        one PUT without end a stream, to URL-NUMBER: for servers that know no resumable uploads\n"
    "  --addresses N  of 127.0.0.2, 127.0.0.3, … that they come from (default: 1 for each 10,000)\n";

static double number(const char *text, const char *option, double least, double most) {
  char *end;
  double value = strtod(text, &end);
  if (end == text || *end != '\0' || !(value >= least && value <= most)) {
    fprintf(stderr, "libcurl-load: --%s is a number from %g to %g, and not \"%s\"\n", option, least, most, text);
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
            "libcurl-load: libcurl takes %d bytes of heads in a request, which is %d acknowledgements: "
            "make --duration shorter, or --every longer\n",
            LONGEST_HEADS, LONGEST_HEADS / ACKNOWLEDGEMENT);
    exit(64);
  }
  return options;
}
