/* One batch's block: checked, with its RED, its row, and the requests of each port in order of load. */
#define _GNU_SOURCE /* qsort_r */
#include <string.h>

#include "state.h"

#define RUN_MIN 16 /* ports: below, single ones are as fast */
#define RUN_GAP 8  /* ports without load in a row that do not end a run */

struct scratch {
	bool wide; /* some port has more than UINT32_MAX */
	uint32_t *port; /* ascending, the run's cut out once it is known */
	uint32_t ports;
	uint32_t run, first; /* ports of the run, with the gaps */
	int64_t *word; /* by request */
};

static int compare_u32(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

static int compare_i64(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x > y) - (x < y);
}

static int compare_cell(const void *a, const void *b, void *requests)
{
	const struct plan_cell *x = a, *y = b;
	const struct plan_request *request = requests;

	if (x->amount != y->amount)
		return x->amount > y->amount ? -1 : 1;
	return request[x->request].id > request[y->request].id ? -1 : 1;
}

/* Loads of one owner (the batch itself or a request): each port once, each amount possible. */
static int check_loads(struct mfs_plan *plan, const struct mfs_plan_load *load, uint32_t n, uint32_t first_stamp,
		       struct scratch *scratch, uint64_t *cells)
{
	uint32_t stamp = ++plan->stamps;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t u = load[i].port;

		if (u >= plan->ports || plan->stamp[u] == stamp || load[i].amount < 0)
			return -EINVAL;
		if (load[i].amount > plan->limit[u])
			return -ERANGE;
		if (plan->stamp[u] < first_stamp) {
			scratch->port[scratch->ports++] = u;
			plan->taken[u] = 0;
		}
		plan->stamp[u] = stamp;
		*cells += load[i].amount > 0;
		if (plan->taken[u] <= UINT32_MAX)
			plan->taken[u] += load[i].amount;
		scratch->wide |= plan->taken[u] > UINT32_MAX;
	}
	return 0;
}

static int check(struct mfs_plan *plan, const struct mfs_plan_batch *from, struct scratch *scratch, uint64_t *cells)
{
	const struct mfs_plan_load *load = from->load + from->fixed_loads;
	uint32_t first_stamp;
	int rc;

	if (plan->stamps >= UINT32_MAX - from->requests - 1) {
		memset(plan->stamp, 0, plan->ports * sizeof(*plan->stamp));
		plan->stamps = 0;
	}
	first_stamp = plan->stamps + 1;
	rc = check_loads(plan, from->load, from->fixed_loads, first_stamp, scratch, cells);
	*cells = 0;
	for (uint32_t r = 0; !rc && r < from->requests; r++) {
		int64_t deadline = from->request[r].deadline_ns;

		if (deadline < -MFS_PLAN_TIME_MAX || (deadline > MFS_PLAN_TIME_MAX && deadline != INT64_MAX))
			return -ERANGE;
		scratch->word[r] = (int64_t)from->request[r].id;
		rc = check_loads(plan, load, from->request[r].loads, first_stamp, scratch, cells);
		load += from->request[r].loads;
	}
	if (rc)
		return rc;
	if (*cells >= PLAN_NONE)
		return -ERANGE;
	qsort(scratch->word, from->requests, sizeof(*scratch->word), compare_i64);
	for (uint32_t r = 1; r < from->requests; r++)
		if (scratch->word[r] == scratch->word[r - 1])
			return -EINVAL;
	return 0;
}

/* k* = argmax (d_{k+1} - d_k), the first of equals; RED = (k d_1 + (n - k) d_{k*+1}) / n, rounded down. */
static void score(struct plan_batch *batch, int64_t *d, uint32_t n)
{
	__int128 sum;
	uint32_t k = 1;

	qsort(d, n, sizeof(*d), compare_i64);
	batch->red = batch->loose = d[0];
	if (d[0] == d[n - 1])
		return;
	for (uint32_t i = 2; i < n; i++)
		if ((uint64_t)d[i] - (uint64_t)d[i - 1] > (uint64_t)d[k] - (uint64_t)d[k - 1])
			k = i;
	sum = (__int128)d[0] * k + (__int128)d[k] * (n - k);
	batch->red = (int64_t)((sum - (sum < 0 ? n - 1 : 0)) / n);
	batch->loose = d[k];
}

static void *cut(char **at, size_t bytes)
{
	void *piece = *at;

	*at += (bytes + 7) & ~(size_t)7;
	return piece;
}

/* Cuts the longest run out of the ports. It spans those without load where that wastes little. */
static void cut_run(struct scratch *scratch)
{
	uint32_t best = 0, most = 0, *port = scratch->port;

	for (uint32_t i = 0, begin = 0; i < scratch->ports; i++) {
		if (i && port[i] - port[i - 1] > RUN_GAP)
			begin = i;
		if (i - begin + 1 > most) {
			most = i - begin + 1;
			best = begin;
		}
	}
	if (most < RUN_MIN || port[best + most - 1] - port[best] >= 2 * most)
		return;
	scratch->first = port[best];
	scratch->run = port[best + most - 1] - port[best] + 1;
	memmove(port + best, port + best + most, (scratch->ports - best - most) * sizeof(*port));
	scratch->ports -= most;
}

/* The block with its arrays, and its row in plan->staging. */
static struct plan_batch *lay(struct mfs_plan *plan, const struct mfs_plan_batch *from, const struct scratch *scratch, uint64_t cells)
{
	uint32_t n = scratch->run + scratch->ports;
	bool wide = scratch->wide;
	struct plan_batch *batch;
	struct plan_row *row;
	char *at = NULL;
	size_t bytes;

	bytes = sizeof(*row) + (size_t)n * (wide ? 8 : 4) + scratch->ports * sizeof(uint32_t) + 8;
	if (bytes > plan->staging_room) {
		at = realloc(plan->staging, bytes);
		if (!at)
			return NULL;
		plan->staging = at;
		plan->staging_room = bytes;
	}
	row = (struct plan_row *)plan->staging;
	memset(row, 0, bytes);
	bytes = sizeof(*batch) + (size_t)n * (8 + 3 * 4) + from->requests * sizeof(struct plan_request) +
		cells * (sizeof(struct plan_cell) + 4) + 64;
	batch = calloc(1, bytes);
	if (!batch)
		return NULL;
	row->n = n;
	row->first = scratch->first;
	row->run = scratch->run;
	row->wide = wide;
	row->batch = batch;
	memcpy(plan_row_ports(row), scratch->port, scratch->ports * sizeof(*scratch->port));
	at = (char *)(plan_row_ports(row) + scratch->ports);
	row->bytes = (uint32_t)(((size_t)(at - plan->staging) + 7) & ~(size_t)7);
	batch->row = row;
	batch->requests = from->requests;
	at = (char *)(batch + 1);
	if (from->fixed_loads)
		batch->fixed = cut(&at, n * sizeof(*batch->fixed));
	batch->request = cut(&at, from->requests * sizeof(*batch->request));
	batch->cell = cut(&at, cells * sizeof(*batch->cell));
	batch->column = cut(&at, (n + 1) * sizeof(*batch->column));
	batch->cursor = cut(&at, n * sizeof(*batch->cursor));
	batch->touch_at = cut(&at, n * sizeof(*batch->touch_at));
	batch->request[0].part = cut(&at, cells * sizeof(uint32_t));
	return batch;
}

/* Cells into columns, columns in order, and to each request its cells. */
static void sort_cells(struct plan_batch *batch, const struct mfs_plan_batch *from, const uint32_t *k_of)
{
	uint32_t *part = (uint32_t *)batch->request[0].part;
	const struct mfs_plan_load *load = from->load + from->fixed_loads;
	uint32_t n = batch->row->n;

	for (uint32_t r = 0; r < from->requests; r++)
		for (uint32_t i = 0; i < from->request[r].loads; i++, load++)
			if (load->amount)
				batch->column[k_of[load->port] + 1]++;
	for (uint32_t k = 0; k < n; k++) {
		batch->column[k + 1] += batch->column[k];
		batch->cursor[k] = batch->column[k];
	}
	load = from->load + from->fixed_loads;
	for (uint32_t r = 0; r < from->requests; r++) {
		batch->request[r].part = part;
		for (uint32_t i = 0; i < from->request[r].loads; i++, load++) {
			uint32_t k = k_of[load->port];

			if (!load->amount)
				continue;
			batch->cell[batch->cursor[k]++] = (struct plan_cell){ load->amount, 0, r, k };
			part++;
		}
	}
	for (uint32_t k = 0; k < n; k++) {
		uint32_t begin = batch->column[k], cells = batch->column[k + 1] - begin;

		batch->cursor[k] = begin;
		if (cells > 1)
			qsort_r(batch->cell + begin, cells, sizeof(*batch->cell), compare_cell, batch->request);
	}
	for (uint32_t c = 0; c < batch->column[n]; c++) {
		struct plan_request *request = &batch->request[batch->cell[c].request];

		((uint32_t *)request->part)[request->parts++] = c;
	}
}

static void fill(struct mfs_plan *plan, struct plan_batch *batch, const struct mfs_plan_batch *from,
		 const struct scratch *scratch)
{
	const struct mfs_plan_load *load = from->load;
	struct plan_row *row = batch->row;

	for (uint32_t i = 0; i < scratch->ports; i++)
		plan->k_of[scratch->port[i]] = row->run + i;
	for (uint32_t k = 0; k < row->run; k++)
		plan->k_of[row->first + k] = k;
	if (row->run)
		row->class = plan->class[row->first];
	for (uint32_t k = 1; k < row->run; k++)
		if (plan->class[row->first + k] != row->class)
			row->class = PLAN_NONE;
	for (uint32_t i = 0; i < from->fixed_loads; i++, load++) {
		uint32_t k = plan->k_of[load->port];

		batch->fixed[k] = load->amount;
		plan_row_change(row, k, load->amount);
	}
	for (uint32_t r = 0; r < from->requests; r++) {
		struct plan_request *request = &batch->request[r];
		int64_t alone = 0;

		for (uint32_t i = 0; i < from->request[r].loads; i++, load++) {
			int64_t time = plan_time(plan, load->port, load->amount);

			alone = time > alone ? time : alone;
		}
		request->id = from->request[r].id;
		request->batch = batch;
		request->deadline = scratch->word[r] = from->request[r].deadline_ns;
		request->latest = request->deadline - alone - (plan->paper ? 0 : from->compute_ns);
	}
	batch->id = from->id;
	batch->compute = from->compute_ns;
	score(batch, scratch->word, from->requests);
	row->loose = batch->loose;
	row->due = batch->loose - (plan->paper ? batch->compute : 0);
	row->helped = plan->paper ? INT64_MAX : batch->loose - batch->compute;
	sort_cells(batch, from, plan->k_of);
	for (uint32_t k = 0; k < row->n; k++)
		batch->touch_at[k] = PLAN_NONE;
}

/* A batch with only its fixed loads in the row. -EINVAL, -ERANGE, -ENOMEM as mfs_plan_put. */
int plan_batch_build(struct mfs_plan *plan, const struct mfs_plan_batch *from, struct plan_batch **out)
{
	struct scratch scratch = { 0 };
	uint64_t cells = 0;
	int rc;

	if (!from->requests || from->compute_ns < 0)
		return -EINVAL;
	if (from->compute_ns > MFS_PLAN_TIME_MAX)
		return -ERANGE;
	scratch.port = malloc((plan->ports + 1) * sizeof(*scratch.port));
	scratch.word = malloc(from->requests * sizeof(*scratch.word));
	rc = scratch.port && scratch.word ? check(plan, from, &scratch, &cells) : -ENOMEM;
	if (!rc) {
		qsort(scratch.port, scratch.ports, sizeof(*scratch.port), compare_u32);
		cut_run(&scratch);
		*out = lay(plan, from, &scratch, cells);
		if (*out)
			fill(plan, *out, from, &scratch);
		else
			rc = -ENOMEM;
	}
	free(scratch.port);
	free(scratch.word);
	return rc;
}
