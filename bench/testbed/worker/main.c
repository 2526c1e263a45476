/* Options, the event loop, and the line to the controller. */
#define _GNU_SOURCE
#include "worker.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { WATCHED_MAX = 8, LINKS_MAX = 64, PACKET_BYTES = 64 << 10 };

struct settings settings = { .message_bytes = 128 << 10, .control_fd = 3 };

static struct {
	int fd;
	void (*ready)(void);
} watched[WATCHED_MAX];
static unsigned watched_count;
static int epoll_fd, timer_fd;

uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void tell(const char *format, ...)
{
	static char packet[PACKET_BYTES];
	va_list arguments;
	int bytes;

	va_start(arguments, format);
	bytes = vsnprintf(packet, sizeof(packet), format, arguments);
	va_end(arguments);
	if (bytes >= (int)sizeof(packet) || send(settings.control_fd, packet, (size_t)bytes, MSG_NOSIGNAL) < 0)
		exit(1); /* the controller has gone: nobody is left to tell */
}

void fail(const char *format, ...)
{
	char text[1024];
	va_list arguments;

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	fprintf(stderr, "%s: %s\n", settings.name ? settings.name : "worker", text);
	tell("error %s", text);
	exit(1);
}

void watch(int fd, void (*ready)(void))
{
	struct epoll_event event = { .events = EPOLLIN, .data.u32 = watched_count };

	if (watched_count == WATCHED_MAX || epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event))
		fail("cannot watch descriptor %d: %s", fd, strerror(errno));
	watched[watched_count].fd = fd;
	watched[watched_count++].ready = ready;
}

void timer_set(uint64_t due_ns)
{
	const struct itimerspec when = {
		.it_value = { .tv_sec = (time_t)(due_ns / 1000000000u), .tv_nsec = (long)(due_ns % 1000000000u) },
	};
	timerfd_settime(timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

static void timer_ready(void)
{
	uint64_t times;

	if (read(timer_fd, &times, sizeof(times)) == sizeof(times))
		prefill_timer();
}

static void control_ready(void)
{
	static char packet[PACKET_BYTES];
	static bool told_ready;
	ssize_t bytes = recv(settings.control_fd, packet, sizeof(packet) - 1, 0);
	unsigned peer;
	int used = 0;

	if (bytes <= 0)
		exit(0);
	packet[bytes] = 0;
	if (sscanf(packet, "from %u %n", &peer, &used) == 1 && used) {
		verbs_peer(peer, packet + used);
		if (!told_ready && verbs_connected()) {
			told_ready = true;
			tell("ready");
		}
	} else if (!strncmp(packet, "batch ", 6)) {
		prefill_batch(packet + 6);
	} else if (!strncmp(packet, "expect ", 7)) {
		decode_expect(packet + 7);
	} else if (!strcmp(packet, "statistics")) {
		gate_statistics();
	} else if (!strcmp(packet, "quit")) {
		exit(0);
	} else {
		fail("the controller says what I do not know: %.60s", packet);
	}
}

static unsigned numbers(const char *text, unsigned *values, unsigned most)
{
	unsigned count = 0;

	for (char *end; count < most && *text; text = *end == ',' ? end + 1 : end) {
		values[count++] = (unsigned)strtoul(text, &end, 10);
		if (end == text || (*end && *end != ','))
			fail("not a list of numbers: %s", text);
	}
	return count;
}

static const char *link_text[LINKS_MAX];
static unsigned links;

/* PEER:STAGE:CLASS,CLASS:QUEUE_PAIRS:WAY, where WAY is send, receive, both, or serve (memory that the peer reads) */
static void links_make(void)
{
	for (unsigned i = 0; i < links; i++) {
		unsigned peer, stage, queue_pairs, classes[CLASSES_MAX], count;
		char list[64], way[16];

		if (sscanf(link_text[i], "%u:%u:%63[0-9,]:%u:%15s", &peer, &stage, list, &queue_pairs, way) != 5)
			fail("--link %s: want PEER:STAGE:CLASSES:QUEUE_PAIRS:WAY", link_text[i]);
		count = numbers(list, classes, CLASSES_MAX);
		for (unsigned c = 0; c < count; c++)
			verbs_link(peer, (enum stage)stage, classes[c], queue_pairs,
				   !strcmp(way, "send") || !strcmp(way, "both"),
				   !strcmp(way, "receive") || !strcmp(way, "both"));
	}
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "name", 1, 0, 'n' },	   { "index", 1, 0, 'i' },   { "device", 1, 0, 'd' }, { "control", 1, 0, 'c' },
		{ "dscp", 1, 0, 'q' },	   { "link", 1, 0, 'l' },    { "pool", 1, 0, 'p' },   { "rank", 1, 0, 'r' },
		{ "message", 1, 0, 'm' },  { "classes", 1, 0, 'k' }, { "scheduled", 0, 0, 's' }, { 0 },
	};
	for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;) {
		switch (c) {
		case 'n': settings.name = optarg; break;
		case 'i': settings.index = (unsigned)atoi(optarg); break;
		case 'd': settings.device = optarg; break;
		case 'c': settings.control_fd = atoi(optarg); break;
		case 'q': numbers(optarg, settings.dscp, CLASSES_MAX); break;
		case 'l':
			if (links == LINKS_MAX)
				return 64;
			link_text[links++] = optarg;
			break;
		case 'p': settings.pool = (unsigned)atoi(optarg); break;
		case 'r': settings.peer_rank = (unsigned)atoi(optarg); break;
		case 'm': settings.message_bytes = (uint32_t)atoi(optarg); break;
		case 'k': numbers(optarg, settings.fixed_class, 4); break;
		case 's': settings.scheduled = true; break;
		default: return 64;
		}
	}
	prctl(PR_SET_PDEATHSIG, 9); /* a worker does not outlive its controller */
	prctl(PR_SET_TIMERSLACK, 1UL);
	epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	watch(settings.control_fd, control_ready);
	watch(timer_fd, timer_ready);
	gate_open();
	verbs_open();
	gate_attach();
	links_make();
	tell("linked");
	for (;;) {
		struct epoll_event event[WATCHED_MAX];
		const int n = epoll_wait(epoll_fd, event, WATCHED_MAX, gate_waits() ? 20 : -1);

		for (int i = 0; i < n; i++)
			watched[event[i].data.u32].ready();
		gate_look();
	}
}
