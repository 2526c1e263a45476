/* Pairing heaps whose links are stored in the records that they sort, so nothing is allocated after
 * creation. A `struct pairing` tells what is sorted and how; it is constant at every call, so the compiler
 * inlines it. A heap is its root, 0 if empty. Insert is O(1), remove O(log n) amortised. No two elements
 * of a heap have the same order. */
#ifndef MFS_PAIRING_H
#define MFS_PAIRING_H

#include <stdbool.h>
#include <stdint.h>

struct mfs_rmlq;

struct pairing_links {
	uint32_t child, next, prev; /* prev of a first child is its parent */
};

struct pairing {
	struct pairing_links *(*links)(const struct mfs_rmlq *q, uint32_t i);
	bool (*before)(const struct mfs_rmlq *q, uint32_t a, uint32_t b);
};

#define PAIRING_INLINE static inline __attribute__((always_inline))

PAIRING_INLINE uint32_t pairing_meld(const struct pairing *of, const struct mfs_rmlq *q, uint32_t a,
				     uint32_t b)
{
	struct pairing_links *first, *second;

	if (!a || !b)
		return a | b;
	if (of->before(q, b, a)) {
		uint32_t t = a;

		a = b;
		b = t;
	}
	first = of->links(q, a);
	second = of->links(q, b);
	second->prev = a;
	second->next = first->child;
	if (first->child)
		of->links(q, first->child)->prev = b;
	first->child = b;
	return a;
}

/* Melds a list of siblings: first in pairs from the left, then all of these from the right. */
PAIRING_INLINE uint32_t pairing_collect(const struct pairing *of, const struct mfs_rmlq *q, uint32_t list)
{
	uint32_t pairs = 0, root = 0;

	while (list) {
		uint32_t a = list, b = of->links(q, a)->next, pair;

		list = b ? of->links(q, b)->next : 0;
		of->links(q, a)->next = 0;
		if (b)
			of->links(q, b)->next = 0;
		pair = pairing_meld(of, q, a, b);
		of->links(q, pair)->next = pairs;
		pairs = pair;
	}
	while (pairs) {
		uint32_t next = of->links(q, pairs)->next;

		of->links(q, pairs)->next = 0;
		root = pairing_meld(of, q, root, pairs);
		pairs = next;
	}
	if (root)
		of->links(q, root)->prev = 0;
	return root;
}

PAIRING_INLINE void pairing_insert(const struct pairing *of, const struct mfs_rmlq *q, uint32_t *root,
				   uint32_t i)
{
	*of->links(q, i) = (struct pairing_links){0, 0, 0};
	*root = pairing_meld(of, q, *root, i);
}

PAIRING_INLINE void pairing_remove(const struct pairing *of, const struct mfs_rmlq *q, uint32_t *root,
				   uint32_t i)
{
	const struct pairing_links *links = of->links(q, i);
	uint32_t below = pairing_collect(of, q, links->child);

	if (*root == i) {
		*root = below;
		return;
	}
	if (of->links(q, links->prev)->child == i)
		of->links(q, links->prev)->child = links->next;
	else
		of->links(q, links->prev)->next = links->next;
	if (links->next)
		of->links(q, links->next)->prev = links->prev;
	*root = pairing_meld(of, q, *root, below);
}

#endif
