/* SPDX-License-Identifier: Apache-2.0 */
/* All kernels of the project, as K(name) with the name in the kernel's module. The linker reports a
 * kernel that is listed here and not linked. */
#ifndef CST_CUDAEMU_LIST_H
#define CST_CUDAEMU_LIST_H

#define CST_EMU_KERNELS(K)                                                                         \
    K(cst_update_fp32_kernel)                                                                      \
    K(cst_update_bf16_kernel)                                                                      \
    K(cst_update_bf16_nearest_kernel)                                                              \
    K(cst_update_mx8_kernel)                                                                       \
    K(cst_update_mx8_nearest_kernel)                                                               \
    K(cst_direct_fp32_kernel)                                                                      \
    K(cst_direct_bf16_kernel)                                                                      \
    K(cst_direct_mx8_kernel)                                                                       \
    K(cst_muon_sums_kernel)                                                                        \
    K(cst_muon_scale_kernel)                                                                       \
    K(cst_muon_product_kernel)                                                                     \
    K(cst_sum_kernel)                                                                              \
    K(cst_reduce_kernel)                                                                           \
    K(cst_norm_kernel)                                                                             \
    K(cst_cast_kernel)                                                                             \
    K(cst_upcast_kernel)                                                                           \
    K(cst_total_fp32_kernel)                                                                       \
    K(cst_total_bf16_kernel)                                                                       \
    K(gpt_attention_forward_32)                                                                    \
    K(gpt_attention_forward_64)                                                                    \
    K(gpt_attention_forward_128)                                                                   \
    K(gpt_attention_forward_256)                                                                   \
    K(gpt_attention_prepare)                                                                       \
    K(gpt_attention_dq_32)                                                                         \
    K(gpt_attention_dq_64)                                                                         \
    K(gpt_attention_dq_128)                                                                        \
    K(gpt_attention_dq_256)                                                                        \
    K(gpt_attention_dkv_32)                                                                        \
    K(gpt_attention_dkv_64)                                                                        \
    K(gpt_attention_dkv_128)                                                                       \
    K(gpt_attention_dkv_256)                                                                       \
    K(gpt_choose_backward_kernel)                                                                  \
    K(gpt_choose_kernel)                                                                           \
    K(gpt_columns_kernel)                                                                          \
    K(gpt_combine_kernel)                                                                          \
    K(gpt_embed_kernel)                                                                            \
    K(gpt_gather_gated_kernel)                                                                     \
    K(gpt_gather_kernel)                                                                           \
    K(gpt_gelu_backward_kernel)                                                                    \
    K(gpt_gelu_kernel)                                                                             \
    K(gpt_loss_kernel)                                                                             \
    K(gpt_matmul_kernel)                                                                           \
    K(gpt_norm_backward_kernel)                                                                    \
    K(gpt_norm_kernel)                                                                             \
    K(gpt_position_grad_kernel)                                                                    \
    K(gpt_residual_kernel)                                                                         \
    K(gpt_round_kernel)                                                                            \
    K(gpt_sums_kernel)                                                                             \
    K(gpt_token_grad_kernel)                                                                       \
    K(cst_probe_mma)

#endif
