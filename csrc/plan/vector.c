/* Room in the plan core's growing arrays. */
#include "state.h"

/* `vector`: any of PLAN_VECTOR or those that are laid out like it. */
int plan_grow(void *vector, size_t size, uint64_t need)
{
	PLAN_VECTOR(void) *v = vector;
	uint64_t room = v->room ? v->room : 16;
	void *bigger;

	if (need <= v->room)
		return 0;
	while (room < need)
		room *= 2;
	if (room >= PLAN_NONE)
		return -ENOMEM;
	bigger = realloc(v->at, room * size);
	if (!bigger)
		return -ENOMEM;
	v->at = bigger;
	v->room = (uint32_t)room;
	return 0;
}
