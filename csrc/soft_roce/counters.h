/*
 * Bytes that the device has carried, in the files and the form of a kernel driver's counters.
 *
 * All processes that use the device map one file and add to it. From time to time one of them writes the
 * sums as text to ports/1/counters and ports/1/hw_counters. These files are mapped, too, so that no path
 * that moves bytes makes a system call for counting.
 */
#ifndef MFS_SOFT_ROCE_COUNTERS_H
#define MFS_SOFT_ROCE_COUNTERS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum mfs_counter { MFS_SENT, MFS_RECEIVED, MFS_COUNTER_DIRECTIONS };
enum { MFS_PRIORITIES = 8, MFS_COUNTERS_SHOWN_MS = 5 };

struct mfs_counters_page;
struct mfs_counter_text;

struct mfs_counters {
	struct mfs_counters_page *page; /* NULL: the device has no counters */
	struct mfs_counter_text *words[MFS_COUNTER_DIRECTIONS];
	struct mfs_counter_text *priority[MFS_COUNTER_DIRECTIONS][MFS_PRIORITIES];
	_Atomic bool pending; /* something was counted that the text may lack */
};

/* Maps the files under the device's sysfs directory; a device without them counts nothing. Returns 0 or -errno. */
int mfs_counters_open(struct mfs_counters *counters, const char *device_path);
/* Brings the text up to date and unmaps the files. */
void mfs_counters_close(struct mfs_counters *counters);

/* Counts bytes under the priority of the class selector (the upper three bits), as NICs do by default. */
void mfs_counters_add(struct mfs_counters *counters, enum mfs_counter direction, uint8_t traffic_class,
		      uint64_t bytes);
/* Writes the text if something is pending, unless some process has done so in the last
 * MFS_COUNTERS_SHOWN_MS. */
void mfs_counters_show(struct mfs_counters *counters, uint64_t now_ns);

#endif
