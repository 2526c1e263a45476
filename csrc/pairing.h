/* Pairing heaps of a batch's groups, smallest `group_order` first. They live in the groups themselves, since a
 * batch cannot have an array of its own: nothing is allocated after creation. Orders in one heap differ. A
 * heap is its root, 0 if empty. O(1) insert, O(log n) amortised remove. */
#ifndef MFS_PAIRING_H
#define MFS_PAIRING_H

#include "rmlq_state.h"

/* Due: by arrival of the head; ahead: by layer. */
static inline uint64_t group_order(const struct group *group)
{
	return group->due ? group->head_arrival : group->layer;
}

static inline uint32_t pairing_meld(const struct mfs_rmlq *q, uint32_t a, uint32_t b)
{
	struct group *first, *second;

	if (!a || !b)
		return a | b;
	if (group_order(group_at(q, b)) < group_order(group_at(q, a))) {
		uint32_t t = a;

		a = b;
		b = t;
	}
	first = group_at(q, a);
	second = group_at(q, b);
	second->prev = a; /* of a first child: its parent */
	second->next = first->child;
	if (first->child)
		group_at(q, first->child)->prev = b;
	first->child = b;
	return a;
}

/* Melds a list of siblings: pairs from the left, then all from the right. */
static inline uint32_t pairing_collect(const struct mfs_rmlq *q, uint32_t list)
{
	uint32_t pairs = 0, root = 0;

	while (list) {
		uint32_t a = list, b = group_at(q, a)->next, pair;

		list = b ? group_at(q, b)->next : 0;
		group_at(q, a)->next = 0;
		if (b)
			group_at(q, b)->next = 0;
		pair = pairing_meld(q, a, b);
		group_at(q, pair)->next = pairs;
		pairs = pair;
	}
	while (pairs) {
		uint32_t next = group_at(q, pairs)->next;

		group_at(q, pairs)->next = 0;
		root = pairing_meld(q, root, pairs);
		pairs = next;
	}
	if (root)
		group_at(q, root)->prev = 0;
	return root;
}

static inline void pairing_insert(const struct mfs_rmlq *q, uint32_t *root, uint32_t i)
{
	struct group *group = group_at(q, i);

	group->child = group->next = group->prev = 0;
	*root = pairing_meld(q, *root, i);
}

static inline void pairing_remove(const struct mfs_rmlq *q, uint32_t *root, uint32_t i)
{
	struct group *group = group_at(q, i);
	uint32_t below = pairing_collect(q, group->child);

	if (*root == i) {
		*root = below;
		return;
	}
	if (group_at(q, group->prev)->child == i)
		group_at(q, group->prev)->child = group->next;
	else
		group_at(q, group->prev)->next = group->next;
	if (group->next)
		group_at(q, group->next)->prev = group->prev;
	*root = pairing_meld(q, *root, below);
}

#endif
