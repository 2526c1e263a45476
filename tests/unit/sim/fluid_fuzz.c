/* Random calls of the rate allocator, for the sanitizers. Arguments: first seed, number of seeds. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "mfs/fluid.h"

#define MOST_FLOWS 300
#define MOST_LINKS 12

struct run {
	struct mfs_fluid *net;
	uint32_t n_links, orders, alive[MOST_FLOWS], n_alive;
};

static void add(struct run *run)
{
	uint32_t links[MOST_LINKS], wanted = 1 + rand() % (run->n_links < 5 ? run->n_links : 5), chosen = 0, used = 0;
	double share[MOST_LINKS];
	while (chosen < wanted) {
		uint32_t link = rand() % run->n_links;
		if (used >> link & 1)
			continue;
		used |= 1u << link;
		share[chosen] = 0.05 + rand() % 100 / 100.0;
		links[chosen++] = link;
	}
	int64_t flow = mfs_fluid_add(run->net, rand() % run->orders, 1 + rand() % 3, rand() % 8 ? rand() % 1000 : 0,
				     wanted, links, rand() % 2 ? share : NULL);
	if (flow < 0)
		abort();
	run->alive[run->n_alive++] = (uint32_t)flow;
}

static void forget(struct run *run, uint32_t at)
{
	if (mfs_fluid_remove(run->net, run->alive[at]))
		abort();
	run->alive[at] = run->alive[--run->n_alive];
}

static void complete(struct run *run)
{
	uint32_t done[16];
	double next = mfs_fluid_next(run->net);
	if (isinf(next))
		return;
	if (mfs_fluid_advance(run->net, next))
		abort();
	uint32_t n = mfs_fluid_take_completed(run->net, done, 16);
	for (uint32_t i = 0; i < n; i++) {
		int what = rand() % 3;
		for (uint32_t at = 0; what == 0 && at < run->n_alive; at++) {
			if (run->alive[at] == done[i]) {
				forget(run, at);
				break;
			}
		}
		if (what == 1)
			mfs_fluid_refill(run->net, done[i], 1 + rand() % 100);
	}
}

static void step(struct run *run)
{
	int what = rand() % 10;
	uint32_t at = run->n_alive ? rand() % run->n_alive : 0;
	if (what < 4 && run->n_alive < MOST_FLOWS)
		add(run);
	else if (what == 4 && run->n_alive)
		forget(run, at);
	else if (what == 5 && run->n_alive)
		mfs_fluid_set_order(run->net, run->alive[at], rand() % run->orders);
	else if (what == 6 && run->n_alive)
		mfs_fluid_refill(run->net, run->alive[at], rand() % 500);
	else if (what == 7)
		mfs_fluid_set_capacity(run->net, rand() % run->n_links, rand() % 30);
	else
		complete(run);
}

int main(int count, char **arguments)
{
	static const uint32_t orders[] = {1, 4, 1000};
	int first = count > 1 ? atoi(arguments[1]) : 0, seeds = count > 2 ? atoi(arguments[2]) : 1;
	for (int seed = first; seed < first + seeds; seed++) {
		srand(seed);
		struct run run = {.n_links = 2 + rand() % 10, .orders = orders[seed % 3]};
		double capacity[MOST_LINKS];
		for (uint32_t i = 0; i < run.n_links; i++)
			capacity[i] = rand() % 3 ? 25 : rand() % 2 * 5;
		if (mfs_fluid_create(&run.net, run.n_links, capacity))
			abort();
		for (int i = 0; i < 1000; i++)
			step(&run);
		mfs_fluid_destroy(run.net);
	}
	puts("ok");
	return 0;
}
