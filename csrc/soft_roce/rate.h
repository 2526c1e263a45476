/*
 * The device's rate limit: a virtual clock in a file that every process using the device maps.
 *
 * The clock says until when the link is taken. A sender of n bytes moves it on by the time these take,
 * with one compare-and-swap, and may send once the time that it found there has come. A process that dies
 * loses at most its own turns. A sender that has more to send than its turn, and is woken late, takes the next turn
 * from where its last one was, so late wake-ups cost no rate; a link that was idle starts with hardly any
 * credit.
 */
#ifndef MFS_SOFT_ROCE_RATE_H
#define MFS_SOFT_ROCE_RATE_H

#include <stdint.h>

struct mfs_rate_page;

struct mfs_rate {
	struct mfs_rate_page *page; /* NULL: the device has no limit */
};

/* Maps the clock under the device's sysfs directory; a device without one has no limit. Returns 0 or -errno.
 */
int mfs_rate_open(struct mfs_rate *rate, const char *device_path);
void mfs_rate_close(struct mfs_rate *rate);

/* Bytes per turn at the present rate; 0 when there is no limit. */
uint32_t mfs_rate_turn_bytes(const struct mfs_rate *rate);

/* Takes the next turn on the link for that many bytes; returns when it begins, on CLOCK_MONOTONIC.
 * `waiting_since_ns` is when the caller's last turn began if it has had more to send ever since, otherwise
 * now. */
uint64_t mfs_rate_reserve(const struct mfs_rate *rate, uint32_t bytes, uint64_t now_ns,
			  uint64_t waiting_since_ns);

#endif
