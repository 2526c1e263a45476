/* outlook_page ROUNDS: one thread writes the outlook page as the daemon does, others read it as clients
 * do. A copy that is accepted is from a single writing: each number in it says from which. */
#include "../../csrc/arbiter/state.h"
#include "../../csrc/client/state.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define READERS 3
#define WIDTH 64 /* far ports and requests of each writing */
#define NICS (MFS_NICS_FIRST + 2) /* those of the last lie at the page's end */

#define CHECK(condition)                                                              \
	do {                                                                          \
		if (!(condition)) {                                                   \
			fprintf(stderr, "line %d: %s\n", __LINE__, #condition);       \
			exit(1);                                                      \
		}                                                                     \
	} while (0)

static struct mfs_client *client;
static _Atomic bool over;
static _Atomic uint64_t whole;

static void peer_of(uint32_t i, uint8_t peer[16])
{
	memset(peer, 0, 16);
	peer[0] = (uint8_t)i;
}

/* Checks that all of a copy is of one round: owed_ns is the round's number, requests begin at a thousand
 * times that. */
static void copy_check(uint64_t *last)
{
	struct mfs_outlook *copy = aligned_alloc(64, sizeof(*copy));
	uint64_t round;

	if (mfs_client_outlook(client, arbiter_clock_ns(), copy) == 0 && copy->fars) {
		CHECK(copy->fars == WIDTH && copy->pruned == WIDTH);
		CHECK(copy->ports == MFS_OUTLOOK_PORTS_FIRST && copy->ports_more == 4);
		round = copy->far[0].owed_ns;
		for (uint32_t i = 0; i < WIDTH; i++) {
			CHECK(copy->far[i].owed_ns == round);
			CHECK(copy->pruned_request[i] == round * 1000 + i);
		}
		CHECK(round >= *last);
		*last = round;
		atomic_fetch_add(&whole, 1);
	}
	free(copy);
}

static void parts_check(void)
{
	uint64_t now_ns = arbiter_clock_ns();
	struct mfs_port_outlook port;
	struct mfs_far_outlook far;
	uint8_t peer[16];

	peer_of(WIDTH / 2, peer);
	if (mfs_client_outlook_far(client, peer, MFS_DIRECTION_IN, now_ns, &far) == 0)
		CHECK(far.rate_bytes_per_s == far.owed_ns);
	for (unsigned nic = 0; nic < NICS; nic += NICS - 1)
		if (mfs_client_outlook_port(client, nic, MFS_DIRECTION_IN, now_ns, &port) == 0)
			CHECK(port.rate_bytes_per_s == 1000000 + nic);
	CHECK(mfs_client_outlook_port(client, NICS, MFS_DIRECTION_IN, now_ns, &port) == -ENODATA);
	CHECK(mfs_client_pruned(client, UINT64_MAX, now_ns) != 1);
}

static void *reader(void *argument)
{
	uint64_t last = 0;

	(void)argument;
	while (!atomic_load(&over)) {
		copy_check(&last);
		parts_check();
	}
	return NULL;
}

static void write_round(struct mfs_arbiter *arbiter, uint64_t round)
{
	struct mfs_far_port far[WIDTH];
	uint64_t pruned[WIDTH];

	for (uint32_t i = 0; i < WIDTH; i++) {
		far[i] = (struct mfs_far_port){
			.direction = MFS_DIRECTION_IN, .rate_bytes_per_s = round, .owed_ns = round};
		peer_of(WIDTH - i, far[i].peer);
		pruned[i] = round * 1000 + WIDTH - 1 - i;
	}
	arbiter->now_ns = arbiter_clock_ns();
	outlook_write(arbiter, arbiter->now_ns);
	CHECK(mfs_arbiter_outlook(arbiter, far, WIDTH, pruned, WIDTH, arbiter->now_ns + 1000000000,
				  arbiter->now_ns + 1000000000) == 0);
}

/* The arbiter goes on writing, but Python has not reported for a while what is pruned. A daemon before
 * minor 7 reports no time. */
static void pruned_expires(struct mfs_arbiter *arbiter)
{
	struct mfs_outlook *copy = aligned_alloc(64, sizeof(*copy));
	uint64_t pruned[] = {41}, now_ns = arbiter_clock_ns();
	struct mfs_far_port none[1];

	arbiter->now_ns = now_ns;
	outlook_write(arbiter, now_ns + 60000000000ull - 100000000);
	CHECK(mfs_arbiter_outlook(arbiter, none, 0, pruned, 1, 0, now_ns + 1000) == 0);
	CHECK(mfs_client_pruned(client, 41, now_ns + 1000) == 1 && mfs_client_pruned(client, 42, now_ns + 1000) == 0);
	CHECK(mfs_client_outlook(client, now_ns + 1000, copy) == 0 && copy->pruned == 1);
	CHECK(mfs_client_pruned(client, 41, now_ns + 1001) == -ENODATA);
	CHECK(mfs_client_outlook(client, now_ns + 1001, copy) == 0 && copy->pruned == 0);
	client->minor = MFS_OUTLOOK_PRUNED_MINOR - 1;
	CHECK(mfs_client_pruned(client, 41, now_ns + 1001) == 1);
	CHECK(mfs_client_outlook(client, now_ns + 1001, copy) == 0 && copy->pruned == 1);
	free(copy);
}

static void map(struct mfs_arbiter *arbiter)
{
	int fd = mfs_arbiter_outlook_fd(arbiter);

	CHECK(fd >= 0);
	client = mmap(NULL, sizeof(*client), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	client->epoch = (uint32_t)arbiter->config.epoch;
	client->minor = MFS_ABI_MINOR;
	CHECK(mmap(NULL, sizeof(struct mfs_outlook), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
	client->outlook = mmap(NULL, sizeof(struct mfs_outlook), PROT_READ, MAP_SHARED, fd, 0);
	CHECK(client->outlook != MAP_FAILED);
	CHECK(mprotect((void *)client->outlook, sizeof(struct mfs_outlook), PROT_READ | PROT_WRITE) != 0);
	CHECK(write(fd, "x", 1) < 0 && ftruncate(fd, 0) < 0);
	close(fd);
}

int main(int argc, char **argv)
{
	uint64_t rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000;
	struct mfs_arbiter_config config = {
		.epoch = 11,
		.heartbeat_ns = 10000000,
		.stale_after_ns = 40000000,
		.max_hold_ns = 1000000000,
		.window_bytes_min = 1 << 20,
		.gate_max_ns = 1000000,
		.torn_slot_ns = 1000000,
		.load_time_constant_ns = 20000000,
		.rate_default_bytes_per_s = 1000000,
		.tasks_max = 64,
		.mode = MFS_MODE_ENFORCE,
	};
	pthread_t thread[READERS];
	struct mfs_arbiter *arbiter;

	mfs_policy_default(&config.policy, 8);
	CHECK(mfs_arbiter_create(&config, &arbiter) == 0);
	for (int nic = 0; nic < NICS; nic++)
		CHECK(mfs_arbiter_nic(arbiter, "test", (uint64_t)nic + 1, 1000000 + (uint64_t)nic) == nic);
	map(arbiter);
	for (int i = 0; i < READERS; i++)
		CHECK(pthread_create(&thread[i], NULL, reader, NULL) == 0);
	for (uint64_t round = 1; round <= rounds; round++) {
		uint64_t before = atomic_load(&whole);

		write_round(arbiter, round);
		while (round % 8 == 0 && atomic_load(&whole) == before)
			sched_yield(); /* on one core, readers would never run between two writings */
	}
	atomic_store(&over, true);
	for (int i = 0; i < READERS; i++)
		pthread_join(thread[i], NULL);
	pruned_expires(arbiter);
	mfs_arbiter_destroy(arbiter);
	CHECK(mfs_client_pruned(client, 1, arbiter_clock_ns()) == -ENODATA); /* and the page says so at once */
	return 0;
}
