/*
 * Rows packed in chunks, in the order of their batches: coming and going moves the rows of one chunk, and a walk
 * reads memory from end to end.
 */
#include <string.h>

#include "state.h"

#ifndef ROOM
#define ROOM 32768 /* bytes: some three hundred rows of few ports */
#endif

void plan_chunk_free(struct plan_chunk *chunk)
{
	if (chunk)
		free(chunk->before.load);
	free(chunk);
}

static int make(const struct mfs_plan *plan, struct plan_chunk **out, uint32_t room)
{
	struct plan_chunk *chunk;

	if (*out && (*out)->room >= room)
		return 0;
	chunk = malloc(sizeof(*chunk) + room);
	if (!chunk)
		return -ENOMEM;
	*chunk = (struct plan_chunk){ .room = room, .changed = true };
	if (plan->classes == 1) {
		chunk->before.load = calloc(plan->ports, sizeof(*chunk->before.load));
		if (!chunk->before.load) {
			free(chunk);
			return -ENOMEM;
		}
	}
	plan_chunk_free(*out);
	*out = chunk;
	return 0;
}

/* A chunk may be split and the new row may need one of its own: two chunks in reserve, for any chunk's rows. */
int plan_chunk_reserve(struct mfs_plan *plan, uint32_t bytes)
{
	int rc = plan_grow(&plan->chunk, sizeof(*plan->chunk.at), (uint64_t)plan->chunk.n + 2);

	if (plan->chunk_room < ROOM)
		plan->chunk_room = ROOM;
	if (plan->chunk_room < bytes)
		plan->chunk_room = bytes;
	rc = rc ? rc : PLAN_RESERVE(plan->bound, (uint64_t)plan->chunk.n + 2);
	rc = rc ? rc : make(plan, &plan->spare_chunk[0], plan->chunk_room);
	return rc ? rc : make(plan, &plan->spare_chunk[1], plan->chunk_room);
}

static void number(struct mfs_plan *plan, uint32_t from)
{
	for (; from < plan->chunk.n; from++)
		plan->chunk.at[from]->at = from;
}

static struct plan_chunk *take_spare(struct mfs_plan *plan, uint32_t at)
{
	uint32_t which = !plan->spare_chunk[0];
	struct plan_chunk *chunk = plan->spare_chunk[which];

	plan->spare_chunk[which] = NULL;
	memmove(plan->chunk.at + at + 1, plan->chunk.at + at, (plan->chunk.n++ - at) * sizeof(*plan->chunk.at));
	plan->chunk.at[at] = chunk;
	number(plan, at);
	return chunk;
}

/* Tells the batches from `offset` on where their rows are. */
static void settle(struct plan_chunk *chunk, uint32_t offset)
{
	while (offset < chunk->used) {
		struct plan_row *row = (struct plan_row *)(chunk->rows + offset);

		row->batch->row = row;
		row->batch->chunk = chunk;
		offset += row->bytes;
	}
}

static void append(struct plan_chunk *to, const char *rows, uint32_t bytes)
{
	uint32_t offset = to->used;

	memcpy(to->rows + offset, rows, bytes);
	to->used += bytes;
	to->changed = true;
	to->known = false;
	settle(to, offset);
}

/* Moves the row of the batch from where it was built to behind that of position at - 1. */
void plan_chunk_insert(struct mfs_plan *plan, struct plan_batch *batch, uint32_t at)
{
	const struct plan_batch *before = at ? plan->order.at[at - 1] : NULL;
	struct plan_chunk *chunk = before ? before->chunk : plan->chunk.n ? plan->chunk.at[0] : take_spare(plan, 0);
	uint32_t offset = before ? (uint32_t)((char *)before->row - chunk->rows) + before->row->bytes : 0;
	struct plan_row *row = batch->row;

	if (chunk->used + row->bytes > chunk->room) {
		struct plan_chunk *split = offset < chunk->used ? take_spare(plan, chunk->at + 1) : NULL;

		if (split) {
			plan_sums_at(plan, chunk, offset, &split->before);
			append(split, chunk->rows + offset, chunk->used - offset);
		}
		chunk->used = offset;
		chunk->changed = true;
		chunk->known = false;
		if (chunk->used + row->bytes > chunk->room) {
			struct plan_chunk *own = take_spare(plan, chunk->at + 1);

			plan_sums_at(plan, chunk, offset, &own->before);
			chunk = own;
		}
		append(chunk, (const char *)row, row->bytes);
		plan_sums_row(plan, chunk, batch->row, 1);
		return;
	}
	memmove(chunk->rows + offset + row->bytes, chunk->rows + offset, chunk->used - offset);
	memcpy(chunk->rows + offset, row, row->bytes);
	chunk->used += row->bytes;
	chunk->changed = true;
	chunk->known = false;
	settle(chunk, offset);
	plan_sums_row(plan, chunk, batch->row, 1);
}

static void drop(struct mfs_plan *plan, uint32_t at)
{
	plan_chunk_free(plan->chunk.at[at]);
	memmove(plan->chunk.at + at, plan->chunk.at + at + 1, (--plan->chunk.n - at) * sizeof(*plan->chunk.at));
	number(plan, at);
}

void plan_chunk_remove(struct mfs_plan *plan, struct plan_batch *batch)
{
	struct plan_chunk *chunk = batch->chunk, *next;
	uint32_t offset = (uint32_t)((char *)batch->row - chunk->rows), bytes = batch->row->bytes, at;

	plan_sums_row(plan, chunk, batch->row, -1);
	chunk->changed = true;
	chunk->known = false;
	chunk->used -= bytes;
	memmove(chunk->rows + offset, chunk->rows + offset + bytes, chunk->used - offset);
	settle(chunk, offset);
	if (chunk->used >= chunk->room / 4)
		return;
	at = chunk->at;
	if (!chunk->used) {
		drop(plan, at);
		return;
	}
	next = at + 1 < plan->chunk.n ? plan->chunk.at[at + 1] : NULL;
	if (next && chunk->used + next->used <= chunk->room / 2) {
		append(chunk, next->rows, next->used);
		drop(plan, at + 1);
	}
}
