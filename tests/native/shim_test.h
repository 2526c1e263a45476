/* Shared by the shim's tests. Every test is a function named on the command line; see tests/unit/shim. */
#ifndef SHIM_TEST_H
#define SHIM_TEST_H

#include "check.h"
#include "fake_verbs.h"
#include "scripted_daemon.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define HOLD_STAGE MFS_STAGE_P2D
#define GATE_CLOSED (1u << HOLD_STAGE)

struct rig {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_mr *mr;
	char buffer[4096];
};

struct rig *rig_open(int cqe);
struct ibv_qp *rig_qp(struct rig *r, uint32_t max_send_wr);
struct ibv_qp *rig_qp_ex(struct rig *r, uint32_t max_send_wr);
void rig_ready(struct ibv_qp *qp);
int rig_state(struct ibv_qp *qp, enum ibv_qp_state state);
int rig_poll(struct rig *r, struct ibv_wc *wc, int n); /* polls once */
void rig_drain(struct rig *r, struct ibv_wc *wc, int n); /* polls until n have come */
struct ibv_send_wr rig_write(struct rig *r, struct ibv_sge *sge, uint64_t wr_id, uint32_t bytes, int flags);
/* Posts n writes, one by one, each of 64 bytes; their ids count from `first`. */
void rig_post_writes(struct rig *r, struct ibv_qp *qp, uint64_t first, unsigned n, int flags);
unsigned posted(struct ibv_qp *qp);
struct daemon *hold_daemon(void); /* holds everything of this process */
struct mfs_rule hold_rule(void);
const char *socket_path(void);

struct test {
	const char *name;
	void (*run)(void);
};
int run_tests(const struct test *tests, int argc, char **argv);

#endif
