/* The descriptors that belong to this library. */
#ifndef MFS_SOFT_ROCE_DESCRIPTORS_H
#define MFS_SOFT_ROCE_DESCRIPTORS_H

int mfs_descriptor_own(int fd);
void mfs_descriptor_close(int fd);
void mfs_descriptors_close_all(void);

#endif
