/* The outlook page: what the network knows, for the programs that decide about requests.
 *
 * There is one page for all clients of a node. The daemon writes it and hands every client of minor 5 or
 * later a descriptor together with its segment. F_SEAL_FUTURE_WRITE keeps everyone but the daemon from
 * writing, and the seals on its size keep pages from being taken away. A kernel without that seal (before
 * 5.1) and a daemon before minor 5 have no page.
 *
 * A reader trusts a copy only when all of this holds. Otherwise it knows nothing and does what it would do
 * without a page:
 *  - `sequence` was even and the same before and after the copy (sequence lock; a reader tries
 *    MFS_OUTLOOK_TRIES times and never waits),
 *  - `epoch` is that of its segment,
 *  - it is not after `valid_until_ns`, which lies at most MFS_OUTLOOK_TTL_MAX_NS ahead. What the
 *    coordinator reports (owed_ns of far ports) has its own time, `far_valid_until_ns`, and expires with
 *    the coordinator. What the daemon's Python thread reports of pruned requests has
 *    `pruned_valid_until_ns`, because the arbiter's thread goes on writing the page when the Python thread
 *    hangs,
 *  - every count is within its table. Tables are sorted; a search in one that is not still ends.
 *
 * A shorter page is that of an older daemon. What it lacks reads as zero, which means that nothing is
 * known.
 *
 * Memory order: the writer stores `sequence` odd (relaxed), issues a release fence, stores the rest
 * relaxed, and stores `sequence` even with release. The reader loads it with acquire, the rest relaxed,
 * issues an acquire fence, and loads it again. */
#ifndef MFS_OUTLOOK_H
#define MFS_OUTLOOK_H

#include <mfs/abi.h>

#define MFS_OUTLOOK_MAGIC 0x004b4f4f4c53464dULL /* "MFSLOOK\0" in memory order */
#define MFS_OUTLOOK_MINOR 5                     /* the first version of the ABI that has the page */
#define MFS_OUTLOOK_PRUNED_MINOR 7              /* the first version in which pruned requests have a time */
#define MFS_OUTLOOK_TIERS 4                     /* enum mfs_tier */
#define MFS_OUTLOOK_PORTS_MAX (MFS_NICS_MAX * MFS_DIRECTIONS)
/* ports of the first NICs, which all versions of the page have; the others lie at its end */
#define MFS_OUTLOOK_PORTS_FIRST (MFS_NICS_FIRST * MFS_DIRECTIONS)
#define MFS_OUTLOOK_PORTS_MORE (MFS_OUTLOOK_PORTS_MAX - MFS_OUTLOOK_PORTS_FIRST)
#define MFS_OUTLOOK_BYTES_FIRST (128 + 64 * 32 + 64 * 256 + 8 * 1024) /* size of the shortest page */
#define MFS_OUTLOOK_FARS_MAX 256
#define MFS_OUTLOOK_PRUNED_MAX 1024
#define MFS_OUTLOOK_UNKNOWN UINT64_MAX
#define MFS_OUTLOOK_TTL_MAX_NS 60000000000ull /* the longest time to live */
#define MFS_OUTLOOK_TRIES 8
/* collectives are assumed to leave at least one part in this many of a port's rate */
#define MFS_OUTLOOK_RATE_SHARE_LEAST 16

/* One direction of a NIC of this node. Its number is NIC * MFS_DIRECTIONS + direction
 * (mfs_outlook_port_of). */
struct mfs_outlook_port {
	_Alignas(MFS_CACHE_LINE) _Atomic uint64_t rate_bytes_per_s;
	_Atomic uint64_t waiting_bytes[MFS_OUTLOOK_TIERS]; /* by the tier in which they were submitted */
	_Atomic uint64_t in_flight_bytes;                  /* permitted and not complete */
	_Atomic uint64_t achieved_bytes_per_s;             /* recent rate of traffic that asks for permits */
	_Atomic uint64_t unscheduled_bytes_per_s;          /* recent rate of traffic that never waits */
};
_Static_assert(sizeof(struct mfs_outlook_port) == 64, "a port is one cache line");

/* A port elsewhere that flows of this node go to or come from. */
struct mfs_outlook_far {
	_Alignas(MFS_CACHE_LINE) _Atomic uint64_t peer[2]; /* GID in its byte order */
	_Atomic uint64_t direction;                        /* of the flows, as seen from this node */
	_Atomic uint64_t rate_bytes_per_s;                 /* 0: unknown */
	/* time that the port needs for all that is promised there; or MFS_OUTLOOK_UNKNOWN */
	_Atomic uint64_t owed_ns;
	_Atomic uint64_t achieved_bytes_per_s; /* recent rate of this node's own flows there; 0: none */
	uint64_t reserved[2];
};
_Static_assert(sizeof(struct mfs_outlook_far) == 64, "a far port is one cache line");

struct mfs_outlook {
	/* constant after creation */
	uint64_t magic;
	uint64_t bytes; /* size of the page; later versions add at the end */
	uint64_t epoch; /* as in every segment of this daemon */
	uint8_t reserved0[40];
	_Alignas(MFS_CACHE_LINE) _Atomic uint32_t sequence;
	_Atomic uint32_t ports, fars, pruned; /* entries in use; ports: those of the first NICs */
	_Atomic uint64_t written_ns;          /* CLOCK_MONOTONIC, as all times here */
	_Atomic uint64_t valid_until_ns;
	_Atomic uint64_t far_valid_until_ns; /* 0: no coordinator reports anything */
	_Atomic uint32_t ports_more;         /* ports in use of the other NICs */
	uint8_t reserved1[4];
	/* since minor 7; before, they are valid as long as the page */
	_Atomic uint64_t pruned_valid_until_ns;
	uint8_t reserved2[8];
	struct mfs_outlook_port port[MFS_OUTLOOK_PORTS_FIRST];
	struct mfs_outlook_far far[MFS_OUTLOOK_FARS_MAX];        /* sorted by peer, then direction */
	_Atomic uint64_t pruned_request[MFS_OUTLOOK_PRUNED_MAX]; /* ascending */
	struct mfs_outlook_port port_more[MFS_OUTLOOK_PORTS_MORE];
};
_Static_assert(offsetof(struct mfs_outlook, sequence) == 64, "what changes has a line of its own");
_Static_assert(offsetof(struct mfs_outlook, port) == 128, "ports follow the head");
_Static_assert(offsetof(struct mfs_outlook, ports_more) == 104, "in the place of reserved bytes");
_Static_assert(offsetof(struct mfs_outlook, pruned_valid_until_ns) == 112, "in the place of reserved bytes");
_Static_assert(offsetof(struct mfs_outlook, port_more) == MFS_OUTLOOK_BYTES_FIRST,
	       "behind what older pages have");
_Static_assert(sizeof(struct mfs_outlook) == MFS_OUTLOOK_BYTES_FIRST + 64 * 96, "no holes");

static inline struct mfs_outlook_port *mfs_outlook_port_of(const struct mfs_outlook *page, uint32_t port)
{
	return (struct mfs_outlook_port *)(port < MFS_OUTLOOK_PORTS_FIRST
						   ? &page->port[port]
						   : &page->port_more[port - MFS_OUTLOOK_PORTS_FIRST]);
}

#endif
