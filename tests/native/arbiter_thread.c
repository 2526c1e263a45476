/* The arbiter's threads: how they are scheduled, and which of them writes heartbeats during a long turn.
 *
 * arbiter_thread priority CORES    on a host with this many cores: prints "scheduler N", "nice N", "spin_ns N"
 * arbiter_thread affinity CPU      prints which CPUs its threads may use
 * arbiter_thread late MS           a turn takes this long: prints the age of the oldest heartbeat that a client saw
 * arbiter_thread busy MS           three turns take this long, on a real-time thread that leaves its core to nothing else
 *                                  until the kernel stops it: prints the age for each turn. Both threads may use two
 *                                  cores: exits with 2 if there is only one, or no privilege for real time */
#define _GNU_SOURCE
#include <unistd.h>

static long cores = 64;

static long cores_count(int name)
{
	(void)name;
	return cores;
}
#define sysconf cores_count
#undef _GNU_SOURCE
#include "../../csrc/arbiter/arbiter.c"
#undef sysconf

#include <stdio.h>
#include <time.h>

#define MS 1000000ull
#define BUSY_TURNS 3 /* of 450 ms: more of a second than a real-time thread may use */

static void must(bool holds, const char *what)
{
	if (holds)
		return;
	fprintf(stderr, "not so: %s\n", what);
	_exit(1);
}

static int run_priority(struct mfs_arbiter *arbiter, void *argument)
{
	(void)argument;
	printf("scheduler %d\nnice %d\nspin_ns %llu\n", sched_getscheduler(0) & ~SCHED_RESET_ON_FORK,
	       getpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid)), (unsigned long long)arbiter->config.spin_ns);
	return 0;
}

static void affinity_print(pthread_t thread)
{
	cpu_set_t cpus;

	must(pthread_getaffinity_np(thread, sizeof(cpus), &cpus) == 0, "a thread says where it may run");
	for (unsigned cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &cpus))
			printf("%u ", cpu);
	printf("\n");
}

static int run_late(struct mfs_arbiter *arbiter, void *argument)
{
	(void)arbiter;
	nanosleep(argument, NULL);
	return 0;
}

static int run_busy(struct mfs_arbiter *arbiter, void *argument)
{
	uint64_t until_ns = arbiter_clock_ns() + *(uint64_t *)argument;
	cpu_set_t here;

	(void)arbiter;
	if ((sched_getscheduler(0) & ~SCHED_RESET_ON_FORK) != SCHED_RR)
		return -EPERM;
	CPU_ZERO(&here);
	CPU_SET(sched_getcpu(), &here);
	must(pthread_setaffinity_np(pthread_self(), sizeof(here), &here) == 0, "the turn stays on its core");
	while (arbiter_clock_ns() < until_ns)
		;
	return 0;
}

struct watcher {
	const struct session *session;
	_Atomic bool over;
	uint64_t oldest_ns;
};

static void *watch_heartbeat(void *argument)
{
	struct watcher *watcher = argument;

	while (!atomic_load(&watcher->over)) {
		uint64_t now_ns = arbiter_clock_ns();
		uint64_t beat_ns = atomic_load(&watcher->session->segment->header.heartbeat_ns);
		struct timespec pause = {.tv_nsec = MS};

		if ((int64_t)(now_ns - beat_ns) > (int64_t)watcher->oldest_ns)
			watcher->oldest_ns = now_ns - beat_ns;
		nanosleep(&pause, NULL);
	}
	return NULL;
}

/* Runs one turn and prints the age of the oldest heartbeat that the client saw meanwhile. */
static int watched(struct mfs_arbiter *arbiter, const struct session *session,
		   int (*run)(struct mfs_arbiter *, void *), void *argument)
{
	struct watcher watcher = {.session = session};
	pthread_t thread;
	int rc;

	must(pthread_create(&thread, NULL, watch_heartbeat, &watcher) == 0, "a client reads it");
	rc = arbiter_command(arbiter, run, argument);
	atomic_store(&watcher.over, true);
	pthread_join(thread, NULL);
	printf("oldest_ms %llu\n", (unsigned long long)(watcher.oldest_ns / MS));
	return rc;
}

static int late(struct mfs_arbiter *arbiter, uint64_t late_ns, bool busy)
{
	struct timespec pause = {.tv_sec = (time_t)(late_ns / 1000000000), .tv_nsec = (long)(late_ns % 1000000000)};
	int memfd, doorbell, rc = mfs_arbiter_client_add(arbiter, &memfd, &doorbell);
	const struct session *session;

	must(rc > 0, "a client is added");
	session = session_find(arbiter, (uint32_t)rc);
	if (!busy)
		return watched(arbiter, session, run_late, &pause);
	rc = 0;
	for (int turn = 0; turn < BUSY_TURNS && rc == 0; turn++)
		rc = watched(arbiter, session, run_busy, &late_ns);
	return rc;
}

/* Adds the first two cores that this process may use to `cpus`. Returns false if there is only one. */
static bool two_cpus(uint64_t *cpus)
{
	unsigned found = 0;
	cpu_set_t mine;

	must(sched_getaffinity(0, sizeof(mine), &mine) == 0, "this process says where it may run");
	for (unsigned cpu = 0; cpu < MFS_CPUS_MAX && found < 2; cpu++)
		if (CPU_ISSET(cpu, &mine)) {
			cpus[cpu / 64] |= 1ull << cpu % 64;
			found++;
		}
	return found == 2;
}

int main(int argc, char **argv)
{
	struct mfs_arbiter_config config = {
		.epoch = 1, .heartbeat_ns = 10 * MS, .stale_after_ns = 200 * MS, .max_hold_ns = 250 * MS, .window_ns = 200000,
		.window_bytes_min = 131072, .quiet_ns = 200000, .gate_max_ns = 2 * MS, .spin_ns = 50000, .torn_slot_ns = 10 * MS,
		.load_time_constant_ns = 10 * MS, .rate_default_bytes_per_s = 1000000000, .tasks_max = 1024,
		.mode = MFS_MODE_ENFORCE,
	};
	struct mfs_arbiter *arbiter;
	long value;
	int rc = 0;

	must(argc == 3, "usage: arbiter_thread priority CORES | affinity CPU | late MS | busy MS");
	value = strtol(argv[2], NULL, 10);
	if (!strcmp(argv[1], "priority"))
		cores = value;
	if (!strcmp(argv[1], "affinity"))
		config.cpus[value / 64] = 1ull << value % 64;
	if (!strcmp(argv[1], "busy")) {
		cores = 2;
		if (!two_cpus(config.cpus))
			return 2;
	}
	mfs_policy_default(&config.policy, 8);
	must(mfs_arbiter_create(&config, &arbiter) == 0, "an arbiter is made");
	must(mfs_arbiter_start(arbiter) == 0, "its threads start");
	if (!strcmp(argv[1], "priority")) {
		arbiter_command(arbiter, run_priority, NULL);
	} else if (!strcmp(argv[1], "affinity")) {
		affinity_print(arbiter->thread);
		affinity_print(arbiter->beater);
	} else {
		rc = late(arbiter, (uint64_t)value * MS, !strcmp(argv[1], "busy"));
	}
	mfs_arbiter_destroy(arbiter);
	return rc ? 2 : 0;
}
