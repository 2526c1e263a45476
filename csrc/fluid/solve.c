/* Exact strict-priority max-min rates: only flows whose rate may change are visited. See fluid.h. */
#include <math.h>

#include "finish.h"

/* Rates are distinguished down to this part of a link; sums of doubles over a long run stay well inside it. */
#define SLACK 1e-9

/* -- what has to be solved again */

void fluid_mark_dirty(struct mfs_fluid *net, uint32_t flow)
{
	struct flow *f = &net->flows[flow];
	if (f->dirty)
		return;
	f->dirty = true;
	struct dirty *heap = net->dirty.at;
	uint32_t at = net->dirty.n++;
	while (at && heap[(at - 1) / 2].order > f->order) {
		heap[at] = heap[(at - 1) / 2];
		at = (at - 1) / 2;
	}
	heap[at] = (struct dirty){f->order, flow};
}

static uint32_t take_dirty(struct mfs_fluid *net)
{
	struct dirty *heap = net->dirty.at;
	uint32_t flow = heap[0].flow;
	struct dirty last = heap[--net->dirty.n];
	uint32_t at = 0, child;
	while ((child = 2 * at + 1) < net->dirty.n) {
		if (child + 1 < net->dirty.n && heap[child + 1].order < heap[child].order)
			child++;
		if (heap[child].order >= last.order)
			break;
		heap[at] = heap[child];
		at = child;
	}
	heap[at] = last;
	return flow;
}

/* First group of the link whose order is not below `order`. */
uint32_t fluid_group_at(const struct link *l, uint64_t order)
{
	uint32_t low = 0, high = l->n_groups;
	while (low < high) {
		uint32_t middle = (low + high) / 2;
		if (l->groups[middle].order < order)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/*
 * Tells the groups of a link from `at` on what is left for them. Stops at the first that must be solved
 * again (solving it continues from there) or that sees no difference.
 */
static void propagate(struct mfs_fluid *net, uint32_t link, uint32_t at)
{
	struct link *l = &net->links[link];
	double tiny = SLACK * l->capacity, residual = l->capacity;
	if (at >= l->n_groups)
		return;
	if (at)
		residual = l->groups[at - 1].residual - l->groups[at - 1].usage;
	for (; at < l->n_groups; at++) {
		struct group *g = &l->groups[at];
		double rest = residual > 0 ? residual : 0;
		double difference = rest - g->residual;
		if (fabs(difference) <= tiny * 1e-3)
			return;
		g->residual = rest;
		bool over = g->usage > rest + tiny * 1e-3;
		if (over || (difference > 0 && g->bottled)) {
			for (uint32_t n = g->head; n != NONE; n = net->nodes[n].next)
				if (over || net->flows[net->nodes[n].flow].bottleneck == n)
					fluid_mark_dirty(net, net->nodes[n].flow);
			return;
		}
		residual = rest - g->usage;
	}
}

/* -- one order */

static void touch_links(struct mfs_fluid *net, struct flow *f)
{
	for (uint32_t n = f->nodes; n < f->nodes + f->n_nodes; n++) {
		uint32_t link = net->nodes[n].link;
		struct link *l = &net->links[link];
		if (l->stamp != net->stamp) {
			l->stamp = net->stamp;
			l->at = fluid_group_at(l, f->order);
			l->members = 0;
			net->touched.at[net->touched.n++] = link;
		}
		struct group *g = &l->groups[l->at];
		l->members++;
		g->usage -= net->nodes[n].share * f->rate;
		g->bottled -= f->bottleneck == n;
	}
	f->bottleneck = NONE;
}

static void include(struct mfs_fluid *net, uint32_t flow)
{
	struct flow *f = &net->flows[flow];
	if (f->stamp == net->stamp)
		return;
	f->stamp = net->stamp;
	net->set.at[net->set.n++] = flow;
	touch_links(net, f);
}

static void push_level(struct mfs_fluid *net, double level, uint32_t link)
{
	struct level *heap = net->levels.at;
	uint32_t at = net->levels.n++;
	while (at && heap[(at - 1) / 2].level > level) {
		heap[at] = heap[(at - 1) / 2];
		at = (at - 1) / 2;
	}
	heap[at] = (struct level){level, link};
}

static struct level pop_level(struct mfs_fluid *net)
{
	struct level *heap = net->levels.at, top = heap[0], last = heap[--net->levels.n];
	uint32_t at = 0, child;
	while ((child = 2 * at + 1) < net->levels.n) {
		if (child + 1 < net->levels.n && heap[child + 1].level < heap[child].level)
			child++;
		if (heap[child].level >= last.level)
			break;
		heap[at] = heap[child];
		at = child;
	}
	heap[at] = last;
	return top;
}

static void freeze(struct mfs_fluid *net, struct flow *f, double level, uint32_t bottleneck)
{
	f->next_level = level;
	f->frozen = net->stamp;
	f->bottleneck = bottleneck;
	for (uint32_t n = f->nodes; n < f->nodes + f->n_nodes; n++) {
		struct link *l = &net->links[net->nodes[n].link];
		double share = net->nodes[n].share * f->weight;
		l->available -= share * level;
		l->weights -= share;
		l->open--;
		if (level > l->highest)
			l->highest = level;
	}
}

/* What the link's flows weigh that are not frozen, where taking the others from the sum has left nothing but rounding. */
static double open_weights(const struct mfs_fluid *net, const struct link *l)
{
	double weights = 0;
	for (uint32_t n = l->groups[l->at].head; n != NONE; n = net->nodes[n].next) {
		const struct flow *f = &net->flows[net->nodes[n].flow];
		if (f->stamp == net->stamp && f->frozen != net->stamp)
			weights += net->nodes[n].share * f->weight;
	}
	return weights;
}

/*
 * Raises the levels of the set together until a link is full, freezes the flows on it, goes on with the
 * others.
 */
static void fill(struct mfs_fluid *net)
{
	for (uint32_t i = 0; i < net->touched.n; i++) {
		struct link *l = &net->links[net->touched.at[i]];
		struct group *g = &l->groups[l->at];
		if (l->members == g->count || g->usage < 0)
			g->usage = 0;
		l->available = g->residual - g->usage;
		if (l->available < SLACK * 1e-3 * l->capacity)
			l->available = 0;
		l->weights = 0;
		l->open = l->members;
		l->level = INFINITY;
		l->highest = -1;
	}
	for (uint32_t i = 0; i < net->set.n; i++) {
		struct flow *f = &net->flows[net->set.at[i]];
		f->frozen = net->stamp - 1;
		for (uint32_t n = f->nodes; n < f->nodes + f->n_nodes; n++)
			net->links[net->nodes[n].link].weights += net->nodes[n].share * f->weight;
	}
	net->levels.n = 0;
	for (uint32_t i = 0; i < net->touched.n; i++) {
		struct link *l = &net->links[net->touched.at[i]];
		l->all_weights = l->weights;
		push_level(net, l->available / l->weights, net->touched.at[i]);
	}
	uint32_t open = net->set.n;
	while (open) {
		struct level top = pop_level(net);
		struct link *l = &net->links[top.link];
		if (!l->open)
			continue;
		if (l->weights <= SLACK * l->all_weights)
			l->weights = open_weights(net, l);
		double level = l->available > 0 ? l->available / l->weights : 0;
		if (level > top.level * (1 + 1e-12) && net->levels.n && level > net->levels.at[0].level) {
			push_level(net, level, top.link);
			continue;
		}
		l->level = level;
		for (uint32_t n = l->groups[l->at].head; n != NONE; n = net->nodes[n].next) {
			struct flow *f = &net->flows[net->nodes[n].flow];
			if (f->stamp != net->stamp || f->frozen == net->stamp)
				continue;
			freeze(net, f, level, n);
			open--;
		}
	}
}

/* One flow alone in its order on all its links needs no levels. */
static void fill_one(struct mfs_fluid *net, struct flow *f)
{
	double rate = INFINITY;
	for (uint32_t n = f->nodes; n < f->nodes + f->n_nodes; n++) {
		struct link *l = &net->links[net->nodes[n].link];
		struct group *g = &l->groups[l->at];
		g->usage = 0;
		double available = g->residual > SLACK * 1e-3 * l->capacity ? g->residual : 0;
		if (available < rate * net->nodes[n].share) {
			rate = available / net->nodes[n].share;
			f->bottleneck = n;
		}
	}
	f->next_level = rate / f->weight;
}

/*
 * Adds to the set the flows outside it that are no longer limited by a full link on which none of their
 * order is higher.
 */
static bool widen(struct mfs_fluid *net)
{
	uint32_t before = net->set.n, n_touched = net->touched.n;
	for (uint32_t i = 0; i < n_touched; i++) {
		struct link *l = &net->links[net->touched.at[i]];
		struct group *g = &l->groups[l->at];
		if (l->members == g->count)
			continue;
		bool full = l->available <= SLACK * l->capacity;
		double upper = l->level * (1 + 1e-9), lower = l->highest * (1 - 1e-9);
		for (uint32_t n = g->head; n != NONE; n = net->nodes[n].next) {
			uint32_t flow = net->nodes[n].flow;
			struct flow *f = &net->flows[flow];
			if (f->stamp == net->stamp)
				continue;
			if (f->level > upper || (f->bottleneck == n && (!full || f->level < lower)))
				include(net, flow);
		}
	}
	return net->set.n != before;
}

static void solve_order(struct mfs_fluid *net)
{
	uint64_t order = net->dirty.at[0].order;
	net->stamp += 2;
	net->set.n = net->touched.n = 0;
	while (net->dirty.n && net->dirty.at[0].order == order) {
		uint32_t flow = take_dirty(net);
		struct flow *f = &net->flows[flow];
		if (!f->dirty || !f->linked || f->order != order)
			continue;
		f->dirty = false;
		include(net, flow);
	}
	if (!net->set.n)
		return;
	bool alone = net->set.n == 1;
	for (uint32_t i = 0; alone && i < net->touched.n; i++) {
		struct link *l = &net->links[net->touched.at[i]];
		alone = l->groups[l->at].count == 1;
	}
	if (alone) {
		fill_one(net, &net->flows[net->set.at[0]]);
	} else {
		do {
			for (uint32_t i = 0; i < net->set.n; i++)
				net->flows[net->set.at[i]].bottleneck = NONE;
			fill(net);
		} while (widen(net));
	}
	net->stats.visits += net->set.n;
	for (uint32_t i = 0; i < net->set.n; i++) {
		uint32_t flow = net->set.at[i];
		struct flow *f = &net->flows[flow];
		double rate = f->next_level * f->weight;
		for (uint32_t n = f->nodes; n < f->nodes + f->n_nodes; n++) {
			struct link *l = &net->links[net->nodes[n].link];
			l->groups[l->at].usage += net->nodes[n].share * rate;
		}
		struct link *limit = &net->links[net->nodes[f->bottleneck].link];
		limit->groups[limit->at].bottled++;
		f->level = f->next_level;
		if (fabs(rate - f->rate) > 1e-12 * f->rate) {
			fluid_settle_ended(net, f);
			f->rate = rate;
			fluid_schedule(net, flow);
		}
	}
	for (uint32_t i = 0; i < net->touched.n; i++)
		propagate(net, net->touched.at[i], net->links[net->touched.at[i]].at + 1);
}

void fluid_allocate(struct mfs_fluid *net)
{
	for (uint32_t i = 0; i < net->changes.n; i++) {
		struct change c = net->changes.at[i];
		struct link *l = &net->links[c.link];
		uint32_t at = fluid_group_at(l, c.order);
		if (at < l->n_groups && l->groups[at].order == c.order)
			at++;
		propagate(net, c.link, at);
	}
	net->changes.n = 0;
	while (net->dirty.n)
		solve_order(net);
	net->void_dirty = 0;
	net->stale = false;
	net->stats.solves++;
}
