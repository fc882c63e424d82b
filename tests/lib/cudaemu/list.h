/* Every kernel of the project, by the name that its module gives it: K(name). A kernel that is here
 * and not linked is the linker's error. */
#ifndef CST_CUDAEMU_LIST_H
#define CST_CUDAEMU_LIST_H

#define CST_EMU_KERNELS(K)                                                                         \
    K(cst_adamw_kernel)                                                                            \
    K(cst_adamw_tiles_kernel)                                                                      \
    K(cst_reduce_kernel)                                                                           \
    K(cst_norm_kernel)                                                                             \
    K(cst_cast_kernel)                                                                             \
    K(cst_upcast_kernel)

#endif
