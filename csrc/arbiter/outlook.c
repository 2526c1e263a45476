/* The outlook page: what clients may read of the state of this node's ports, and of what the coordinator
 * reports.
 *
 * The arbiter writes its ports with each heartbeat: every 10 ms while something happens, otherwise once a
 * second. The daemon's Python passes the rest when it has changed. Both are written between two turns, so
 * there is one writer. */
#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010 /* Linux 5.1 */
#endif

_Static_assert(MFS_OUTLOOK_PORTS_MAX == DIRECTIONS_MAX, "the page has a place for each direction");

#define OVERDUE_HEARTBEATS 10 /* a page that is late by this many heartbeats is not trusted */
#define WAITING_NOTICE_NS 20000000ull

/* Without the seal a client could write what all others read, so there is no page then. */
static int page_create(int *memfd, struct mfs_outlook **page)
{
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
	int fd = memfd_create("mfs-outlook", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	void *memory = MAP_FAILED;

	if (fd < 0)
		return -errno;
	if (ftruncate(fd, sizeof(**page)) == 0 && fallocate(fd, 0, 0, sizeof(**page)) == 0)
		memory = mmap(NULL, sizeof(**page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED || fcntl(fd, F_ADD_SEALS, seals)) {
		int rc = -errno;

		if (memory != MAP_FAILED)
			munmap(memory, sizeof(**page));
		close(fd);
		return rc;
	}
	*memfd = fd;
	*page = memory;
	return 0;
}

void outlook_create(struct mfs_arbiter *arbiter)
{
	arbiter->outlook_fd = -1;
	if (page_create(&arbiter->outlook_fd, &arbiter->outlook) < 0)
		return;
	arbiter->outlook->magic = MFS_OUTLOOK_MAGIC;
	arbiter->outlook->bytes = sizeof(*arbiter->outlook);
	arbiter->outlook->epoch = arbiter->config.epoch;
}

void outlook_destroy(struct mfs_arbiter *arbiter)
{
	if (!arbiter->outlook)
		return;
	/* clients may still have the page mapped: it now says that nothing is known */
	atomic_store_explicit(&arbiter->outlook->valid_until_ns, 0, memory_order_release);
	munmap(arbiter->outlook, sizeof(*arbiter->outlook));
	close(arbiter->outlook_fd);
	arbiter->outlook = NULL;
}

int mfs_arbiter_outlook_fd(const struct mfs_arbiter *arbiter)
{
	return arbiter->outlook ? fcntl(arbiter->outlook_fd, F_DUPFD_CLOEXEC, 0) : -ENOENT;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static void put(_Atomic uint64_t *word, uint64_t value)
{
	atomic_store_explicit(word, value, memory_order_relaxed);
}

static void write_begin(struct mfs_outlook *page)
{
	uint32_t sequence = atomic_load_explicit(&page->sequence, memory_order_relaxed);

	atomic_store_explicit(&page->sequence, sequence + 1, memory_order_relaxed);
	atomic_thread_fence(memory_order_release);
}

static void write_end(struct mfs_outlook *page)
{
	uint32_t sequence = atomic_load_explicit(&page->sequence, memory_order_relaxed);

	atomic_store_explicit(&page->sequence, sequence + 1, memory_order_release);
}

static uint64_t bytes_of_share(double share, uint64_t rate_bytes_per_s)
{
	double bytes = share * (double)rate_bytes_per_s;

	return bytes > 0.0 && bytes < 1e18 ? (uint64_t)bytes : 0;
}

static void port_write(const struct mfs_arbiter *arbiter, struct mfs_outlook_port *port,
		       const struct nic *nic, unsigned d)
{
	const struct direction *direction = &nic->direction[d];
	double never_waits =
		nic->unscheduled_used + bypass_rate(arbiter, nic, d) / (double)nic->rate_bytes_per_s;

	put(&port->rate_bytes_per_s, nic->rate_bytes_per_s);
	for (unsigned t = 0; t < MFS_OUTLOOK_TIERS; t++)
		put(&port->waiting_bytes[t], direction->waiting_bytes[t]);
	put(&port->in_flight_bytes, direction->in_flight_bytes);
	put(&port->achieved_bytes_per_s,
	    bytes_of_share(direction->used - never_waits, nic->rate_bytes_per_s));
	put(&port->unscheduled_bytes_per_s, bytes_of_share(never_waits, nic->rate_bytes_per_s));
}

/* Sums the rates of this node's own flows to or from the far port, over all NICs. */
static uint64_t far_achieved(const struct mfs_arbiter *arbiter, const struct outlook_far *far)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < arbiter->nics; i++)
		sum += mfs_window_rate_to(arbiter->nic[i].direction[far->info.direction].window, far->key,
					  arbiter->now_ns);
	return sum;
}

static void far_write(struct mfs_outlook_far *to, const struct mfs_far_port *info)
{
	uint64_t peer[2];

	memcpy(peer, info->peer, sizeof(peer));
	put(&to->peer[0], peer[0]);
	put(&to->peer[1], peer[1]);
	put(&to->direction, info->direction);
	put(&to->rate_bytes_per_s, info->rate_bytes_per_s);
	put(&to->owed_ns, info->owed_ns);
}

void outlook_write(struct mfs_arbiter *arbiter, uint64_t next_ns)
{
	struct mfs_outlook *page = arbiter->outlook;
	uint32_t ports = directions_count(arbiter),
		 first = ports < MFS_OUTLOOK_PORTS_FIRST ? ports : MFS_OUTLOOK_PORTS_FIRST;

	if (!page)
		return;
	write_begin(page);
	atomic_store_explicit(&page->ports, first, memory_order_relaxed);
	atomic_store_explicit(&page->ports_more, ports - first, memory_order_relaxed);
	for (uint32_t i = 0; i < ports; i++)
		port_write(arbiter, mfs_outlook_port_of(page, i), &arbiter->nic[i / MFS_DIRECTIONS],
			   i % MFS_DIRECTIONS);
	for (uint32_t i = 0; i < arbiter->fars; i++)
		put(&page->far[i].achieved_bytes_per_s, far_achieved(arbiter, &arbiter->far[i]));
	put(&page->written_ns, arbiter->now_ns);
	put(&page->valid_until_ns, next_ns + OVERDUE_HEARTBEATS * arbiter->config.heartbeat_ns);
	write_end(page);
}

/* ---- what the daemon's Python hands over ------------------------------------------------------------------------- */

struct outlook_argument {
	const struct mfs_far_port *fars;
	const uint64_t *pruned;
	uint32_t fars_count, pruned_count;
	uint64_t far_valid_until_ns, pruned_valid_until_ns;
};

static int run_outlook(struct mfs_arbiter *arbiter, void *argument)
{
	const struct outlook_argument *a = argument;
	struct mfs_outlook *page = arbiter->outlook;

	write_begin(page);
	for (uint32_t i = 0; i < a->fars_count; i++) {
		arbiter->far[i] = (struct outlook_far){
			.info = a->fars[i],
			.key = key_mix(arbiter->key_secret, a->fars[i].hash),
		};
		far_write(&page->far[i], &a->fars[i]);
		put(&page->far[i].achieved_bytes_per_s, far_achieved(arbiter, &arbiter->far[i]));
	}
	arbiter->fars = a->fars_count;
	atomic_store_explicit(&page->fars, a->fars_count, memory_order_relaxed);
	for (uint32_t i = 0; i < a->pruned_count; i++)
		put(&page->pruned_request[i], a->pruned[i]);
	atomic_store_explicit(&page->pruned, a->pruned_count, memory_order_relaxed);
	put(&page->far_valid_until_ns, a->far_valid_until_ns);
	put(&page->pruned_valid_until_ns, a->pruned_valid_until_ns);
	write_end(page);
	return 0;
}

static int far_compare(const void *left, const void *right)
{
	const struct mfs_far_port *a = left, *b = right;
	uint64_t x[3], y[3];

	memcpy(x, a->peer, sizeof(a->peer));
	memcpy(y, b->peer, sizeof(b->peer));
	x[2] = a->direction;
	y[2] = b->direction;
	for (unsigned i = 0; i < 3; i++)
		if (x[i] != y[i])
			return x[i] < y[i] ? -1 : 1;
	return 0;
}

static int id_compare(const void *left, const void *right)
{
	uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;

	return a < b ? -1 : a > b;
}

int mfs_arbiter_outlook(struct mfs_arbiter *arbiter, struct mfs_far_port *fars, uint32_t fars_count,
			uint64_t *pruned, uint32_t pruned_count, uint64_t far_valid_until_ns,
			uint64_t pruned_valid_until_ns)
{
	struct outlook_argument a =
		{fars, pruned, fars_count, pruned_count, far_valid_until_ns, pruned_valid_until_ns};

	if (fars_count > MFS_OUTLOOK_FARS_MAX || pruned_count > MFS_OUTLOOK_PRUNED_MAX)
		return -EINVAL;
	for (uint32_t i = 0; i < fars_count; i++)
		if (fars[i].direction >= MFS_DIRECTIONS)
			return -EINVAL;
	if (!arbiter->outlook)
		return 0;
	/* sorted on the caller's thread, so the arbiter only copies */
	qsort(fars, fars_count, sizeof(*fars), far_compare);
	qsort(pruned, pruned_count, sizeof(*pruned), id_compare);
	return arbiter_command(arbiter, run_outlook, &a);
}

/* ---- requests that still queue at an engine ---------------------------------------------------------------------- */

void waiting_notice(struct mfs_arbiter *arbiter)
{
	if (!arbiter->waiting_changed || arbiter->now_ns - arbiter->notice_ns < WAITING_NOTICE_NS)
		return;
	arbiter->waiting_changed = false;
	arbiter_notice(arbiter);
}
