/* Reads the outlook page (mfs/outlook.h). Whatever the page contains, a call ends after a bounded number
 * of steps. It returns what it copied between two equal readings of the sequence, or that nothing is
 * known. mfsd/policy/outlook.py has the same arithmetic, and tests compare both. */
#include "state.h"

#include <errno.h>
#include <string.h>

#include "../base/clock.h"

static uint64_t get(const _Atomic uint64_t *word)
{
	return atomic_load_explicit((_Atomic uint64_t *)word, memory_order_relaxed);
}

static uint32_t get_count(const _Atomic uint32_t *word, uint32_t most)
{
	uint32_t n = atomic_load_explicit((_Atomic uint32_t *)word, memory_order_relaxed);

	return n <= most ? n : 0;
}

/* Returns the sequence. An odd one means that the page is being written. */
static uint32_t read_begin(const struct mfs_outlook *page)
{
	return atomic_load_explicit((_Atomic uint32_t *)&page->sequence, memory_order_acquire);
}

static bool read_whole(const struct mfs_outlook *page, uint32_t sequence)
{
	atomic_thread_fence(memory_order_acquire);
	return !(sequence & 1) &&
	       atomic_load_explicit((_Atomic uint32_t *)&page->sequence, memory_order_relaxed) == sequence;
}

static bool holds(uint64_t until_ns, uint64_t now_ns)
{
	return now_ns <= until_ns && until_ns - now_ns <= MFS_OUTLOOK_TTL_MAX_NS;
}

/* True if the page may be trusted. If not, nothing else in it is worth reading. */
static bool believed(const struct mfs_client *client, uint64_t now_ns)
{
	const struct mfs_outlook *page = client->outlook;

	return page && (uint32_t)page->epoch == client->epoch && holds(get(&page->valid_until_ns), now_ns);
}

/* The second table has entries only if all entries of the first are in use. */
static uint32_t ports_count(const struct mfs_outlook *page)
{
	uint32_t first = get_count(&page->ports, MFS_OUTLOOK_PORTS_FIRST);

	return first < MFS_OUTLOOK_PORTS_FIRST ? first
					       : first + get_count(&page->ports_more, MFS_OUTLOOK_PORTS_MORE);
}

static void port_read(const struct mfs_outlook_port *from, struct mfs_port_outlook *to)
{
	to->rate_bytes_per_s = get(&from->rate_bytes_per_s);
	for (unsigned t = 0; t < MFS_OUTLOOK_TIERS; t++)
		to->waiting_bytes[t] = get(&from->waiting_bytes[t]);
	to->in_flight_bytes = get(&from->in_flight_bytes);
	to->achieved_bytes_per_s = get(&from->achieved_bytes_per_s);
	to->unscheduled_bytes_per_s = get(&from->unscheduled_bytes_per_s);
}

int mfs_client_outlook_port(const struct mfs_client *client, unsigned nic, enum mfs_direction direction,
			    uint64_t now_ns, struct mfs_port_outlook *port)
{
	const struct mfs_outlook *page = client->outlook;
	uint32_t at = nic * MFS_DIRECTIONS + direction;

	if (nic >= MFS_NICS_MAX || direction >= MFS_DIRECTIONS)
		return -EINVAL;
	for (int tries = 0; tries < MFS_OUTLOOK_TRIES && believed(client, now_ns); tries++) {
		uint32_t sequence = read_begin(page);
		bool known = at < ports_count(page);

		if (known)
			port_read(mfs_outlook_port_of(page, at), port);
		if (read_whole(page, sequence))
			return known && port->rate_bytes_per_s ? 0 : -ENODATA;
	}
	return -ENODATA;
}

/* Compares a key with an entry, in the order of the table: -1 below, 0 equal, 1 above. */
static int far_order(const struct mfs_outlook_far *far, const uint64_t key[3])
{
	const uint64_t at[3] = {get(&far->peer[0]), get(&far->peer[1]), get(&far->direction)};

	for (unsigned i = 0; i < 3; i++)
		if (key[i] != at[i])
			return key[i] < at[i] ? -1 : 1;
	return 0;
}

static bool far_find(const struct mfs_outlook *page, const uint64_t key[3], struct mfs_far_outlook *far)
{
	uint32_t low = 0, high = get_count(&page->fars, MFS_OUTLOOK_FARS_MAX);

	while (low < high) {
		uint32_t middle = (low + high) / 2;
		int order = far_order(&page->far[middle], key);

		if (order == 0) {
			far->rate_bytes_per_s = get(&page->far[middle].rate_bytes_per_s);
			far->owed_ns = get(&page->far[middle].owed_ns);
			far->achieved_bytes_per_s = get(&page->far[middle].achieved_bytes_per_s);
			return true;
		}
		if (order < 0)
			high = middle;
		else
			low = middle + 1;
	}
	return false;
}

int mfs_client_outlook_far(const struct mfs_client *client, const uint8_t peer[16],
			   enum mfs_direction direction, uint64_t now_ns, struct mfs_far_outlook *far)
{
	const struct mfs_outlook *page = client->outlook;
	uint64_t key[3] = {0, 0, direction};

	memcpy(key, peer, 16);
	for (int tries = 0; tries < MFS_OUTLOOK_TRIES && believed(client, now_ns); tries++) {
		uint32_t sequence = read_begin(page);
		bool known = far_find(page, key, far);
		uint64_t until_ns = get(&page->far_valid_until_ns);

		if (!read_whole(page, sequence))
			continue;
		if (!known)
			return -ENODATA;
		if (!holds(until_ns, now_ns))
			far->owed_ns = MFS_OUTLOOK_UNKNOWN;
		return 0;
	}
	return -ENODATA;
}

/* True while the table of pruned requests is valid. A daemon of a lower minor version gives it no time of its own. */
static bool pruned_holds(const struct mfs_client *client, const struct mfs_outlook *page, uint64_t now_ns)
{
	return client->minor < MFS_OUTLOOK_PRUNED_MINOR || holds(get(&page->pruned_valid_until_ns), now_ns);
}

int mfs_client_pruned(const struct mfs_client *client, uint64_t request_id, uint64_t now_ns)
{
	const struct mfs_outlook *page = client->outlook;

	for (int tries = 0; tries < MFS_OUTLOOK_TRIES && believed(client, now_ns); tries++) {
		uint32_t sequence = read_begin(page), low = 0,
			 high = get_count(&page->pruned, MFS_OUTLOOK_PRUNED_MAX);
		bool found = false, known = pruned_holds(client, page, now_ns);

		while (low < high && !found) {
			uint32_t middle = (low + high) / 2;
			uint64_t id = get(&page->pruned_request[middle]);

			found = id == request_id;
			if (request_id < id)
				high = middle;
			else
				low = middle + 1;
		}
		if (read_whole(page, sequence))
			return !found ? 0 : known ? 1 : -ENODATA;
	}
	return -ENODATA;
}

int mfs_client_outlook(const struct mfs_client *client, uint64_t now_ns, struct mfs_outlook *copy)
{
	const struct mfs_outlook *page = client->outlook;

	if (!page)
		return -ENOENT;
	for (int tries = 0; tries < MFS_OUTLOOK_TRIES && believed(client, now_ns); tries++) {
		uint32_t sequence = read_begin(page);

		for (size_t i = 0; i < sizeof(*copy) / sizeof(uint64_t); i++)
			((uint64_t *)copy)[i] = __atomic_load_n((const uint64_t *)page + i, __ATOMIC_RELAXED);
		if (!read_whole(page, sequence))
			continue;
		atomic_init(&copy->ports_more,
			    ports_count(copy) - get_count(&copy->ports, MFS_OUTLOOK_PORTS_FIRST));
		atomic_init(&copy->ports, get_count(&copy->ports, MFS_OUTLOOK_PORTS_FIRST));
		atomic_init(&copy->fars, get_count(&copy->fars, MFS_OUTLOOK_FARS_MAX));
		atomic_init(&copy->pruned, pruned_holds(client, copy, now_ns)
						   ? get_count(&copy->pruned, MFS_OUTLOOK_PRUNED_MAX)
						   : 0);
		if (!holds(get(&copy->far_valid_until_ns), now_ns))
			atomic_init(&copy->far_valid_until_ns, 0);
		return 0;
	}
	return -ENODATA;
}

/* ---- how long a fetch takes: mfsd/policy/outlook.py --------------------------------------------------------------- */

/* Rounded up, and limited to INT64_MAX. */
static uint64_t transfer_ns(uint64_t bytes, uint64_t rate_bytes_per_s)
{
	unsigned __int128 ns =
		((unsigned __int128)bytes * 1000000000u + rate_bytes_per_s - 1) / rate_bytes_per_s;

	return ns < INT64_MAX ? (uint64_t)ns : INT64_MAX;
}

static uint64_t sum(uint64_t a, uint64_t b)
{
	return a < INT64_MAX && b < INT64_MAX - a ? a + b : INT64_MAX;
}

static uint64_t rate_left(const struct mfs_port_outlook *port)
{
	uint64_t least = port->rate_bytes_per_s / MFS_OUTLOOK_RATE_SHARE_LEAST;
	uint64_t left = port->rate_bytes_per_s > port->unscheduled_bytes_per_s
				? port->rate_bytes_per_s - port->unscheduled_bytes_per_s
				: 0;

	left = left > least ? left : least;
	return left ? left : 1;
}

static uint64_t far_transfer_ns(const struct mfs_fetch *fetch, const struct mfs_port_outlook *own,
				const struct mfs_far_outlook *far)
{
	uint64_t rate = far->rate_bytes_per_s ? far->rate_bytes_per_s : own->rate_bytes_per_s;
	uint64_t announced_ns = transfer_ns(fetch->announced_bytes, rate);

	return sum(far->owed_ns > announced_ns ? far->owed_ns - announced_ns : 0,
		   transfer_ns(fetch->far_bytes, rate));
}

uint64_t mfs_fetch_forecast(const struct mfs_fetch *fetch, const struct mfs_port_outlook *own,
			    const struct mfs_far_outlook *far, enum mfs_tier tier)
{
	uint64_t ahead = own->in_flight_bytes, own_ns, far_ns = 0;

	for (unsigned t = 0; t <= tier && t < MFS_OUTLOOK_TIERS; t++)
		ahead = sum(ahead, own->waiting_bytes[t]);
	own_ns = transfer_ns(sum(ahead, fetch->bytes), rate_left(own));
	if (far && far->owed_ns != MFS_OUTLOOK_UNKNOWN)
		far_ns = far_transfer_ns(fetch, own, far);
	else if (far && far->achieved_bytes_per_s)
		far_ns = transfer_ns(fetch->far_bytes, far->achieved_bytes_per_s);
	return own_ns > far_ns ? own_ns : far_ns;
}

int mfs_client_fetch_ns(const struct mfs_client *client, unsigned nic, const struct mfs_fetch *fetch,
			const uint8_t peer[16], uint64_t deadline_ns, uint64_t *ns)
{
	uint64_t now_ns = mfs_clock_ns();
	struct mfs_port_outlook own;
	struct mfs_far_outlook far;
	int rc = mfs_client_outlook_port(client, nic, MFS_DIRECTION_IN, now_ns, &own);
	bool far_known;

	if (rc < 0)
		return rc;
	far_known = peer && mfs_client_outlook_far(client, peer, MFS_DIRECTION_IN, now_ns, &far) == 0;
	*ns = mfs_fetch_forecast(fetch, &own, far_known ? &far : NULL,
				 deadline_ns ? MFS_TIER_EARLY : MFS_TIER_SCAVENGER);
	return 0;
}
