/* For how long a queue pair may be held, whatever the daemon does: the account that the shim's thread keeps.
 *
 * A queue pair stands still because of MFS while it holds something and has nothing under way. That time is its loss. The loss is
 * paid back by other time, at a quarter: PAYBACK. When it reaches the budget, everything that the queue pair holds goes, and
 * what it posts is not held for PAYBACK budgets; then the account is balanced, and begins at zero.
 *
 * Where a link is full, each queue pair stands still while the others have their turn, with MFS and without. So of each stretch
 * of standing still the first is not counted: one turn, that is, the time in which every queue pair of this process that holds
 * something could have sent a task, four times over, since there are other processes; and never more than the budget. A stretch
 * ends when something of the queue pair is under way.
 *
 * And what is under way pays back what the link would have given to it in that time and the others' turns: one transfer after
 * the other ends no later than all at once, and most of them sooner. So the time that something of the queue pair is under
 * way counts as often as queue pairs of this process hold something, and four times over, by the share of the latest time in
 * which anything of this process was under way: if the daemon gives next to nothing to any, little is paid back. A flow
 * that has a fourth of its share of the link does not use its budget up, however long it lasts; one that has not does. So within
 * any time T a queue pair stands still for at most
 *
 *	one turn for each time that it was served + budget + what is paid back:
 *	the more of (T - what it stands still) / PAYBACK and (time under way) * TURN_OTHERS * (queue pairs) * busy
 *
 * and never for more than two budgets in a row, in however many work requests, pieces and calls a transfer comes. What belongs
 * to which transfer need not be known.
 *
 * What is held behind work requests that are served has no bound in that account. Where it is known when the library gives up
 * what it has posted (q->gives_up_ns), nothing is held for longer than half of that: budget.c.
 *
 * The thread sweeps every few milliseconds while anything is held. What is under way for longer
 * than the budget without a completion counts as standing still: its program does not poll.
 *
 * Besides, an engine can say until when a work request may be held (mfs_context.hold_until_ns).
 */
#include "sweep.h"

#include "budget.h"
#include "complete.h"
#include "hold.h"
#include "owner.h"
#include "process.h"
#include "pump.h"
#include "qp_state.h"
#include "table.h"
#include "trim.h"

#define PAYBACK 4
#define TURN_LEAST_NS 8000000 /* two sweeps */
#define TURN_OTHERS 4
#define TURN_RATE_UNKNOWN_BYTES_PER_S 1000000000 /* of a port that does not say */
#define SOON_NS 5000000                          /* the next sweep may be only so much later */
#define TRIM_AFTER_NS 1000000000                 /* a queue pair held something its memory goes back */
#define ALL_EVERY_NS 64000000                    /* queue pairs that hold nothing are visited, too */

static struct shim_qp *listed; /* the thread's, as all that follows */
static uint64_t all_at_ns;

/* How much of the latest budget's time something of this process was under way, 0 to 1. */
static double busy;
/* the last sweep, and the time under way of all queue pairs that it found */
static uint64_t swept_ns, swept_flight_ns;

static bool holds_something(struct shim_qp *q)
{
	return atomic_load(&q->live) && atomic_load(&q->holds) &&
	       atomic_load(&q->wr_posted) != atomic_load(&q->wr_next);
}

/* Owner held. Some held work request may not be held any longer: all go. Otherwise notes the next that says so. */
static void leases_check(struct shim_qp *q, uint64_t now_ns)
{
	uint64_t next = atomic_load(&q->wr_next), until_ns;

	atomic_store(&q->hold_until_ns, 0);
	for (uint64_t i = atomic_load(&q->wr_posted); i != next; i++) {
		struct shim_held *held = shim_held_at(q, i);

		if (atomic_load_explicit(&held->published, memory_order_acquire) != i + 1 || held->hole)
			continue;
		until_ns = shim_hold_until_ns(q, held);
		if (until_ns && now_ns + SOON_NS >= until_ns)
			atomic_store(&q->force, SHIM_FORCE_TIME);
		else if (until_ns)
			shim_lease_note(q, until_ns);
	}
}

/* How long tasks were under way so far. */
static uint64_t flight_ns(struct shim_qp *q, uint64_t now_ns, uint64_t budget_ns)
{
	uint64_t total_ns = atomic_load(&q->flight_ns), since_ns = atomic_load(&q->flight_since_ns);

	if (!since_ns || since_ns > now_ns)
		return total_ns;
	return total_ns + (now_ns - since_ns < budget_ns ? now_ns - since_ns : budget_ns);
}

/* How long a queue pair may wait for others to have their turn: of a slow NIC as if tasks were of SHIM_QUANTUM_BYTES, since
 * work requests may be as large. */
static uint64_t turn_ns(const struct shim_qp *q, uint64_t budget_ns)
{
	const struct shim_context *context = atomic_load(&q->context);
	uint64_t rate = context->rate_bytes_per_s ? context->rate_bytes_per_s : TURN_RATE_UNKNOWN_BYTES_PER_S;
	uint64_t bytes = shim_quantum_bytes(context->rate_bytes_per_s);
	uint64_t ns;

	if (bytes < SHIM_QUANTUM_BYTES)
		bytes = SHIM_QUANTUM_BYTES;
	ns = atomic_load(&shim.listed) * TURN_OTHERS * bytes * 1000 / (rate / 1000000 + 1);

	if (ns < TURN_LEAST_NS)
		ns = TURN_LEAST_NS;
	return ns < budget_ns ? ns : budget_ns;
}

/* Of a stretch of standing still that went on for `more_ns`, the part beyond one turn. */
static uint64_t beyond_turn(struct shim_qp *q, uint64_t more_ns, uint64_t budget_ns)
{
	uint64_t turn = turn_ns(q, budget_ns), before_ns = q->stretch_ns > turn ? q->stretch_ns - turn : 0;

	q->stretch_ns += more_ns;
	return (q->stretch_ns > turn ? q->stretch_ns - turn : 0) - before_ns;
}

/* Before the visits, which find what came since the last sweep. */
static void busy_update(uint64_t now_ns, uint64_t budget_ns)
{
	uint64_t ns = now_ns - swept_ns;
	double share = swept_flight_ns < ns ? (double)swept_flight_ns / (double)ns : 1.0;
	double weight = ns < budget_ns ? (double)ns / (double)budget_ns : 1.0;

	if (!ns)
		return;
	busy += weight * (share - busy);
	swept_ns = now_ns;
	swept_flight_ns = 0;
}

/* What time under way pays back. */
static uint64_t paid_ns(uint64_t flown_ns)
{
	return (uint64_t)((double)flown_ns * (double)(atomic_load(&shim.listed) * TURN_OTHERS) * busy);
}

/* Brings the account up to date; true when the budget is used up. */
static bool account(struct shim_qp *q, uint64_t now_ns, uint64_t budget_ns)
{
	uint64_t since_ns = atomic_load(&q->held_since_ns), flown_ns = flight_ns(q, now_ns, budget_ns);
	uint64_t accounted_ns = q->accounted_ns, accounted_flight_ns = q->accounted_flight_ns,
		 account_ns = q->lost_ns;
	uint64_t lost_ns, back_ns, paid;

	if (now_ns < accounted_ns) /* it is free until then */
		return false;
	atomic_store(&q->free_until_ns, 0);
	if (!since_ns || since_ns > now_ns)
		since_ns = now_ns;
	else if (since_ns < accounted_ns)
		since_ns = accounted_ns;
	lost_ns = now_ns - since_ns;
	if (flown_ns > accounted_flight_ns) {
		lost_ns -=
			flown_ns - accounted_flight_ns < lost_ns ? flown_ns - accounted_flight_ns : lost_ns;
		q->stretch_ns = 0;
		swept_flight_ns += flown_ns - accounted_flight_ns;
	}
	if (since_ns == now_ns)
		q->stretch_ns = 0;
	lost_ns = beyond_turn(q, lost_ns, budget_ns);
	back_ns = (now_ns - accounted_ns - lost_ns) / PAYBACK;
	paid = flown_ns > accounted_flight_ns ? paid_ns(flown_ns - accounted_flight_ns) : 0;
	if (paid > back_ns)
		back_ns = paid;
	account_ns -= back_ns < account_ns ? back_ns : account_ns;
	account_ns += lost_ns;
	q->accounted_ns = now_ns;
	q->accounted_flight_ns = flown_ns;
	q->lost_ns = account_ns;
	return account_ns >= budget_ns;
}

/* Takes the owner flag only where there is something to do: a post that finds it taken leaves its work request to be
 * part of a larger task. */
static void visit(struct shim_qp *q, uint64_t now_ns, uint64_t max_hold_ns)
{
	uint64_t budget_ns = shim_budget_ns(q, max_hold_ns);
	uint64_t until_ns = atomic_load(&q->hold_until_ns);
	bool again = atomic_exchange(&q->blocked, 0);

	again |= atomic_exchange(&q->starved, 0) != 0;
	if (atomic_load(&q->poll_deferred))
		shim_complete(q, 0);
	if (unlikely(until_ns && now_ns + SOON_NS >= until_ns) && shim_owner_try(q)) {
		if (atomic_load(&q->live) && q->fifo)
			leases_check(q, now_ns);
		shim_owner_leave(q);
		again = true;
	}
	if (unlikely(account(q, now_ns, budget_ns))) {
		q->lost_ns = 0;
		q->accounted_ns = now_ns + PAYBACK * budget_ns;
		atomic_store(&q->free_until_ns, now_ns + PAYBACK * budget_ns);
		again = true;
	}
	if (again)
		shim_pump(q);
}

/* Visits every queue pair that holds something: what was held too long may go, what the provider or the daemon had no
 * room for is tried again. And now and then all queue pairs, so that no completion stays uncounted. */
void shim_sweep(uint64_t now_ns, uint64_t max_hold_ns)
{
	struct shim_qp **link = &listed, *q = shim_list_take(), *next;
	unsigned cursor = 0;

	for (; q; q = next) {
		next = q->next_listed;
		q->next_listed = listed;
		listed = q;
	}
	busy_update(now_ns, max_hold_ns);
	while ((q = *link)) {
		if (holds_something(q)) {
			visit(q, now_ns, max_hold_ns);
			link = &q->next_listed;
			continue;
		}
		*link = q->next_listed;
		atomic_store(&q->trim_at_ns, now_ns + TRIM_AFTER_NS);
		atomic_fetch_sub(&shim.listed, 1);
		atomic_store(&q->listed, 0);
		atomic_thread_fence(memory_order_seq_cst);
		if (holds_something(q))
			shim_list(q);
	}
	if (now_ns < all_at_ns)
		return;
	all_at_ns = now_ns + ALL_EVERY_NS;
	while ((q = shim_qp_each(&cursor))) {
		uint64_t trim_at_ns = atomic_load(&q->trim_at_ns);

		if (atomic_load(&q->poll_deferred))
			shim_complete(q, 0);
		if (unlikely(trim_at_ns && now_ns >= trim_at_ns) && !atomic_load(&q->listed) && shim_trim(q))
			atomic_store(&q->trim_at_ns, 0);
	}
}

/* Records of the parent are not used again, so what is in them does not matter. */
void shim_sweep_after_fork(void)
{
	shim_list_take();
	atomic_store(&shim.listed, 0);
	listed = NULL;
	busy = 0.0;
	swept_flight_ns = 0;
}
