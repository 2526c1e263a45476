/* Wakes the daemon's Python: an eventfd rings, and it then asks which batches came, went or changed. */
#include "state.h"

#include <unistd.h>

#define LAYER_NOTICE_NS 100000000ull /* shortest time between notices of layer boundaries */

void arbiter_notice(struct mfs_arbiter *arbiter)
{
	uint64_t one = 1;

	if (arbiter->noticed)
		return;
	arbiter->noticed = true;
	arbiter->notice_ns = arbiter->now_ns;
	if (write(arbiter->notice, &one, sizeof(one)) < 0)
		arbiter->noticed = false; /* if the eventfd is full, it has rung */
}

/* An arrival or departure is reported at once, a layer boundary with the next notice that is due. */
void batch_notice(struct mfs_arbiter *arbiter, struct session *session, uint32_t batch, bool at_once)
{
	session->batches_changed |= 1ull << batch;
	if (at_once || arbiter->now_ns - arbiter->notice_ns >= LAYER_NOTICE_NS)
		arbiter_notice(arbiter);
}

int mfs_arbiter_notice_fd(const struct mfs_arbiter *arbiter)
{
	return arbiter->notice;
}
