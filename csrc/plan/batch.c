/* The block of one batch: checks its input, and sets its RED, its loads by port, and the requests of each
 * port in order of load. */
#define _GNU_SOURCE /* for qsort_r */
#include "state.h"

static int compare_i64(const void *a, const void *b)
{
	int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

	return (x > y) - (x < y);
}

static int compare_cell(const void *a, const void *b, void *requests)
{
	const struct plan_cell *x = a, *y = b;
	const struct plan_request *request = requests;

	if (x->k != y->k)
		return x->k < y->k ? -1 : 1;
	if (x->busy != y->busy)
		return x->busy > y->busy ? -1 : 1;
	return request[x->request].why.request > request[y->request].why.request ? -1 : 1;
}

/* Checks the loads of one owner (the batch itself or a request): each port occurs once, and each load is
 * possible. Adds ports not seen since `first_stamp` to plan->port. */
static int check_loads(struct mfs_plan *plan, const struct mfs_plan_load *load, uint32_t n,
		       uint64_t first_stamp, uint32_t *ports, uint64_t *cells)
{
	uint64_t stamp = ++plan->stamps;

	for (uint32_t i = 0; i < n; i++) {
		uint32_t u = load[i].port;

		if (u >= plan->config.ports || plan->stamp[u] == stamp || load[i].busy_ns < 0)
			return -EINVAL;
		if (load[i].busy_ns > MFS_PLAN_TIME_MAX)
			return -ERANGE;
		if (plan->stamp[u] < first_stamp)
			plan->port[(*ports)++] = u;
		plan->stamp[u] = stamp;
		*cells += load[i].busy_ns > 0;
	}
	return 0;
}

/* `word` must have room for one word for each request. */
static int check(struct mfs_plan *plan, const struct mfs_plan_batch *from, int64_t *word, uint32_t *ports,
		 uint64_t *cells)
{
	const struct mfs_plan_load *load = from->load + from->fixed_loads;
	uint64_t first_stamp = plan->stamps + 1;
	int rc;

	rc = check_loads(plan, from->load, from->fixed_loads, first_stamp, ports, cells);
	*cells = 0;
	for (uint32_t r = 0; !rc && r < from->requests; r++) {
		int64_t deadline = from->request[r].deadline_ns;

		if (deadline < -MFS_PLAN_TIME_MAX || (deadline > MFS_PLAN_TIME_MAX && deadline != INT64_MAX))
			return -ERANGE;
		word[r] = (int64_t)from->request[r].id;
		rc = check_loads(plan, load, from->request[r].loads, first_stamp, ports, cells);
		load += from->request[r].loads;
	}
	if (rc)
		return rc;
	if (*cells >= PLAN_NONE)
		return -ERANGE;
	qsort(word, from->requests, sizeof(*word), compare_i64);
	for (uint32_t r = 1; r < from->requests; r++)
		if (word[r] == word[r - 1])
			return -EINVAL;
	return 0;
}

/* k* = argmax (d_{k+1} - d_k), the first of equals; RED = (k d_1 + (n - k) d_{k*+1}) / n, rounded down. */
static void set_effective_deadline(struct plan_batch *batch, int64_t *d, uint32_t n)
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

static struct plan_batch *allocate(const struct mfs_plan_batch *from, uint32_t ports, uint64_t cells)
{
	uint64_t bytes = sizeof(struct plan_batch) + from->requests * sizeof(struct plan_request) +
			 ((uint64_t)ports + from->fixed_loads) * sizeof(struct mfs_plan_load) +
			 cells * sizeof(struct plan_cell) +
			 ((uint64_t)ports + 1) * sizeof(struct plan_column);
	struct plan_batch *batch = calloc(1, bytes);

	if (!batch)
		return NULL;
	batch->row = (struct mfs_plan_load *)(batch + 1);
	batch->fixed = batch->row + ports;
	batch->request = (struct plan_request *)(batch->fixed + from->fixed_loads);
	batch->cell = (struct plan_cell *)(batch->request + from->requests);
	batch->column = (struct plan_column *)(batch->cell + cells);
	batch->ports = ports;
	batch->requests = from->requests;
	batch->id = from->id;
	batch->compute = from->compute_ns;
	return batch;
}

/* Sorts the cells by port and load, sets the bounds of the columns, and links the cells of each request. */
static void sort_cells(struct plan_batch *batch, uint32_t cells)
{
	uint32_t c = 0;

	qsort_r(batch->cell, cells, sizeof(*batch->cell), compare_cell, batch->request);
	for (uint32_t k = 0; k <= batch->ports; k++) {
		batch->column[k] = (struct plan_column){c, c, PLAN_NONE};
		while (c < cells && batch->cell[c].k == k)
			c++;
	}
	for (c = cells; c--;) {
		struct plan_request *request = &batch->request[batch->cell[c].request];

		batch->cell[c].next = request->cell;
		request->cell = c;
	}
}

/* Fills in everything except the requests' loads in the row. */
static void fill(struct mfs_plan *plan, struct plan_batch *batch, const struct mfs_plan_batch *from,
		 int64_t *deadline)
{
	const struct mfs_plan_load *load = from->load;
	uint32_t cells = 0;

	for (uint32_t k = 0; k < batch->ports; k++) {
		batch->row[k].port = (uint32_t)plan->port[k];
		plan->k_of[plan->port[k]] = k;
	}
	for (uint32_t i = 0; i < from->fixed_loads; i++, load++) {
		if (!load->busy_ns)
			continue;
		batch->fixed[batch->fixed_loads++] = *load;
		batch->row[plan->k_of[load->port]].busy_ns = load->busy_ns;
	}
	for (uint32_t r = 0; r < from->requests; r++) {
		struct plan_request *request = &batch->request[r];
		int64_t alone = 0;

		for (uint32_t i = 0; i < from->request[r].loads; i++, load++) {
			if (!load->busy_ns)
				continue;
			alone = plan_max(alone, load->busy_ns);
			batch->cell[cells++] = (struct plan_cell){load->busy_ns, load->port,
								  plan->k_of[load->port], PLAN_NONE, r};
		}
		request->why.request = from->request[r].id;
		request->why.batch = from->id;
		request->batch = batch;
		request->cell = PLAN_NONE;
		request->deadline = deadline[r] = from->request[r].deadline_ns;
		request->latest = request->deadline - alone - (plan->config.paper ? 0 : from->compute_ns);
	}
	set_effective_deadline(batch, deadline, from->requests);
	sort_cells(batch, cells);
}

/* Builds a batch with only its fixed loads in the row. Errors as for mfs_plan_put. */
int plan_batch_build(struct mfs_plan *plan, const struct mfs_plan_batch *from, struct plan_batch **out)
{
	uint64_t cells = 0;
	uint32_t ports = 0;
	int64_t *word;
	int rc;

	if (!from->requests || from->compute_ns < 0)
		return -EINVAL;
	if (from->compute_ns > MFS_PLAN_TIME_MAX)
		return -ERANGE;
	word = malloc(from->requests * sizeof(*word));
	rc = word ? check(plan, from, word, &ports, &cells) : -ENOMEM;
	if (!rc) {
		qsort(plan->port, ports, sizeof(*plan->port), compare_i64);
		*out = allocate(from, ports, cells);
		if (*out)
			fill(plan, *out, from, word);
		else
			rc = -ENOMEM;
	}
	free(word);
	return rc;
}

/* Room must be reserved. */
void plan_candidates_add(struct mfs_plan *plan, struct plan_batch *batch)
{
	for (uint32_t k = 0; k < batch->ports; k++) {
		struct plan_candidates_list *list = &plan->candidates[batch->row[k].port];
		uint32_t c = batch->column[k].begin;

		if (c == batch->column[k + 1].begin)
			continue;
		batch->column[k].candidates_at = list->n;
		list->at[list->n++] = (struct plan_candidates){batch, batch->red, batch->cell[c].busy, k};
	}
}

void plan_candidates_remove(struct mfs_plan *plan, struct plan_batch *batch)
{
	for (uint32_t k = 0; k < batch->ports; k++) {
		struct plan_candidates_list *list = &plan->candidates[batch->row[k].port];
		uint32_t at = batch->column[k].candidates_at;

		if (at == PLAN_NONE)
			continue;
		list->at[at] = list->at[--list->n];
		list->at[at].batch->column[list->at[at].k].candidates_at = at;
	}
}
