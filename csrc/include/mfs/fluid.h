/* Exact rates of flows that share links under strict priority, for the simulator.
 *
 * A flow crosses a list of links and uses share * rate of each. Flows of smaller `order` go first: what
 * they take is not available to larger orders on the same link. Flows of equal order share by weighted
 * max-min: no flow's level (rate / weight) can be raised without lowering that of a flow of the same order
 * whose level is not higher. A network of K classes uses K orders; a perfect scheduler gives every flow
 * its own.
 *
 * The allocation after each change is exact, but only flows whose rate may change are visited. Changes are
 * followed from smaller orders to larger ones, link by link, and end where what is left for an order has
 * not changed.
 *
 * Units: bytes, seconds, bytes per second. Single threaded. Functions that can fail return -errno. */
#ifndef MFS_FLUID_H
#define MFS_FLUID_H

#include <stddef.h>
#include <stdint.h>

struct mfs_fluid;

/*
 * Flows whose bytes end within this time of the clock count as complete now: it joins symmetric completions.
 */
#define MFS_FLUID_INSTANT_S 1e-9

/* Makes an allocator over n_links links; capacity[i] >= 0 in bytes per second. -EINVAL, -ENOMEM. */
int mfs_fluid_create(struct mfs_fluid **out, uint32_t n_links, const double *capacity);
void mfs_fluid_destroy(struct mfs_fluid *net);

/* Adds a link and returns its number, or -errno. */
int64_t mfs_fluid_add_link(struct mfs_fluid *net, double capacity);
int mfs_fluid_set_capacity(struct mfs_fluid *net, uint32_t link, double capacity);

/*
 * Adds a flow and returns its number (numbers of removed flows are used again), or -errno. share may be
 * NULL: 1 everywhere. bytes may be 0: the flow then takes no capacity until it is refilled. Each link may be
 * named once.
 */
int64_t mfs_fluid_add(struct mfs_fluid *net, uint64_t order, double weight, double bytes, uint32_t n_links,
		      const uint32_t *links, const double *share);
int mfs_fluid_remove(struct mfs_fluid *net, uint32_t flow);

/*
 * Adds bytes behind those the flow still has. A flow that has just completed goes on without a new
 * allocation.
 */
int mfs_fluid_refill(struct mfs_fluid *net, uint32_t flow, double bytes);
int mfs_fluid_set_order(struct mfs_fluid *net, uint32_t flow, uint64_t order);

double mfs_fluid_now(const struct mfs_fluid *net);
/* Time of the next completion, INFINITY when none. Brings the rates up to date first. */
double mfs_fluid_next(struct mfs_fluid *net);
/* Moves the clock. -EINVAL when that would go back or jump over a completion. */
int mfs_fluid_advance(struct mfs_fluid *net, double now);
/* Writes up to max flows that are complete now and returns how many; each is reported once per filling. */
uint32_t mfs_fluid_take_completed(struct mfs_fluid *net, uint32_t *flows, uint32_t max);

/* Rate and bytes left of a flow now; -1 when there is no such flow. Brings the rates up to date first. */
double mfs_fluid_rate(struct mfs_fluid *net, uint32_t flow);
double mfs_fluid_remaining(struct mfs_fluid *net, uint32_t flow);
/*
 * Rate over a link of all orders below `before`, as last brought up to date; UINT64_MAX leaves out that very
 * last order.
 */
double mfs_fluid_link_rate(const struct mfs_fluid *net, uint32_t link, uint64_t before);

struct mfs_fluid_stats {
	uint64_t events; /* flows begun (added or refilled when idle) and completed */
	uint64_t solves; /* allocations brought up to date */
	uint64_t visits; /* flows visited by them */
};
struct mfs_fluid_stats mfs_fluid_stats(const struct mfs_fluid *net);

#endif
