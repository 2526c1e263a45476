/* ibv_post_send of an open device. */
#include "post.h"

#include "../../csrc/base/clock.h"
#include "budget.h"
#include "classify.h"
#include "devices.h"
#include "gate.h"
#include "hold.h"
#include "ledger.h"
#include "metadata.h"
#include "owner.h"
#include "process.h"
#include "profiler.h"
#include "pump.h"
#include "qp_state.h"
#include "table.h"
#include "wake.h"

#include <errno.h>
#include <string.h>

static inline uint64_t wr_bytes(const struct ibv_send_wr *wr)
{
	uint64_t bytes = 0;

	if (unlikely(wr->opcode == IBV_WR_LOCAL_INV || wr->opcode == IBV_WR_BIND_MW))
		return 0;
	if (likely(wr->num_sge == 1))
		return wr->sg_list->length;
	for (int i = 0; i < wr->num_sge; i++)
		bytes += wr->sg_list[i].length;
	return bytes;
}

static always_inline void account_chain(struct shim_qp *q, struct shim_ledger *ledger,
					const struct ibv_send_wr *wr, const struct ibv_send_wr *until,
					uint64_t end)
{
	for (; wr != until; wr = wr->next)
		shim_ledger_add(q, ledger, wr_bytes(wr), q->sq_sig_all | (wr->send_flags & IBV_SEND_SIGNALED),
				++end, false);
}

/* The provider stopped at `at`: everything before that was posted, after what `ledger` had before. */
static never_inline void posted_in_part(struct shim_qp *q, const struct ibv_send_wr *wr,
					const struct ibv_send_wr *at, struct shim_ledger ledger,
					uint64_t bytes_published, bool alone)
{
	uint64_t first = atomic_load(&q->wr_posted);

	account_chain(q, &ledger, wr, at ? at : wr, first);
	shim_ledger_publish(q, bytes_published, &ledger, alone);
	atomic_store(&q->wr_posted, first + ledger.requests);
}

/* Owner flag held, and nothing was held before. Posts the caller's chain as it is. `alone`: entered with
 * shim_owner_enter. */
static always_inline int post_now(struct shim_qp *q, struct ibv_send_wr *wr, uint8_t stage, bool alone,
				  struct ibv_send_wr **bad)
{
	const uint64_t first = atomic_load_explicit(&q->wr_posted, memory_order_relaxed);
	struct shim_ledger ledger = shim_ledger_open(q, stage);
	/* copy single fields: copying the whole ledger is slow */
	const uint64_t head = ledger.head, bytes = ledger.bytes, marked = ledger.marked;
	struct ibv_send_wr *at = NULL;
	int rc;

	account_chain(q, &ledger, wr, NULL, first);
	shim_ledger_publish(q, bytes, &ledger, alone);
	rc = q->post_send(atomic_load_explicit(&q->qp, memory_order_relaxed), wr, &at);
	if (likely(!rc)) {
		atomic_store_explicit(&q->wr_posted, first + ledger.requests, memory_order_relaxed);
		return 0;
	}
	posted_in_part(q, wr, at,
		       (struct shim_ledger){.head = head, .bytes = bytes, .marked = marked, .stage = stage},
		       ledger.bytes, alone);
	if (bad)
		*bad = at;
	return rc;
}

/* The state before a post, for the case that it fails. It lies next to what the provider gets the address
 * of. So it is written to memory once and takes no registers from a post that succeeds. */
struct before {
	struct ibv_send_wr *at, *wr, **bad;
	uint64_t head, bytes, marked;
};

static never_inline int given_failed(struct shim_qp *q, const struct before *before, int rc)
{
	struct shim_ledger ledger = {.head = before->head,
				     .bytes = before->bytes,
				     .marked = before->marked,
				     .stage = q->run_stage};

	posted_in_part(q, before->wr, before->at, ledger, q->bytes_posted, true);
	atomic_store(&q->wr_next, atomic_load(&q->wr_posted));
	if (before->bad)
		*before->bad = before->at;
	return rc;
}

/* Entered with shim_owner_enter, and of the same stage as the last post, as nearly all posts are. Does
 * what post_now does, in two thirds of the instructions. */
static never_inline int post_given(struct shim_qp *q, struct ibv_qp *qp, struct ibv_send_wr *wr,
				   struct ibv_send_wr **bad)
{
	const uint64_t stage = q->run_stage;
	uint64_t end = atomic_load_explicit(&q->wr_posted, memory_order_relaxed), bytes = q->bytes_posted,
		 head;
	struct before before;
	int rc;

	before.at = NULL;
	before.wr = wr;
	before.bad = bad;
	before.head = atomic_load_explicit(&q->signal_head, memory_order_relaxed);
	before.bytes = bytes;
	before.marked = q->bytes_marked;
	for (struct ibv_send_wr *w = wr; w; w = w->next) {
		bytes += wr_bytes(w);
		end++;
		if (q->sq_sig_all | (w->send_flags & IBV_SEND_SIGNALED)) {
			head = atomic_load_explicit(&q->signal_head, memory_order_relaxed);
			shim_ledger_signal(q, head, bytes, end, (uint8_t)stage);
			q->bytes_marked = bytes;
			atomic_store_explicit(&q->signal_head, head + 1, memory_order_release);
		}
	}
	shim_count_alone(&q->posted_shard->bytes[stage], bytes - q->bytes_posted);
	q->bytes_posted = bytes;
	rc = q->post_send(qp, wr, &before.at);
	if (unlikely(rc)) {
		rc = given_failed(q, &before, rc);
	} else {
		atomic_store_explicit(&q->wr_posted, end, memory_order_relaxed);
		atomic_store_explicit(&q->wr_next, end, memory_order_relaxed);
	}
	shim_owner_exit(q);
	return rc;
}

/* Owner flag held. Takes the next indices for the chain and posts it. Returns false when something is held already. */
static never_inline bool post_at_once(struct shim_qp *q, struct ibv_send_wr *wr, uint8_t stage,
				      struct ibv_send_wr **bad, int *rc)
{
	uint64_t first = atomic_load(&q->wr_posted), end = first, posted;

	for (struct ibv_send_wr *w = wr; w; w = w->next)
		end++;
	uint64_t expected = first;

	if (!atomic_compare_exchange_strong(&q->wr_next, &expected, end))
		return false;
	*rc = post_now(q, wr, stage, false, bad);
	posted = atomic_load(&q->wr_posted);
	expected = end;
	if (posted != end && !atomic_compare_exchange_strong(&q->wr_next, &expected, posted)) {
		/* others have reserved behind us: what the provider did not take becomes holes */
		shim_count(&shim.held_requests, end - posted);
		for (uint64_t i = posted; i != end; i++)
			shim_hold_void(q, i);
		atomic_store(&q->wr_formed, posted);
	} else {
		atomic_store(&q->wr_formed, posted);
	}
	return true;
}

/* Total wait. It bounds a signal handler that waits for the thread it has interrupted, which would never end. */
#define BEHIND_WAIT_NS 1000000000

/* Posts natively behind everything that is held, so the provider itself answers for what is never held.
 * Waits for slots that others have reserved and not yet filled, as the provider would wait for its lock,
 * but only up to a bound. After that, and where the provider itself has no room, it returns ENOMEM, after
 * which every caller can try again. */
static int post_behind(struct shim_qp *q, struct ibv_send_wr *wr, uint8_t stage, struct ibv_send_wr **bad)
{
	uint64_t until_ns = mfs_clock_ns() + BEHIND_WAIT_NS;
	bool done = false, room = true;
	unsigned rounds = 0;
	int rc = ENOMEM;

	do {
		if (!shim_owner_acquire_for(q, BEHIND_WAIT_NS))
			break;
		if (atomic_load(&q->wr_posted) != atomic_load(&q->wr_next)) {
			atomic_store(&q->force, 1);
			room = shim_pump_owned(q) == 0;
		}
		done = post_at_once(q, wr, stage, bad, &rc);
		shim_owner_leave(q);
		if (!done)
			shim_owner_wait(16 * rounds++ + 15);
	} while (!done && room && mfs_clock_ns() < until_ns);
	if (!done)
		*bad = wr;
	return rc;
}

static never_inline int post_holding(struct shim_qp *q, struct ibv_send_wr *wr, const struct shim_tag *tag,
				     struct ibv_send_wr **bad)
{
	uint8_t stage = shim_stage_of(q, tag), state = atomic_load_explicit(&q->state, memory_order_relaxed);
	struct ibv_send_wr *rest = wr;
	bool done = false, over = false;
	int rc;

	if (unlikely((state != IBV_QPS_RTS && state != IBV_QPS_SQD) || atomic_load(&q->broken)))
		return post_behind(q, wr, stage, bad);
	if (shim_owner_try(q)) { /* the flag keeps the segment, which contains the gate, from going away */
		if (!shim_must_hold(q, stage) || (over = shim_budget_over(q)))
			done = post_at_once(q, wr, stage, bad, &rc);
		if (done && over)
			shim_count(&q->report->bypassed_hold, 1);
		shim_owner_leave(q);
		if (done)
			return rc;
	}
	rc = shim_hold_chain(q, wr, tag, &rest);
	shim_pump(q);
	if (rest != wr) /* also if there was no slot for the rest */
		shim_wake();
	if (rest && !rc)
		return post_behind(q, rest, stage, bad);
	if (rc)
		*bad = rest;
	return rc;
}

/* Owner flag held, for a queue pair that does not hold. */
static always_inline int post_owned(struct shim_qp *q, struct ibv_send_wr *wr, uint8_t stage, bool alone,
				    struct ibv_send_wr **bad)
{
	int rc = post_now(q, wr, stage, alone, bad);

	atomic_store_explicit(&q->wr_next, atomic_load_explicit(&q->wr_posted, memory_order_relaxed),
			      memory_order_relaxed);
	return rc;
}

/* A queue pair that does not hold: the owner flag is held no longer than the provider holds its own lock. */
static never_inline int post_passing(struct shim_qp *q, struct ibv_send_wr *wr, const struct shim_tag *tag,
				     struct ibv_send_wr **bad)
{
	int rc;

	shim_owner_acquire(q);
	/* it has begun to hold just now */
	if (unlikely(atomic_load_explicit(&q->holds, memory_order_relaxed))) {
		shim_owner_leave(q);
		return post_holding(q, wr, tag, bad);
	}
	rc = post_owned(q, wr, shim_stage_of(q, tag), false, bad);
	shim_owner_give(q);
	shim_owner_release(q);
	return rc;
}

static int post(struct shim_qp *q, struct ibv_send_wr *wr, const struct shim_tag *tag,
		struct ibv_send_wr **bad)
{
	int rc;

	if (likely(shim_owner_enter(q))) {
		rc = post_owned(q, wr, shim_stage_of(q, tag), true, bad);
		shim_owner_exit(q);
		return rc;
	}
	if (likely(!atomic_load_explicit(&q->holds, memory_order_acquire)))
		return post_passing(q, wr, tag, bad);
	return post_holding(q, wr, tag, bad);
}

static struct shim_tag tag_of(const struct ibv_send_wr *wr)
{
	bool any = wr->num_sge > 0 && wr->sg_list;

	return shim_tag_find(any, any ? wr->sg_list[0].addr : 0);
}

/* NCCL has announced what this thread sends: it is counted by communicator and never held. Clear-to-send
 * has its own queue pairs. */
static int post_collective(struct shim_qp *q, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct shim_tag tag = {.batch = shim_collective.batch, .layer = shim_collective.layer};
	uint64_t bytes = 0, requests = 0;
	int rc = post(q, wr, &tag, bad);

	for (; !rc && wr; wr = wr->next) {
		bytes += wr_bytes(wr);
		requests++;
	}
	if (!rc)
		shim_collective_sent(bytes, requests);
	return rc;
}

#define PIECE_MAX 32

static bool same_tag(const struct shim_tag *a, const struct shim_tag *b)
{
	return !memcmp(a, b, sizeof(*a));
}

/* Copies the first work requests of the chain that have the same tag as the very first one, as a chain of their
 * own. Returns how many; 0: all have that tag. Each tag is read once, since the engine may be changing it. */
static unsigned copy_piece(const struct ibv_send_wr *wr, const struct shim_tag *tag,
			   struct ibv_send_wr *copies)
{
	const struct ibv_send_wr *w;
	struct shim_tag other;
	unsigned n = 0;

	for (w = wr->next; w; w = w->next) {
		other = tag_of(w);
		if (!same_tag(tag, &other))
			break;
	}
	if (!w)
		return 0;
	for (; wr != w && n < PIECE_MAX; wr = wr->next, n++) {
		copies[n] = *wr;
		copies[n].next = &copies[n + 1];
	}
	copies[n - 1].next = NULL;
	return n;
}

/* Posts the chain in pieces of one tag each, so what is counted and submitted together is of one kind. The
 * chain belongs to the caller and may be in read-only memory, so it is copied. */
static never_inline int post_tagged(struct shim_qp *q, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct ibv_send_wr copies[PIECE_MAX], *bad_copy;
	struct shim_tag tag;
	unsigned n, taken;
	int rc;

	if (shim_collective.given &&
	    atomic_load_explicit(&q->role, memory_order_relaxed) == MFS_ROLE_NCCL_DATA)
		return post_collective(q, wr, bad);
	for (;;) {
		tag = tag_of(wr);
		n = copy_piece(wr, &tag, copies);
		if (!n)
			return post(q, wr, &tag, bad);
		bad_copy = copies;
		rc = post(q, copies, &tag, &bad_copy);
		taken = !rc                                           ? n
			: bad_copy >= copies && bad_copy < copies + n ? (unsigned)(bad_copy - copies)
								      : 0;
		for (; taken; taken--)
			wr = wr->next;
		if (rc) {
			*bad = wr;
			return rc;
		}
	}
}

static never_inline int post_any(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct shim_qp *q = shim_qp_find(qp);
	struct shim_context *context;

	if (likely(q)) {
		if (unlikely(atomic_load_explicit(&q->unsure, memory_order_relaxed)) && wr)
			shim_role_at_post(q, wr);
		if (unlikely(shim_tags_exist()) && wr)
			return post_tagged(q, wr, bad);
		return post(q, wr, &shim_untagged, bad);
	}
	context = shim_context_find(qp->context);
	if (context)
		return context->post_send(qp, wr, bad);
	*bad = wr;
	return EINVAL;
}

/* A queue pair that is given to this thread has been posted to before, so its role is known and its
 * completions are accounted. */
int shim_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct shim_qp *q = shim_qp_first(qp);

	if (unlikely(!q || atomic_load_explicit(&shim_ranges, memory_order_relaxed) ||
		     !shim_owner_enter_as(q, shim_plain_id)))
		return post_any(qp, wr, bad);
	if (likely(q->run_stage == atomic_load_explicit(&q->stage, memory_order_relaxed) && q->posted_shard &&
		   !atomic_load_explicit(&q->broken, memory_order_relaxed)))
		return post_given(q, qp, wr, bad);
	shim_owner_exit(q);
	return post_any(qp, wr, bad);
}

/* ibv_bind_mw posts to the send queue through a function of its own: such a queue pair is left alone from then on. */
int shim_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *bind)
{
	struct shim_qp *q = shim_qp_find(qp);
	struct shim_context *context = shim_context_find(qp->context);

	if (q)
		shim_qp_break(q);
	return context ? context->bind_mw(qp, mw, bind) : EINVAL;
}
