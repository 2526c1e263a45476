/* Fuzzes what a program reads from the outlook page: whatever lies there, torn, garbage or lying, every call ends, changes
 * nothing, and answers within its bounds or that nothing is known. */
#include "../../csrc/client/outlook.c"
#include "input.h"

#include <stdlib.h>

enum { EPOCH = 7, SCRIBBLES = 64 };

static struct mfs_outlook page, before;

#define CHECK(condition)             \
	do {                         \
		if (!(condition))    \
			abort();     \
	} while (0)

static void fill(struct input *in, uint64_t now_ns)
{
	memset(&page, 0, sizeof(page));
	page.magic = MFS_OUTLOOK_MAGIC;
	page.bytes = sizeof(page);
	page.epoch = EPOCH;
	atomic_store(&page.ports, (uint32_t)take(in, 1) % 4 * 2);
	if (take(in, 1) & 1) {
		atomic_store(&page.ports, MFS_OUTLOOK_PORTS_FIRST);
		atomic_store(&page.ports_more, (uint32_t)take(in, 1) % (MFS_OUTLOOK_PORTS_MORE + 2));
	}
	atomic_store(&page.fars, (uint32_t)take(in, 1));
	atomic_store(&page.pruned, (uint32_t)take(in, 2) % (MFS_OUTLOOK_PRUNED_MAX + 1));
	atomic_store(&page.valid_until_ns, now_ns + 1000000000 + take(in, 4));
	atomic_store(&page.far_valid_until_ns, now_ns + take(in, 5));
	atomic_store(&page.pruned_valid_until_ns, now_ns + take(in, 5));
	for (unsigned i = 0; i < 8; i++) {
		atomic_store(&page.port[i].rate_bytes_per_s, take(in, 4));
		atomic_store(&page.port[i].waiting_bytes[i % MFS_OUTLOOK_TIERS], take(in, 8));
		atomic_store(&page.port_more[i].rate_bytes_per_s, take(in, 2));
		atomic_store(&page.far[i].peer[1], i);
		atomic_store(&page.far[i].owed_ns, take(in, 8));
		atomic_store(&page.pruned_request[i], i * take(in, 1));
	}
}

/* Words of the head, where a lie does most, and of the rest. */
static void scribble(struct input *in)
{
	uint64_t *words = (uint64_t *)&page;
	size_t most = take(in, 1) & 1 ? offsetof(struct mfs_outlook, port) : sizeof(page);

	words[take(in, 2) % (most / sizeof(*words))] = take(in, take(in, 1) & 1 ? 8 : 4);
}

static bool honest(uint64_t now_ns)
{
	uint64_t until_ns = atomic_load(&page.valid_until_ns);

	return !(atomic_load(&page.sequence) & 1) && (uint32_t)page.epoch == EPOCH && now_ns <= until_ns &&
	       until_ns - now_ns <= MFS_OUTLOOK_TTL_MAX_NS;
}

static bool pruned_known(const struct mfs_client *client, uint64_t now_ns)
{
	uint64_t until_ns = atomic_load(&page.pruned_valid_until_ns);

	return client->minor < MFS_OUTLOOK_PRUNED_MINOR ||
	       (now_ns <= until_ns && until_ns - now_ns <= MFS_OUTLOOK_TTL_MAX_NS);
}

static void read_all(struct input *in, const struct mfs_client *client, uint64_t now_ns)
{
	static _Alignas(64) struct mfs_outlook copy;
	uint64_t peer[2] = {take(in, 1) & 1, take(in, 1)}, ns = 0;
	struct mfs_port_outlook port;
	struct mfs_far_outlook far;
	struct mfs_fetch fetch;
	unsigned nic = (unsigned)take(in, 1);
	int rc;

	for (unsigned d = 0; d < 3; d++) {
		rc = mfs_client_outlook_port(client, nic, d, now_ns, &port);
		CHECK(rc == 0 ? honest(now_ns) && port.rate_bytes_per_s && nic < MFS_NICS_MAX && d < MFS_DIRECTIONS
			      : rc == -ENODATA || rc == -EINVAL);
		rc = mfs_client_outlook_far(client, (const uint8_t *)peer, d, now_ns, &far);
		CHECK(rc == 0 ? honest(now_ns) : rc == -ENODATA);
	}
	rc = mfs_client_pruned(client, take(in, 1), now_ns);
	CHECK(rc == -ENODATA ? !honest(now_ns) || !pruned_known(client, now_ns)
			     : honest(now_ns) && (rc == 0 || (rc == 1 && pruned_known(client, now_ns))));
	rc = mfs_client_outlook(client, now_ns, &copy);
	CHECK(rc == -ENODATA ? !honest(now_ns)
			     : rc == 0 && copy.ports <= MFS_OUTLOOK_PORTS_FIRST &&
				       copy.ports_more <= MFS_OUTLOOK_PORTS_MORE &&
				       (!copy.ports_more || copy.ports == MFS_OUTLOOK_PORTS_FIRST) && copy.fars <= MFS_OUTLOOK_FARS_MAX &&
				       copy.pruned <= MFS_OUTLOOK_PRUNED_MAX);
	fetch = (struct mfs_fetch){take(in, 8), take(in, 8), take(in, 8)};
	rc = mfs_client_fetch_ns(client, nic, &fetch, take(in, 1) & 1 ? (const uint8_t *)peer : NULL, take(in, 1) & 1,
				 &ns);
	CHECK(rc == 0 ? ns <= INT64_MAX : rc == -ENODATA || rc == -EINVAL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct mfs_client client;
	struct input in = {data, size};
	uint64_t now_ns = mfs_clock_ns();

	client.outlook = &page;
	client.epoch = EPOCH;
	client.minor = MFS_OUTLOOK_PRUNED_MINOR - (uint32_t)(take(&in, 1) & 1);
	fill(&in, now_ns);
	for (unsigned i = 0; i < SCRIBBLES && in.left; i++) {
		scribble(&in);
		memcpy(&before, &page, sizeof(page));
		read_all(&in, &client, now_ns);
		CHECK(memcmp(&before, &page, sizeof(page)) == 0);
	}
	return 0;
}
