/* Flows, links and the clock of the rate allocator; the rates are in solve.c. See fluid.h. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "finish.h"

static int grow(void **at, uint32_t *room, uint32_t need, size_t size)
{
	if (need <= *room)
		return 0;
	uint32_t wanted = *room ? *room : 16;
	while (wanted < need)
		wanted *= 2;
	void *bigger = realloc(*at, wanted * size);
	if (!bigger)
		return -ENOMEM;
	*at = bigger;
	*room = wanted;
	return 0;
}
#define RESERVE(vector, need) grow((void **)&(vector).at, &(vector).room, (need), sizeof(*(vector).at))

/* What is left for larger orders may have changed. Room was reserved. */
static void note_change(struct mfs_fluid *net, uint32_t link, uint64_t order)
{
	net->changes.at[net->changes.n++] = (struct change){order, link};
	net->stale = true;
}

/* -- flows onto links and off them */

static int link_flow(struct mfs_fluid *net, uint32_t flow)
{
	struct flow *f = &net->flows[flow];
	int rc = RESERVE(net->changes, net->changes.n + f->n_nodes);
	if (rc)
		return rc;
	for (uint32_t n = f->nodes; n < f->nodes + f->n_nodes; n++) {
		struct link *l = &net->links[net->nodes[n].link];
		rc = grow((void **)&l->groups, &l->room, l->n_groups + 1, sizeof(*l->groups));
		if (rc)
			return rc;
	}
	for (uint32_t n = f->nodes; n < f->nodes + f->n_nodes; n++) {
		struct node *node = &net->nodes[n];
		struct link *l = &net->links[node->link];
		uint32_t at = fluid_group_at(l, f->order);
		if (at == l->n_groups || l->groups[at].order != f->order) {
			double residual = l->capacity;
			if (at)
				residual = l->groups[at - 1].residual - l->groups[at - 1].usage;
			memmove(&l->groups[at + 1], &l->groups[at],
				(l->n_groups++ - at) * sizeof(*l->groups));
			l->groups[at] = (struct group){.order = f->order,
						       .residual = residual > 0 ? residual : 0,
						       .head = NONE};
			/* A change on its way from a smaller order would stop here, where it makes no difference. */
			note_change(net, node->link, f->order);
		}
		struct group *g = &l->groups[at];
		node->prev = NONE;
		node->next = g->head;
		if (g->head != NONE)
			net->nodes[g->head].prev = n;
		g->head = n;
		g->count++;
	}
	f->linked = true;
	f->rate = f->level = 0;
	f->bottleneck = NONE;
	net->stale = true;
	fluid_mark_dirty(net, flow);
	return 0;
}

static int unlink_flow(struct mfs_fluid *net, uint32_t flow)
{
	struct flow *f = &net->flows[flow];
	int rc = RESERVE(net->changes, net->changes.n + f->n_nodes);
	if (!rc && f->dirty)
		rc = RESERVE(net->dirty, net->n_flows + ++net->void_dirty);
	if (rc)
		return rc;
	f->dirty = false;
	fluid_settle(net, f);
	fluid_unschedule(net, flow);
	for (uint32_t n = f->nodes; n < f->nodes + f->n_nodes; n++) {
		struct node *node = &net->nodes[n];
		struct link *l = &net->links[node->link];
		uint32_t at = fluid_group_at(l, f->order);
		struct group *g = &l->groups[at];
		if (node->prev != NONE)
			net->nodes[node->prev].next = node->next;
		else
			g->head = node->next;
		if (node->next != NONE)
			net->nodes[node->next].prev = node->prev;
		g->usage -= node->share * f->rate;
		if (g->usage < 0)
			g->usage = 0;
		g->bottled -= f->bottleneck == n;
		if (--g->count == 0) {
			memmove(g, g + 1, (--l->n_groups - at) * sizeof(*g));
		} else if (f->rate > 0 && g->bottled) {
			for (uint32_t m = g->head; m != NONE; m = net->nodes[m].next)
				if (net->flows[net->nodes[m].flow].bottleneck == m)
					fluid_mark_dirty(net, net->nodes[m].flow);
		}
		if (f->rate > 0)
			note_change(net, node->link, f->order);
	}
	f->linked = false;
	f->rate = f->level = 0;
	f->bottleneck = NONE;
	return 0;
}

static void solve(struct mfs_fluid *net)
{
	for (uint32_t i = 0; i < net->completed.n; i++) {
		struct flow *f = &net->flows[net->completed.at[i]];
		f->listed = false;
		if (f->completed && f->linked)
			unlink_flow(net, net->completed.at[i]);
	}
	net->completed.n = 0;
	if (net->stale)
		fluid_allocate(net);
}

/* -- the interface */

int mfs_fluid_create(struct mfs_fluid **out, uint32_t n_links, const double *capacity)
{
	struct mfs_fluid *net = calloc(1, sizeof(*net));
	if (!net)
		return -ENOMEM;
	net->free_flow = NONE;
	for (uint32_t i = 0; i < n_links; i++) {
		int64_t rc = mfs_fluid_add_link(net, capacity[i]);
		if (rc < 0) {
			mfs_fluid_destroy(net);
			return (int)rc;
		}
	}
	*out = net;
	return 0;
}

void mfs_fluid_destroy(struct mfs_fluid *net)
{
	if (!net)
		return;
	for (uint32_t i = 0; i < net->n_links; i++)
		free(net->links[i].groups);
	free(net->links);
	free(net->flows);
	free(net->nodes);
	free(net->free_nodes.at);
	free(net->heap.at);
	free(net->completed.at);
	free(net->dirty.at);
	free(net->changes.at);
	free(net->set.at);
	free(net->touched.at);
	free(net->levels.at);
	free(net);
}

int64_t mfs_fluid_add_link(struct mfs_fluid *net, double capacity)
{
	if (!(capacity >= 0) || isinf(capacity))
		return -EINVAL;
	uint32_t need = net->n_links + 1;
	if (grow((void **)&net->links, &net->room_links, need, sizeof(*net->links)) ||
	    RESERVE(net->touched, need) || RESERVE(net->levels, need))
		return -ENOMEM;
	net->links[net->n_links] = (struct link){.capacity = capacity};
	return net->n_links++;
}

int mfs_fluid_set_capacity(struct mfs_fluid *net, uint32_t link, double capacity)
{
	if (link >= net->n_links || !(capacity >= 0) || isinf(capacity))
		return -EINVAL;
	struct link *l = &net->links[link];
	l->capacity = capacity;
	for (uint32_t at = 0; at < l->n_groups; at++)
		for (uint32_t n = l->groups[at].head; n != NONE; n = net->nodes[n].next)
			fluid_mark_dirty(net, net->nodes[n].flow);
	double residual = capacity;
	for (uint32_t at = 0; at < l->n_groups; at++) {
		l->groups[at].residual = residual > 0 ? residual : 0;
		residual = l->groups[at].residual - l->groups[at].usage;
	}
	net->stale = true;
	return 0;
}

static int64_t take_nodes(struct mfs_fluid *net, uint32_t length)
{
	uint32_t had = net->free_nodes.room;
	if (RESERVE(net->free_nodes, length + 1))
		return -ENOMEM;
	for (; had < net->free_nodes.room; had++)
		net->free_nodes.at[had] = NONE;
	uint32_t first = net->free_nodes.at[length];
	if (first != NONE) {
		net->free_nodes.at[length] = net->nodes[first].next;
		return first;
	}
	if (grow((void **)&net->nodes, &net->room_nodes, net->n_nodes + length, sizeof(*net->nodes)))
		return -ENOMEM;
	first = net->n_nodes;
	net->n_nodes += length;
	return first;
}

/* What a flow weighs on a link is a divisor. */
static bool usable(double weight, double share)
{
	return share > 0 && !isinf(share) && isnormal(weight * share);
}

int64_t mfs_fluid_add(struct mfs_fluid *net, uint64_t order, double weight, double bytes, uint32_t n_links,
		      const uint32_t *links, const double *share)
{
	if (!n_links || !(weight > 0) || isinf(weight) || !(bytes >= 0) || isinf(bytes))
		return -EINVAL;
	for (uint32_t i = 0; i < n_links; i++)
		if (links[i] >= net->n_links || !usable(weight, share ? share[i] : 1.0))
			return -EINVAL;
	uint32_t need = net->n_flows + 1;
	if (grow((void **)&net->flows, &net->room_flows, need, sizeof(*net->flows)) ||
	    RESERVE(net->heap, need) || RESERVE(net->dirty, need + net->void_dirty) ||
	    RESERVE(net->set, need) || RESERVE(net->completed, need))
		return -ENOMEM;
	int64_t first = take_nodes(net, n_links);
	if (first < 0)
		return first;
	uint32_t flow = net->free_flow;
	if (flow != NONE)
		net->free_flow = net->flows[flow].nodes;
	else
		flow = net->n_flows++;
	for (uint32_t i = 0; i < n_links; i++)
		net->nodes[first + i] = (struct node){share ? share[i] : 1.0, flow, links[i], NONE, NONE};
	net->flows[flow] = (struct flow){
		.order = order,
		.weight = weight,
		.since = net->now,
		.nodes = (uint32_t)first,
		.n_nodes = n_links,
		.bottleneck = NONE,
		.heap_at = NONE,
	};
	int rc = mfs_fluid_refill(net, flow, bytes);
	if (rc)
		return rc;
	return flow;
}

static bool exists(const struct mfs_fluid *net, uint32_t flow)
{
	return flow < net->n_flows && net->flows[flow].n_nodes;
}

int mfs_fluid_remove(struct mfs_fluid *net, uint32_t flow)
{
	if (!exists(net, flow))
		return -ENOENT;
	struct flow *f = &net->flows[flow];
	if (f->linked)
		unlink_flow(net, flow);
	for (uint32_t i = 0; f->listed && i < net->completed.n; i++) {
		if (net->completed.at[i] == flow) {
			net->completed.at[i] = net->completed.at[--net->completed.n];
			break;
		}
	}
	net->nodes[f->nodes].next = net->free_nodes.at[f->n_nodes];
	net->free_nodes.at[f->n_nodes] = f->nodes;
	f->n_nodes = 0;
	f->nodes = net->free_flow;
	net->free_flow = flow;
	return 0;
}

int mfs_fluid_refill(struct mfs_fluid *net, uint32_t flow, double bytes)
{
	if (!exists(net, flow) || !(bytes >= 0) || isinf(bytes))
		return -EINVAL;
	struct flow *f = &net->flows[flow];
	if (bytes == 0)
		return 0;
	if (!f->linked || f->completed)
		net->stats.events++;
	f->completed = false;
	fluid_settle(net, f);
	f->left += bytes;
	if (f->linked) {
		fluid_schedule(net, flow);
		return 0;
	}
	return link_flow(net, flow);
}

int mfs_fluid_set_order(struct mfs_fluid *net, uint32_t flow, uint64_t order)
{
	if (!exists(net, flow))
		return -ENOENT;
	struct flow *f = &net->flows[flow];
	if (f->order == order)
		return 0;
	if (!f->linked || f->completed) {
		if (f->linked)
			unlink_flow(net, flow);
		f->order = order;
		return 0;
	}
	fluid_settle_ended(net, f);
	unlink_flow(net, flow);
	f->order = order;
	int rc = link_flow(net, flow);
	if (!rc && f->left <= 0)
		fluid_schedule(net, flow);
	return rc;
}

double mfs_fluid_now(const struct mfs_fluid *net)
{
	return net->now;
}

double mfs_fluid_next(struct mfs_fluid *net)
{
	solve(net);
	if (!net->heap.n)
		return INFINITY;
	double finish = net->flows[net->heap.at[0]].finish;
	return finish > net->now ? finish : net->now;
}

int mfs_fluid_advance(struct mfs_fluid *net, double now)
{
	if (!(now >= net->now) || isinf(now) || now > mfs_fluid_next(net) + MFS_FLUID_INSTANT_S)
		return -EINVAL;
	net->now = now;
	return 0;
}

uint32_t mfs_fluid_take_completed(struct mfs_fluid *net, uint32_t *flows, uint32_t max)
{
	uint32_t n = 0;
	if (net->stale)
		solve(net);
	while (n < max && net->heap.n) {
		uint32_t flow = net->heap.at[0];
		struct flow *f = &net->flows[flow];
		if (f->finish > net->now + MFS_FLUID_INSTANT_S)
			break;
		fluid_unschedule(net, flow);
		f->left = 0;
		f->since = net->now;
		f->completed = true;
		if (!f->listed)
			net->completed.at[net->completed.n++] = flow;
		f->listed = true;
		net->stats.events++;
		flows[n++] = flow;
	}
	return n;
}

double mfs_fluid_rate(struct mfs_fluid *net, uint32_t flow)
{
	solve(net);
	return exists(net, flow) ? net->flows[flow].rate : -1;
}

double mfs_fluid_remaining(struct mfs_fluid *net, uint32_t flow)
{
	if (!exists(net, flow))
		return -1;
	const struct flow *f = &net->flows[flow];
	double left = f->left - (net->now - f->since) * f->rate;
	return left > 0 ? left : 0;
}

double mfs_fluid_link_rate(const struct mfs_fluid *net, uint32_t link, uint64_t before)
{
	if (link >= net->n_links)
		return -1;
	const struct link *l = &net->links[link];
	uint32_t at = fluid_group_at(l, before);
	if (!at)
		return 0;
	double rate = l->capacity - l->groups[at - 1].residual + l->groups[at - 1].usage;
	return rate < l->capacity ? rate : l->capacity;
}

struct mfs_fluid_stats mfs_fluid_stats(const struct mfs_fluid *net)
{
	return net->stats;
}
