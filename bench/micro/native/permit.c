/* Measures round trips of one client with a running daemon: permit SOCKET BLOCKS ROUNDS WAKES; prints JSON
 * in us.
 *
 * rtt:    submit, poll for the permit, complete; repeated at once, so that the arbiter spins. BLOCKS of ROUNDS
 *         with a pause between them.
 * wake:   the same after a pause of 5 ms, in which the arbiter goes to sleep.
 * wait:   like wake, but the client sleeps, too, until the permit wakes it.
 * credit: submit on credit after such a pause; nothing waits, and the daemon is not asked.
 */
#include <mfs/client.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PAUSE_NS 5000000
#define PATIENCE_NS 2000000000ull

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t round_trip(struct mfs_client *client, uint8_t nic, bool wait)
{
	struct mfs_task task = {.bytes = 65536, .batch = MFS_NONE_U32, .stage = MFS_STAGE_P2D, .nic = nic};
	struct mfs_permit permit;
	uint64_t start = now_ns(), id, took;
	int rc = mfs_client_submit(client, &task, NULL, &id);

	if (rc < 0) {
		fprintf(stderr, "submit: %s\n", strerror(-rc));
		exit(1);
	}
	while (!mfs_client_permits_pending(client)) {
		if (wait)
			mfs_client_wait(client, PATIENCE_NS);
		if (now_ns() - start > PATIENCE_NS) {
			fprintf(stderr, "no permit within two seconds\n");
			exit(1);
		}
	}
	rc = mfs_client_permits(client, &permit, 1);
	took = now_ns() - start;
	if (rc != 1 || permit.task_id != id) {
		fprintf(stderr, "another permit than expected\n");
		exit(1);
	}
	mfs_client_complete(client, id);
	return took;
}

/* Returns the time of a submit on credit in ns; 0: there was no credit. */
static uint64_t on_credit(struct mfs_client *client, uint8_t nic)
{
	struct mfs_task task = {
		.bytes = 65536, .batch = MFS_NONE_U32, .stage = MFS_STAGE_P2D, .nic = nic, .at_once = true};
	uint64_t start = now_ns(), id, took;
	int rc = mfs_client_submit(client, &task, NULL, &id);

	took = now_ns() - start;
	if (rc == 1)
		mfs_client_complete(client, id);
	else if (rc == 0)
		mfs_client_cancel(client, id, false);
	return rc == 1 ? took : 0;
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

static void print(const char *name, uint64_t *sample, size_t n, const char *end)
{
	qsort(sample, n, sizeof(*sample), compare);
	printf("\"%s\": {\"n\": %zu, \"min\": %.3f, \"p50\": %.3f, \"p90\": %.3f, \"p99\": %.3f, \"max\": %.3f}%s\n", name, n,
	       (double)sample[0] / 1e3, (double)sample[n / 2] / 1e3, (double)sample[n * 9 / 10] / 1e3,
	       (double)sample[n * 99 / 100] / 1e3, (double)sample[n - 1] / 1e3, end);
}

static void pause_ns(long ns)
{
	struct timespec t = {.tv_nsec = ns};

	nanosleep(&t, NULL);
}

int main(int argc, char **argv)
{
	struct mfs_client_options options = {.socket_path = argv[1], .mode = MFS_MODE_ENFORCE, .timeout_ms = 5000};
	struct mfs_client *client;
	const char *why = "";

	if (argc != 5) {
		fprintf(stderr, "usage: permit SOCKET BLOCKS ROUNDS WAKES\n");
		return 2;
	}

	size_t blocks = strtoul(argv[2], NULL, 10), rounds = strtoul(argv[3], NULL, 10), wakes = strtoul(argv[4], NULL, 10);
	uint64_t *rtt = malloc(blocks * rounds * sizeof(*rtt)), *wake = malloc(3 * wakes * sizeof(*wake));
	int nic;

	if (mfs_client_attach(&options, &client, &why) < 0) {
		fprintf(stderr, "attach: %s\n", why);
		return 1;
	}
	nic = mfs_client_nic(client, "bench0", 0, 12500000000);
	if (nic < 0) {
		fprintf(stderr, "nic: %s\n", strerror(-nic));
		return 1;
	}
	for (size_t b = 0; b < blocks; b++) {
		for (size_t i = 0; i < 200; i++) /* until the arbiter spins and all pages are mapped */
			round_trip(client, (uint8_t)nic, false);
		for (size_t i = 0; i < rounds; i++)
			rtt[b * rounds + i] = round_trip(client, (uint8_t)nic, false);
		pause_ns(PAUSE_NS);
	}
	for (size_t i = 0; i < 2 * wakes; i++) {
		pause_ns(PAUSE_NS);
		wake[i % 2 * wakes + i / 2] = round_trip(client, (uint8_t)nic, i % 2);
	}
	for (uint64_t start = now_ns(), i = 0; i < wakes;) {
		pause_ns(PAUSE_NS);
		wake[2 * wakes + i] = on_credit(client, (uint8_t)nic);
		i += wake[2 * wakes + i] != 0;
		if (now_ns() - start > 10 * PATIENCE_NS) {
			fprintf(stderr, "no credit within 20 seconds\n");
			return 1;
		}
	}
	printf("{");
	print("rtt", rtt, blocks * rounds, ",");
	print("wake", wake, wakes, ",");
	print("wait", wake + wakes, wakes, ",");
	print("credit", wake + 2 * wakes, wakes, "}");
	mfs_client_detach(client);
	return 0;
}
