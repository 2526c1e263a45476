/* An attacker chooses numbers of requests and layers that share a bucket. In a ledger whose salt the
 * attacker does not know, they do not. */
#include "../../csrc/arbiter/ledger.c"

#include <stdio.h>

#define CHOSEN 2000
#define CHAIN_MAX 16 /* 2,000 rows in 4,096 buckets: a chain of 16 has a probability of 10^-12 */

static void must(bool holds, const char *what)
{
	if (holds)
		return;
	fprintf(stderr, "not so: %s\n", what);
	exit(1);
}

static unsigned longest_row_chain(const struct ledger *ledger)
{
	unsigned longest = 0, n;

	for (uint32_t b = 0; b < ROW_BUCKETS; b++) {
		n = 0;
		for (uint32_t r = ledger->row_bucket[b]; r; r = ledger->row[r - 1].hash_next)
			n++;
		longest = n > longest ? n : longest;
	}
	return longest;
}

static unsigned longest_cell_chain(const struct ledger *ledger)
{
	unsigned longest = 0, n;

	for (uint32_t b = 0; b < CELL_BUCKETS; b++) {
		n = 0;
		for (uint32_t c = ledger->cell_bucket[b]; c; c = ledger->cell[c - 1].hash_next)
			n++;
		longest = n > longest ? n : longest;
	}
	return longest;
}

/* Fills rows first, then cells of the rows that those got: all that a ledger of salt 0 would put into its
 * first bucket. */
static void fill(struct ledger *ledger, struct ledger *guessed)
{
	unsigned n = 0;

	for (uint64_t id = 1; n < CHOSEN; id++)
		if (row_bucket(guessed, 7, id) == guessed->row_bucket) {
			ledger_announced(ledger, 7, id, 0, 1);
			n++;
		}
}

static void fill_cells(struct ledger *ledger, struct ledger *guessed)
{
	unsigned n = 0;

	for (uint32_t row = 1; n < CHOSEN && row <= MFS_LEDGER_REQUESTS; row++)
		for (uint32_t layer = 0; layer < UINT16_MAX; layer++)
			for (uint8_t stage = 0; stage < MFS_STAGES_MAX; stage++)
				if (cell_bucket(guessed, row, stage, (uint16_t)layer) == guessed->cell_bucket) {
					ledger_submit(ledger, 7, row, stage, (uint16_t)layer, 1, 0, 1);
					n++;
				}
}

int main(void)
{
	struct ledger *guessed = ledger_create(0), *salted = ledger_create(0x5851f42d4c957f2dull);

	must(guessed && salted, "two ledgers are made");
	fill(guessed, guessed);
	fill(salted, guessed);
	must(longest_row_chain(guessed) == CHOSEN, "the numbers are well chosen: they chain where the salt is known");
	must(longest_row_chain(salted) < CHAIN_MAX, "chosen requests do not chain");
	ledger_destroy(guessed);
	ledger_destroy(salted);
	guessed = ledger_create(0);
	salted = ledger_create(0x5851f42d4c957f2dull);
	must(guessed && salted, "two more are made");
	fill_cells(guessed, guessed);
	fill_cells(salted, guessed);
	must(longest_cell_chain(guessed) >= CHOSEN, "the layers are well chosen");
	must(longest_cell_chain(salted) < CHAIN_MAX, "chosen layers do not chain");
	ledger_destroy(guessed);
	ledger_destroy(salted);
	return 0;
}
