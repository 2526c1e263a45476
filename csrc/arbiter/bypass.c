/* Traffic of a NIC that goes past the programs that the arbiter knows: posted by a GPU, or by programs
 * without the shim.
 *
 * The daemon's Python reads the port's counters now and then, on a thread of its own. It subtracts what is
 * counted here and passes the rest back as a load. While that is valid it corrects estimates (load, drain
 * of the windows, the outlook page). Whether a flow may go beside collectives never depends on it: gate.c. */
#include "state.h"

#include <errno.h>

/* Adds the counts of one client. What it posts through libibverbs is counted by its preloaded library,
 * with or without permits. What it has permits for may be posted past the library (UCX's rc_mlx5), and
 * then the arbiter knows only the permits. For a client that does both, the larger count is taken. */
static void session_add(const struct session *session, uint32_t index, struct nic_posted *posted)
{
	const struct session_direction *in = &session->nic[index].direction[MFS_DIRECTION_IN];
	const struct session_direction *out = &session->nic[index].direction[MFS_DIRECTION_OUT];
	uint64_t in_flight = word_read(&in->in_flight_bytes) + word_read(&out->in_flight_bytes);
	uint64_t permitted_in = word_read(&in->permitted_bytes);
	uint64_t permitted_out = word_read(&out->permitted_bytes);
	uint64_t others = 0, outstanding = 0;

	for (unsigned s = 0; s < MFS_STAGES_MAX; s++) {
		/* completed first, so no more seems completed than posted */
		uint64_t completed = mfs_usage_completed(session->segment, index, s);
		uint64_t bytes = mfs_usage_posted(session->segment, index, s);

		*(MFS_STAGES_UNSCHEDULED >> s & 1 ? &posted->unscheduled_bytes : &others) += bytes;
		if (bytes > completed)
			outstanding += bytes - completed;
	}
	/* The library's counters know no direction. What never waits comes in as much as it goes out,
	 * tasks know their direction, and the rest goes out. */
	others = others > permitted_in ? others - permitted_in : 0;
	posted->others_bytes[MFS_DIRECTION_IN] += permitted_in;
	posted->others_bytes[MFS_DIRECTION_OUT] += others > permitted_out ? others : permitted_out;
	posted->outstanding_bytes += outstanding > in_flight ? outstanding : in_flight;
}

/* What the client has posted still counts after it has ended. */
void bypass_session_ended(struct mfs_arbiter *arbiter, const struct session *session)
{
	for (uint32_t i = 0; i < arbiter->nics; i++) {
		struct nic_posted *ended = &arbiter->nic[i].ended;

		session_add(session, i, ended);
		ended->outstanding_bytes = 0;
	}
}

struct counted_argument {
	uint32_t nic;
	struct mfs_nic_counted *counted;
};

static int run_counted(struct mfs_arbiter *arbiter, void *argument)
{
	struct counted_argument *a = argument;

	if (a->nic >= arbiter->nics)
		return -ENOENT;
	for (unsigned d = 0; d < MFS_DIRECTIONS; d++)
		for (unsigned c = 0; c < MFS_CLASSES_MAX; c++)
			a->counted->class_bytes[d][c] = arbiter->nic[a->nic].direction[d].carried_bytes[c];
	return 0;
}

/* The segments are read on the caller's thread, since there may be a thousand of them. `control` keeps
 * them mapped meanwhile. */
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
		session_add(arbiter->session[i], index, &posted);
	pthread_mutex_unlock(&arbiter->control);
	counted->unscheduled_bytes = posted.unscheduled_bytes;
	counted->outstanding_bytes = posted.outstanding_bytes;
	for (unsigned d = 0; d < MFS_DIRECTIONS; d++)
		counted->posted_bytes[d] = posted.unscheduled_bytes + posted.others_bytes[d];
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
