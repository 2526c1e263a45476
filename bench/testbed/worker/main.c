/* The worker's options, and the messages from the controller. */
#define _GNU_SOURCE
#include "worker.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>

enum { LINKS_MAX = 64, LOOK_MS = 20 };

static void control_ready(void)
{
	static char packet[PACKET_BYTES];
	static bool reported_ready;
	ssize_t bytes = recv(settings.control_fd, packet, sizeof(packet) - 1, 0);
	unsigned peer;
	int used = 0;

	if (bytes <= 0)
		exit(0);
	packet[bytes] = 0;
	if (sscanf(packet, "from %u %n", &peer, &used) == 1 && used) {
		verbs_peer(peer, packet + used);
		if (!reported_ready && verbs_connected()) {
			reported_ready = true;
			tell("ready");
		}
	} else if (!strncmp(packet, "batch ", 6)) {
		prefill_batch(packet + 6);
	} else if (!strncmp(packet, "load ", 5)) {
		prefill_load(packet + 5);
	} else if (!strncmp(packet, "forecast ", 9)) {
		prefill_forecast(packet + 9);
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

/* Makes the lanes of all --link options. Their form is PEER:STAGE:CLASS,CLASS:QUEUE_PAIRS:WAY, where WAY is
 * send, receive, both, serve (memory that the peer reads), or control (clear-to-send writes, stage 0). */
static void links_make(void)
{
	for (unsigned i = 0; i < links; i++) {
		unsigned peer, stage, queue_pairs, classes[CLASSES_MAX], count;
		char list[64], direction[16];

		if (sscanf(link_text[i], "%u:%u:%63[0-9,]:%u:%15s", &peer, &stage, list, &queue_pairs, direction) != 5)
			fail("--link %s: want PEER:STAGE:CLASSES:QUEUE_PAIRS:WAY", link_text[i]);
		count = numbers(list, classes, CLASSES_MAX);
		for (unsigned c = 0; c < count; c++)
			verbs_link(peer, (enum stage)stage, classes[c], queue_pairs,
				   !strcmp(direction, "send") || !strcmp(direction, "both"),
				   !strcmp(direction, "receive") || !strcmp(direction, "both"));
	}
}

static void completed(struct message *message)
{
	gate_completed(message);
	prefill_completed(message);
}

static void received(enum stage stage, uint32_t immediate, uint64_t bytes)
{
	if (stage == STAGE_COLLECTIVE)
		prefill_collective_received(immediate, bytes);
	else
		decode_received(immediate, bytes);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "name", 1, 0, 'n' },	   { "index", 1, 0, 'i' },   { "device", 1, 0, 'd' }, { "control", 1, 0, 'c' },
		{ "dscp", 1, 0, 'q' },	   { "link", 1, 0, 'l' },    { "pool", 1, 0, 'p' },   { "rank", 1, 0, 'r' },
		{ "message", 1, 0, 'm' },  { "classes", 1, 0, 'k' }, { "scheduled", 0, 0, 's' },
		{ "one-lane", 0, 0, 'o' }, { "nccl-signals", 0, 0, 'g' }, { "loads-alone", 0, 0, 'a' },
		{ 0 },
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
		case 'p': settings.pools = numbers(optarg, settings.pool, POOLS_MAX); break;
		case 'r': settings.peer_rank = (unsigned)atoi(optarg); break;
		case 'm': settings.message_bytes = (uint32_t)atoi(optarg); break;
		case 'k': numbers(optarg, settings.fixed_class, 4); break;
		case 's': settings.scheduled = true; break;
		case 'o': settings.one_lane = true; break;
		case 'a': settings.loads_alone = true; break;
		case 'g': settings.nccl_signals = true; break;
		default: return 64;
		}
	}
	prctl(PR_SET_PDEATHSIG, 9); /* a worker does not outlive its controller */
	prctl(PR_SET_TIMERSLACK, 1UL);
	loop_open(prefill_timer);
	loop_watch(settings.control_fd, control_ready);
	gate_open();
	verbs_open(&(struct verbs_hooks){ .lane = gate_lane, .posting = gate_posting, .completed = completed,
					  .received = received });
	gate_attach();
	links_make();
	tell("linked");
	for (;;) {
		loop_turn(gate_waits() ? LOOK_MS : -1);
		gate_poll();
	}
}
