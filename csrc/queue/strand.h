/* Strands: what a request or batch has waiting for one destination. The first destination uses the owner's
 * own record. A strand exists only while it has flows, so an owner that has flows to one destination at a
 * time has no strands. */
#ifndef MFS_RMLQ_STRAND_H
#define MFS_RMLQ_STRAND_H

#include "state.h"

static inline bool batch_strand_empty(const struct batch *strand)
{
	return !strand->due && !strand->ahead && !strand->urgent[0].head && !strand->urgent[1].head;
}

static inline uint32_t batch_strand_search(const struct mfs_rmlq *q, uint32_t b, uint16_t destination)
{
	const struct mfs_record *of = &batch_at(q, b)->record;

	if (b == MFS_BATCH_UNNAMED)
		return mfs_slab_find(&q->batch, b, strand_part(BATCH_UNNAMED, destination));
	return mfs_slab_find(&q->batch, of->key, strand_part(of->part, destination));
}

/* Returns the record for a destination that has waiting flows: a strand, or the batch. */
static inline uint32_t batch_strand_find(const struct mfs_rmlq *q, uint32_t b, uint16_t destination)
{
	return batch_at(q, b)->destination == destination ? b : batch_strand_search(q, b, destination);
}

/* Like batch_strand_find, but makes the record if there is none. */
static inline uint32_t batch_strand_make(struct mfs_rmlq *q, uint32_t b, uint16_t destination)
{
	struct batch *batch = batch_at(q, b), *strand;
	const bool unnamed = b == MFS_BATCH_UNNAMED;
	uint32_t s;

	if (batch->destination == destination)
		return b;
	s = batch->strands ? batch_strand_search(q, b, destination) : 0;
	if (s)
		return s;
	if (batch_strand_empty(batch)) {
		batch->destination = destination;
		return b;
	}
	/* cannot fail: there is one for every flow */
	s = mfs_slab_take(&q->batch, unnamed ? b : batch->record.key,
			  strand_part(unnamed ? BATCH_UNNAMED : batch->record.part, destination));
	strand = batch_at(q, s);
	record_clear(strand);
	strand->destination = destination;
	strand->strand_of = b;
	strand->strand_next = batch->strands;
	if (batch->strands)
		batch_at(q, batch->strands)->strand_prev = s;
	batch->strands = s;
	q->batch_strands++;
	return s;
}

static inline void batch_strand_release(struct mfs_rmlq *q, uint32_t s)
{
	const struct batch *strand = batch_at(q, s);

	if (strand->strand_next)
		batch_at(q, strand->strand_next)->strand_prev = strand->strand_prev;
	if (strand->strand_prev)
		batch_at(q, strand->strand_prev)->strand_next = strand->strand_next;
	else
		batch_at(q, strand->strand_of)->strands = strand->strand_next;
	q->batch_strands--;
	mfs_slab_give(&q->batch, s);
}

/* Returns the record for a destination to which last-stage flows of the request wait: a strand, or the
 * request. Only a request with a key can have several. */
static inline uint32_t request_strand_find(const struct mfs_rmlq *q, uint32_t r, uint16_t destination)
{
	const struct request *request = request_at(q, r);

	if (request->destination == destination)
		return r;
	return mfs_slab_find(&q->request, request->record.key, strand_part(0, destination));
}

/* Like request_strand_find, but makes the record if there is none. */
static inline uint32_t request_strand_make(struct mfs_rmlq *q, uint32_t r, uint16_t destination)
{
	struct request *request = request_at(q, r), *strand;
	uint32_t s;

	if (request->destination == destination)
		return r;
	s = request->split ? mfs_slab_find(&q->request, request->record.key, strand_part(0, destination)) : 0;
	if (s)
		return s;
	if (!request->fifo.head) {
		request->destination = destination;
		return r;
	}
	s = mfs_slab_take(&q->request, request->record.key,
			  strand_part(0, destination)); /* cannot fail: there is one for every flow */
	strand = request_at(q, s);
	record_clear(strand);
	strand->kind = REQUEST_STRAND;
	strand->destination = destination;
	strand->strand_next = request->strands;
	if (request->strands)
		request_at(q, request->strands)->strand_prev = s;
	request->strands = s;
	request->split = true;
	q->request_strands++;
	return s;
}

static inline void request_strand_release(struct mfs_rmlq *q, uint32_t r, uint32_t s)
{
	const struct request *strand = request_at(q, s);

	if (strand->strand_next)
		request_at(q, strand->strand_next)->strand_prev = strand->strand_prev;
	if (strand->strand_prev)
		request_at(q, strand->strand_prev)->strand_next = strand->strand_next;
	else
		request_at(q, r)->strands = strand->strand_next;
	request_at(q, r)->split = request_at(q, r)->strands != 0;
	q->request_strands--;
	mfs_slab_give(&q->request, s);
}

/* Walks the request and its strands: returns what follows `s`, 0 after the last. */
static inline uint32_t request_strand_next(const struct mfs_rmlq *q, uint32_t r, uint32_t s)
{
	if (s == r)
		return request_at(q, r)->split ? request_at(q, r)->strands : 0;
	return request_at(q, s)->strand_next;
}

#endif
