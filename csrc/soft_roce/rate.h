/*
 * The device's rate limit: a virtual clock in a file that every process using the device maps.
 *
 * The clock is the time until which the link is taken. A sender of n bytes advances it by the time that
 * they take, with one compare-and-swap, and may send at the time that it found there. A process that dies
 * loses at most its own turns. A sender that has more to send than one turn, and is woken late, takes its
 * next turn from the time of its last one, so late wake-ups cost no rate. A link that was idle starts with
 * hardly any credit.
 */
#ifndef MFS_SOFT_ROCE_RATE_H
#define MFS_SOFT_ROCE_RATE_H

#include <stdint.h>

struct mfs_rate_page;

struct mfs_rate {
	struct mfs_rate_page *page; /* NULL: the device has no limit */
};

/* Maps the clock under the device's sysfs directory; a device without one has no limit. Returns 0 or
 * -errno. */
int mfs_rate_open(struct mfs_rate *rate, const char *device_path);
void mfs_rate_close(struct mfs_rate *rate);

/* Returns the bytes per turn at the present rate; 0: there is no limit. */
uint32_t mfs_rate_turn_bytes(const struct mfs_rate *rate);

/* Reserves the next turn on the link, for `bytes`. Returns when it begins, on CLOCK_MONOTONIC.
 * `waiting_since_ns` is when the caller's last turn began if it has had more to send ever since, otherwise
 * now. */
uint64_t mfs_rate_reserve(const struct mfs_rate *rate, uint32_t bytes, uint64_t now_ns,
			  uint64_t waiting_since_ns);

#endif
