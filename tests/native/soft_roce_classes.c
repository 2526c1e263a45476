/* A queue pair whose two sides have the given traffic classes: data both ways, reads, then the TCP ports of
 * the sides. */
#include "verbs_pair.h"

int main(int argc, char **argv)
{
	struct pair_options options = { .rnr_retry = 7 };
	struct side pair[2];

	if (argc != 3)
		return 2;
	for (int i = 0; i < 2; i++)
		options.traffic_class[i] = (uint8_t)atoi(argv[i + 1]);
	pair_open(pair, 65536, &options);
	for (int i = 0; i < 2; i++) {
		CHECK_EQUAL(post(&pair[i], &pair[!i], IBV_WR_RDMA_WRITE, 1, 0, 65536), 0);
		expect(pair[i].cq, 1, IBV_WC_SUCCESS);
		CHECK_EQUAL(post(&pair[i], &pair[!i], IBV_WR_RDMA_READ, 2, 0, 65536), 0);
		expect(pair[i].cq, 2, IBV_WC_SUCCESS);
	}
	printf("%u %u\n", pair[0].qp->qp_num >> 8, pair[1].qp->qp_num >> 8);
	pair_close(pair);
	return 0;
}
