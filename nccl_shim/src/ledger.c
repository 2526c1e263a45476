/* See ledger.h. */
#include "ledger.h"

void shim_ledger_mark(struct shim_qp *q, uint64_t head, uint64_t bytes)
{
	shim_ledger_signal(q, head, bytes, atomic_load(&q->wr_posted) | SHIM_SIGNAL_MARK, q->run_stage);
}
