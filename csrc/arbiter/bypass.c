/* What goes through a NIC past the programs that the arbiter knows: posted by a GPU, or by programs without the shim.
 *
 * The daemon's Python reads the port's counters, now and then and on a thread of its own; it takes off what is counted here and
 * hands the rest back as a load. That corrects estimates (load, drain of the windows, the outlook page) for as long as it
 * is valid. Whether a flow may go beside collectives never depends on it: gate.c.
 */
#include "state.h"

#include <errno.h>

static void usage_add(const struct session *session, uint32_t index, struct nic_posted *posted)
{
	for (unsigned s = 0; s < MFS_STAGES_MAX; s++) {
		/* completed first: then no more seems completed than posted */
		uint64_t completed = mfs_usage_completed(session->segment, index, s);
		uint64_t bytes = mfs_usage_posted(session->segment, index, s);

		*(MFS_STAGES_UNSCHEDULED >> s & 1 ? &posted->unscheduled_bytes : &posted->others_bytes) +=
			bytes;
		if (bytes > completed)
			posted->outstanding_bytes += bytes - completed;
	}
}

/* What the client has posted stays counted. */
void bypass_session_ended(struct mfs_arbiter *arbiter, const struct session *session)
{
	for (uint32_t i = 0; i < arbiter->nics; i++) {
		struct nic_posted last = {0};

		usage_add(session, i, &last);
		arbiter->nic[i].ended.unscheduled_bytes += last.unscheduled_bytes;
		arbiter->nic[i].ended.others_bytes += last.others_bytes;
	}
}

struct counted_argument {
	uint32_t nic;
	struct mfs_nic_counted *counted;
	uint64_t incoming_bytes;
};

static int run_counted(struct mfs_arbiter *arbiter, void *argument)
{
	struct counted_argument *a = argument;
	const struct nic *nic = &arbiter->nic[a->nic];

	if (a->nic >= arbiter->nics)
		return -ENOENT;
	for (unsigned d = 0; d < MFS_DIRECTIONS; d++)
		for (unsigned c = 0; c < MFS_CLASSES_MAX; c++)
			a->counted->class_bytes[d][c] = nic->direction[d].carried_bytes[c];
	a->incoming_bytes = nic->direction[MFS_DIRECTION_IN].in_flight_bytes;
	for (unsigned c = 0; c < MFS_CLASSES_MAX; c++)
		a->incoming_bytes += a->counted->class_bytes[MFS_DIRECTION_IN][c];
	return 0;
}

/* The segments are read on the caller's thread: there may be a thousand of them. `control` keeps them where they are. */
int mfs_arbiter_counted(struct mfs_arbiter *arbiter, uint32_t index, struct mfs_nic_counted *counted)
{
	struct counted_argument a = {.nic = index, .counted = counted};
	int rc = arbiter_command(arbiter, run_counted, &a);
	struct nic_posted posted;

	if (rc < 0)
		return rc;
	pthread_mutex_lock(&arbiter->control);
	posted = arbiter->nic[index].ended;
	for (uint32_t i = 0; i < arbiter->sessions; i++)
		usage_add(arbiter->session[i], index, &posted);
	pthread_mutex_unlock(&arbiter->control);
	/* The counters know no direction: what never waits comes in as much as it goes out, tasks know theirs, and the rest goes
	 * out. */
	counted->unscheduled_bytes = posted.unscheduled_bytes;
	counted->outstanding_bytes = posted.outstanding_bytes;
	counted->posted_bytes[MFS_DIRECTION_IN] = posted.unscheduled_bytes + a.incoming_bytes;
	counted->posted_bytes[MFS_DIRECTION_OUT] =
		posted.unscheduled_bytes +
		(posted.others_bytes > a.incoming_bytes ? posted.others_bytes - a.incoming_bytes : 0);
	return 0;
}

struct bypass_argument {
	uint32_t nic;
	const uint64_t *bytes_per_s;
	uint64_t valid_until_ns;
};

static int run_bypass(struct mfs_arbiter *arbiter, void *argument)
{
	const struct bypass_argument *a = argument;

	if (a->nic >= arbiter->nics)
		return -ENOENT;
	for (unsigned d = 0; d < MFS_DIRECTIONS; d++)
		arbiter->nic[a->nic].bypass.bytes_per_s[d] = (double)a->bytes_per_s[d];
	arbiter->nic[a->nic].bypass.valid_until_ns = a->valid_until_ns;
	nic_moved(arbiter, a->nic);
	return 0;
}

int mfs_arbiter_bypass(struct mfs_arbiter *arbiter, uint32_t nic, const uint64_t bytes_per_s[MFS_DIRECTIONS],
		       uint64_t valid_until_ns)
{
	struct bypass_argument a = {nic, bytes_per_s, valid_until_ns};

	return arbiter_command(arbiter, run_bypass, &a);
}

/* More than the link carries is not believed. */
double bypass_rate(const struct mfs_arbiter *arbiter, const struct nic *nic, unsigned direction)
{
	double rate = (double)nic->rate_bytes_per_s, bypass = nic->bypass.bytes_per_s[direction];

	if (arbiter->now_ns >= nic->bypass.valid_until_ns)
		return 0.0;
	return bypass < rate ? bypass : rate;
}
