/* Two sides that open their devices as lanes of the classes given (-1: none), then write to each other. */
#include "verbs_pair.h"

#include <mfs/api.h>

int main(int argc, char **argv)
{
	const struct mfs_api *api = mfs_api();
	struct pair_options options = { .rnr_retry = 7 };
	struct side pair[2];

	if (argc != 3 || !api)
		return 2;
	for (int i = 0; i < 2; i++) {
		CHECK_EQUAL(api->lane_set(atoi(argv[i + 1])), 0);
		side_open(&pair[i], 65536, &options);
	}
	CHECK_EQUAL(api->lane_set(-1), 0);
	for (int i = 0; i < 2; i++)
		pair[i].qp = make_qp(&pair[i], &options, NULL);
	connect_qps(pair[0].qp, pair[1].qp, &options);
	for (int i = 0; i < 2; i++) {
		CHECK_EQUAL(post(&pair[i], &pair[!i], IBV_WR_RDMA_WRITE, 1, 0, 65536), 0);
		expect(pair[i].cq, 1, IBV_WC_SUCCESS);
	}
	pair_close(pair);
	return 0;
}
