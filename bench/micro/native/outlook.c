/* Measures how long it takes to read the outlook page of a running daemon: outlook SOCKET BLOCKS ROUNDS.
 * Prints JSON: the nanoseconds for one reading, as the mean of each block of ROUNDS readings.
 *
 * port:   one direction of a NIC
 * The others read a page whose tables of far ports and pruned requests are full:
 * far:    a far port that is not in the table (the whole search)
 * pruned: a request that is not in the table
 * fetch:  how long a fetch takes, with the clock
 * page:   a copy of the whole page
 */
#include "../../../csrc/client/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TRIES 1000

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static struct mfs_client *client;
static int nic;

static int read_port(uint64_t at_ns)
{
	struct mfs_port_outlook port;

	return mfs_client_outlook_port(client, (unsigned)nic, MFS_DIRECTION_IN, at_ns, &port);
}

static int read_far(uint64_t at_ns)
{
	static const uint8_t peer[16] = {1};
	struct mfs_far_outlook far;

	mfs_client_outlook_far(client, peer, MFS_DIRECTION_IN, at_ns, &far);
	return 0;
}

static int read_pruned(uint64_t at_ns)
{
	return mfs_client_pruned(client, 12345, at_ns);
}

static int read_fetch(uint64_t at_ns)
{
	static const uint8_t peer[16] = {1};
	static const struct mfs_fetch fetch = {.bytes = 1 << 20, .far_bytes = 1 << 20};
	uint64_t ns;

	(void)at_ns;
	return mfs_client_fetch_ns(client, (unsigned)nic, &fetch, peer, 1, &ns);
}

static int read_page(uint64_t at_ns)
{
	static _Alignas(64) struct mfs_outlook copy;

	return mfs_client_outlook(client, at_ns, &copy);
}

/* Returns the mean time of a reading in ns. Below 0: the page is too old, as the daemon had no time to
 * write it. */
static double block(int (*read)(uint64_t), int rounds)
{
	uint64_t begin_ns = now_ns();

	for (int r = 0; r < rounds; r++)
		if (read(begin_ns) < 0)
			return -1.0;
	return (double)(now_ns() - begin_ns) / rounds;
}

static void measure(const char *name, int (*read)(uint64_t), int blocks, int rounds)
{
	const struct timespec pause = {.tv_nsec = 2000000};
	int failed = 0;

	printf("\"%s\": [", name);
	for (int b = 0; b < blocks;) {
		double ns = block(read, rounds);

		nanosleep(&pause, NULL);
		if (ns >= 0.0) {
			printf("%s%.1f", b++ ? ", " : "", ns);
		} else if (++failed > TRIES) {
			fprintf(stderr, "%s: nothing is known\n", name);
			exit(1);
		}
	}
	printf("]");
}

/* Replaces the page by a copy with full tables, which only this program writes. */
static void fill(void)
{
	static _Alignas(64) struct mfs_outlook full;

	while (mfs_client_outlook(client, now_ns(), &full) < 0)
		;
	atomic_store(&full.sequence, 0);
	atomic_store(&full.valid_until_ns, now_ns() + 50000000000u);
	atomic_store(&full.far_valid_until_ns, now_ns() + 50000000000u);
	atomic_store(&full.fars, MFS_OUTLOOK_FARS_MAX);
	atomic_store(&full.pruned, MFS_OUTLOOK_PRUNED_MAX);
	for (unsigned i = 0; i < MFS_OUTLOOK_FARS_MAX; i++)
		atomic_store(&full.far[i].peer[0], 2 * i);
	for (unsigned i = 0; i < MFS_OUTLOOK_PRUNED_MAX; i++)
		atomic_store(&full.pruned_request[i], 24 * i + 1);
	client->outlook = &full;
}

int main(int argc, char **argv)
{
	struct mfs_client_options options = {.socket_path = argc > 1 ? argv[1] : NULL,
					     .mode = MFS_MODE_ENFORCE,
					     .timeout_ms = 5000};
	int blocks = argc > 2 ? atoi(argv[2]) : 20, rounds = argc > 3 ? atoi(argv[3]) : 10000;
	const char *why = "";

	if (mfs_client_attach(&options, &client, &why) < 0) {
		fprintf(stderr, "attach: %s\n", why);
		return 1;
	}
	nic = mfs_client_nic(client, "bench0", 0, 12500000000);
	printf("{");
	measure("port", read_port, blocks, rounds);
	fill();
	printf(", ");
	measure("far", read_far, blocks, rounds);
	printf(", ");
	measure("pruned", read_pruned, blocks, rounds);
	printf(", ");
	measure("fetch", read_fetch, blocks, rounds);
	printf(", ");
	measure("page", read_page, blocks, rounds / 100 + 1);
	printf("}\n");
	return 0;
}
