/* A daemon that does exactly what a test asks for: it hands out the segment, keeps the heartbeat, records
 * what is submitted, and grants on request. It runs on a thread of the test itself. */
#ifndef SCRIPTED_DAEMON_H
#define SCRIPTED_DAEMON_H

#include <mfs/abi.h>
#include <stdbool.h>

struct daemon;

struct daemon_options {
	const char *path;
	struct mfs_rule rules[8];
	int rules_count;
	uint32_t gate;		 /* stages that must ask */
	uint64_t max_hold_ns;	 /* 0: an hour */
	uint64_t stale_after_ns; /* 0: 1000 s, so that a loaded machine does not look like a dead daemon */
	enum mfs_mode mode;
	uint64_t rate_bytes_per_s; /* of its NIC; 0: unknown */
	int nic; /* index of every NIC that it is asked about */
	uint16_t major;		 /* 0: the right one */
	uint16_t older;		 /* by so many minor versions; as those did, it refuses a task that says a higher one */
	int welcome_error;
	int nic_error; /* the answer to every question for a NIC's index */
	bool grant_all;
	int nics_unanswered; /* this many questions for a NIC's index are answered only when the next one comes */
	uint8_t dscp[MFS_CLASSES_MAX];
};

struct daemon_counts {
	uint64_t attached, submitted, granted, completed, cancelled, bypassed, submitted_bytes, requests, named;
};

struct daemon *daemon_start(const struct daemon_options *options);
/* Returns whether the latest daemon that gives segments has named a NIC: a client on a loaded machine may
 * have to ask twice. True if there is no such daemon. */
bool daemon_has_named(void);
bool daemon_was_asked_for(struct daemon *d, const char *nic); /* its latest question for a NIC was for this one */
void daemon_kill(struct daemon *d); /* as SIGKILL: the socket closes, the segment stays as it was */
void daemon_pause(struct daemon *d, bool yes); /* as SIGSTOP */
void daemon_grant(struct daemon *d, unsigned n);
void daemon_grant_last(struct daemon *d); /* the latest submitted task, before the others */
void daemon_gate(struct daemon *d, uint32_t gate);
void daemon_mode(struct daemon *d, enum mfs_mode mode);
void daemon_rules(struct daemon *d, const struct mfs_rule *rules, int n);
void daemon_grant_all(struct daemon *d, bool yes);
struct daemon_counts daemon_counts(struct daemon *d);
struct mfs_message daemon_submitted(struct daemon *d, unsigned i); /* the i-th task, in the order in which they came */
struct mfs_segment *daemon_segment(struct daemon *d); /* of the latest client */

#endif
