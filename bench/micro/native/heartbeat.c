/* Measures what a heartbeat costs the arbiter's thread: heartbeat NICS PROGRAMS ROUNDS; prints JSON.
 *
 * The programs send nothing and the NICs carry nothing, as while something is in flight elsewhere. With
 * each heartbeat the arbiter reads counters and writes the outlook page. The result is the processor time
 * of both, as the median of the rounds.
 */
#define _GNU_SOURCE
#include "../../../csrc/arbiter/arbiter.c"

#include <stdio.h>

#define RATE 50000000000ull /* bytes per second */
#define HEARTBEAT_NS 10000000ull
#define FORGOTTEN 2000u /* heartbeats until the new NICs no longer count as in use */

static void must(bool holds, const char *what)
{
	if (holds)
		return;
	fprintf(stderr, "heartbeat: %s\n", what);
	_exit(1);
}

static uint64_t cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int compare(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static uint64_t beat(struct mfs_arbiter *arbiter)
{
	uint64_t start_ns;

	arbiter->now_ns += HEARTBEAT_NS;
	start_ns = cpu_ns();
	nics_measure(arbiter, false);
	outlook_write(arbiter, arbiter->now_ns);
	return cpu_ns() - start_ns;
}

int main(int argc, char **argv)
{
	struct mfs_arbiter_config config = {
		.epoch = 1, .heartbeat_ns = HEARTBEAT_NS, .stale_after_ns = 40000000, .max_hold_ns = 250000000,
		.window_ns = 200000, .window_bytes_min = 131072, .quiet_ns = 200000, .gate_max_ns = 2000000,
		.spin_ns = 50000, .torn_slot_ns = 10000000, .load_time_constant_ns = 10000000,
		.rate_default_bytes_per_s = RATE, .tasks_max = 65536, .mode = MFS_MODE_ENFORCE,
	};
	struct mfs_arbiter *arbiter;
	uint32_t nics, programs, rounds;
	uint64_t *took_ns, clock_ns = UINT64_MAX;

	must(argc == 4, "usage: heartbeat NICS PROGRAMS ROUNDS");
	nics = (uint32_t)atoi(argv[1]);
	programs = (uint32_t)atoi(argv[2]);
	rounds = (uint32_t)atoi(argv[3]);
	must(nics && nics <= MFS_NICS_MAX && programs && programs <= MFS_CLIENTS_MAX && rounds, "a number is out of range");
	took_ns = calloc(rounds, sizeof(*took_ns));
	must(took_ns, "no memory");
	mfs_policy_default(&config.policy, 8);
	must(mfs_arbiter_create(&config, &arbiter) == 0, "no arbiter could be made");
	for (uint32_t i = 0; i < nics; i++) {
		char name[16];

		snprintf(name, sizeof(name), "rdma%u", i);
		must(mfs_arbiter_nic(arbiter, name, 0, RATE) == (int)i, "a NIC could not be made");
	}
	for (uint32_t i = 0; i < programs; i++) {
		int memfd, doorbell;

		must(mfs_arbiter_client_add(arbiter, &memfd, &doorbell) > 0, "no memory for that many programs");
		close(memfd);
		close(doorbell);
	}
	for (uint32_t i = 0; i < 4; i++)
		turn(arbiter, true);
	for (uint32_t i = 0; i < FORGOTTEN; i++)
		beat(arbiter);
	for (uint32_t i = 0; i < rounds; i++)
		took_ns[i] = beat(arbiter);
	for (uint32_t i = 0; i < 1000; i++) {
		uint64_t start_ns = cpu_ns(), ns = cpu_ns() - start_ns;

		clock_ns = ns < clock_ns ? ns : clock_ns;
	}
	qsort(took_ns, rounds, sizeof(*took_ns), compare);
	printf("{\"cpu_ns\": %llu}\n", (unsigned long long)(took_ns[rounds / 2] > clock_ns ? took_ns[rounds / 2] - clock_ns : 1));
	mfs_arbiter_destroy(arbiter);
	free(took_ns);
	return 0;
}
