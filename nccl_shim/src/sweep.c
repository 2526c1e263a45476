/* How long a queue pair may be held, whatever the daemon does. The shim's thread keeps an account of it
 * for each queue pair.
 *
 * A queue pair stands still because of MFS while it holds something and has nothing under way. That time
 * is its loss. All other time pays the loss back at a quarter (PAYBACK). When the loss reaches the budget,
 * everything that the queue pair holds is posted, and what it posts is not held for PAYBACK budgets. After
 * that the account is balanced and begins at zero.
 *
 * On a full link each queue pair stands still while the others have their turn, with or without MFS. So
 * the first part of each stretch of standing still is not counted: one turn. A turn is the time in which
 * every queue pair of this process that holds something could have sent a task, times four because there
 * are other processes, but never more than the budget. A stretch ends when something of the queue pair is
 * under way.
 *
 * Time under way pays back, too: what the link would have given the queue pair in that time and in the
 * turns of the others. (Transfers sent one after the other end no later than if all are sent at once, and
 * most end sooner.) The time that something of the queue pair is under way counts as often as there are
 * queue pairs of this process that hold something, times four. It is scaled by the share of recent time in
 * which anything of this process was under way: if the daemon gives next to nothing to any of them, little
 * is paid back. A flow that gets a fourth of its share of the link thus never uses up its budget, however
 * long it lasts; one that gets less does. So within any time T a queue pair stands still for at most
 *
 *   one turn for each time that it was served + budget + what is paid back:
 *   the larger of (T - time standing still) / PAYBACK
 *   and (time under way) * TURN_OTHERS * (queue pairs) * busy
 *
 * and never for more than two budgets in a row, in however many work requests, pieces and calls a transfer
 * comes. It need not be known what belongs to which transfer.
 *
 * This account has no bound for what is held behind work requests that are served. Where it is known when
 * the library gives up what it has posted (q->gives_up_ns), nothing is held for longer than half of that
 * time: budget.c.
 *
 * The thread sweeps every few milliseconds while anything is held. A task that is under way for longer
 * than the budget without a completion counts as standing still: its program does not poll.
 *
 * In addition an engine can set the time until which a work request may be held
 * (mfs_context.hold_until_ns). */
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
#define TURN_RATE_UNKNOWN_BYTES_PER_S 1000000000 /* for a port that does not report its rate */
#define SOON_NS 5000000                          /* the next sweep may be this much later */
/* after a queue pair has held nothing for this long, its memory is given back */
#define TRIM_AFTER_NS 1000000000
#define ALL_EVERY_NS 64000000 /* interval at which queue pairs that hold nothing are visited, too */

static struct shim_qp *listed; /* used only by the shim's thread, like everything below */
static uint64_t all_at_ns;

/* Share of the last budget's time in which anything of this process was under way, 0 to 1. */
static double busy;
/* time of the last sweep, and the total time under way of all queue pairs that it found */
static uint64_t swept_ns, swept_flight_ns;

static bool holds_something(struct shim_qp *q)
{
	return atomic_load(&q->live) && atomic_load(&q->holds) &&
	       atomic_load(&q->wr_posted) != atomic_load(&q->wr_next);
}

/* Owner flag held. If the time of any held work request is over, all go. Otherwise notes the earliest time
 * at which one is. */
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

/* Total time for which its tasks were under way so far. */
static uint64_t flight_ns(struct shim_qp *q, uint64_t now_ns, uint64_t budget_ns)
{
	uint64_t total_ns = atomic_load(&q->flight_ns), since_ns = atomic_load(&q->flight_since_ns);

	if (!since_ns || since_ns > now_ns)
		return total_ns;
	return total_ns + (now_ns - since_ns < budget_ns ? now_ns - since_ns : budget_ns);
}

/* How long a queue pair may wait for the others to have their turn. On a slow NIC tasks are assumed to be
 * as large as SHIM_QUANTUM_BYTES, since single work requests may be. */
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

/* The stretch of standing still has grown by `more_ns`. Returns the part of that which is beyond one turn. */
static uint64_t beyond_turn(struct shim_qp *q, uint64_t more_ns, uint64_t budget_ns)
{
	uint64_t turn = turn_ns(q, budget_ns), before_ns = q->stretch_ns > turn ? q->stretch_ns - turn : 0;

	q->stretch_ns += more_ns;
	return (q->stretch_ns > turn ? q->stretch_ns - turn : 0) - before_ns;
}

/* Called before the visits, which count the time under way since the last sweep. */
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

/* What this time under way pays back. */
static uint64_t paid_ns(uint64_t flown_ns)
{
	return (uint64_t)((double)flown_ns * (double)(atomic_load(&shim.listed) * TURN_OTHERS) * busy);
}

/* Brings the account up to date. Returns true when the budget is used up. */
static bool account(struct shim_qp *q, uint64_t now_ns, uint64_t budget_ns)
{
	uint64_t since_ns = atomic_load(&q->held_since_ns), flown_ns = flight_ns(q, now_ns, budget_ns);
	uint64_t accounted_ns = q->accounted_ns, accounted_flight_ns = q->accounted_flight_ns,
		 account_ns = q->lost_ns;
	uint64_t lost_ns, back_ns, paid;

	if (now_ns < accounted_ns) /* nothing is held until then */
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

/* Takes the owner flag only if there is something to do: a post that finds the flag taken leaves its work
 * request to be part of a larger task. */
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

/* Visits every queue pair that holds something: what was held too long may go, and what the provider or the daemon
 * had no room for is tried again. Now and then it visits all queue pairs, so that no completion stays uncounted. */
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

/* Records of the parent are not used again, so their contents do not matter. */
void shim_sweep_after_fork(void)
{
	shim_list_take();
	atomic_store(&shim.listed, 0);
	listed = NULL;
	busy = 0.0;
	swept_flight_ns = 0;
}
