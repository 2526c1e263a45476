/* Arithmetic on runs of ports, in vectors: of eight words, which the compiler splits where registers are narrower. */
#include "state.h"

#define LANES 8
typedef int64_t words __attribute__((vector_size(64), aligned(8), may_alias));
typedef uint32_t halves __attribute__((vector_size(32), aligned(4), may_alias));
#define INLINE static inline __attribute__((always_inline))

/* (a function must not return a vector that the processor may lack) */
INLINE void amounts_at(words *out, const void *amounts, bool wide, uint32_t k)
{
	if (wide)
		*out = *(const words *)((const int64_t *)amounts + k);
	else
		*out = __builtin_convertvector(*(const halves *)((const uint32_t *)amounts + k), words);
}

INLINE int64_t amount_at(const void *amounts, bool wide, uint32_t k)
{
	return wide ? ((const int64_t *)amounts)[k] : ((const uint32_t *)amounts)[k];
}

INLINE bool add(int64_t *load, const int64_t *within, const void *amounts, bool wide, uint32_t n)
{
	words over = { 0 };
	int64_t any = 0;
	uint32_t k = 0;

	for (; k + LANES <= n; k += LANES) {
		words sum;

		amounts_at(&sum, amounts, wide, k);
		sum += *(words *)(load + k);
		*(words *)(load + k) = sum;
		over |= sum > *(const words *)(within + k);
	}
	for (; k < n; k++) {
		load[k] += amount_at(amounts, wide, k);
		any |= load[k] > within[k];
	}
	for (uint32_t lane = 0; lane < LANES; lane++)
		any |= over[lane];
	return any;
}

INLINE int64_t most(int64_t *load, const void *amounts, bool wide, uint32_t n)
{
	words top = { 0 };
	int64_t most = 0;
	uint32_t k = 0;

	for (; k + LANES <= n; k += LANES) {
		words sum, more;

		amounts_at(&sum, amounts, wide, k);
		sum += *(words *)(load + k);
		*(words *)(load + k) = sum;
		more = sum > top;
		top = (sum & more) | (top & ~more);
	}
	for (; k < n; k++) {
		load[k] += amount_at(amounts, wide, k);
		most = load[k] > most ? load[k] : most;
	}
	for (uint32_t lane = 0; lane < LANES; lane++)
		most = top[lane] > most ? top[lane] : most;
	return most;
}

INLINE int64_t top(const int64_t *load, uint32_t n)
{
	words top = { 0 };
	int64_t most = 0;
	uint32_t k = 0;

	for (; k + LANES <= n; k += LANES) {
		words load_k = *(const words *)(load + k), more = load_k > top;

		top = (load_k & more) | (top & ~more);
	}
	for (; k < n; k++)
		most = load[k] > most ? load[k] : most;
	for (uint32_t lane = 0; lane < LANES; lane++)
		most = top[lane] > most ? top[lane] : most;
	return most;
}

INLINE void spare(int64_t *load, int64_t *spare, int64_t *spare_at, const void *amounts, bool wide, int64_t within,
		  int64_t at, uint32_t n)
{
	uint32_t k = 0;

	for (; k + LANES <= n; k += LANES) {
		words sum = *(words *)(load + k), old = *(words *)(spare + k), fits = within - sum;
		words less = fits < old, amount, old_at = *(words *)(spare_at + k);

		amounts_at(&amount, amounts, wide, k);
		*(words *)(spare + k) = (fits & less) | (old & ~less);
		*(words *)(spare_at + k) = (at & less) | (old_at & ~less);
		*(words *)(load + k) = sum - amount;
	}
	for (; k < n; k++) {
		spare_at[k] = within - load[k] < spare[k] ? at : spare_at[k];
		spare[k] = within - load[k] < spare[k] ? within - load[k] : spare[k];
		load[k] -= amount_at(amounts, wide, k);
	}
}

/* All for one set of vectors. `wide` becomes a constant in each branch. */
#define VERSION(name, ...)                                                                                        \
	__VA_ARGS__ static bool add_##name(int64_t *load, const int64_t *within, const void *amounts, bool wide,  \
					   uint32_t n)                                                            \
	{                                                                                                         \
		return wide ? add(load, within, amounts, true, n) : add(load, within, amounts, false, n);         \
	}                                                                                                         \
	__VA_ARGS__ static int64_t most_##name(int64_t *load, const void *amounts, bool wide, uint32_t n)         \
	{                                                                                                         \
		return wide ? most(load, amounts, true, n) : most(load, amounts, false, n);                       \
	}                                                                                                         \
	__VA_ARGS__ static int64_t top_##name(const int64_t *load, uint32_t n)                                    \
	{                                                                                                         \
		return top(load, n);                                                                              \
	}                                                                                                         \
	__VA_ARGS__ static void spare_##name(int64_t *load, int64_t *left, int64_t *left_at, const void *amounts, \
					     bool wide, int64_t within, int64_t at, uint32_t n)                   \
	{                                                                                                         \
		if (wide)                                                                                         \
			spare(load, left, left_at, amounts, true, within, at, n);                                 \
		else                                                                                              \
			spare(load, left, left_at, amounts, false, within, at, n);                                \
	}

VERSION(any)
#ifdef __x86_64__
VERSION(avx2, __attribute__((target("avx2"))))
VERSION(avx512, __attribute__((target("avx512f,avx512vl,avx512dq"))))
#endif

struct plan_runs plan_runs(void)
{
#ifdef __x86_64__
	if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
		return (struct plan_runs){ add_avx512, most_avx512, spare_avx512, top_avx512 };
	if (__builtin_cpu_supports("avx2"))
		return (struct plan_runs){ add_avx2, most_avx2, spare_avx2, top_avx2 };
#endif
	return (struct plan_runs){ add_any, most_any, spare_any, top_any };
}
