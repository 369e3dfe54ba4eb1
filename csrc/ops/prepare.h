// The prepare function of every op kind; registry.cc names them by kind. See program/op_context.h.
#pragma once

#include "program/op_context.h"

namespace qeff {

void prepare_attention(OpContext& ctx);
void prepare_binary(OpContext& ctx);
void prepare_cast(OpContext& ctx);
void prepare_concat(OpContext& ctx);
void prepare_cumsum(OpContext& ctx);
void prepare_embed(OpContext& ctx);
void prepare_expand(OpContext& ctx);
void prepare_gated(OpContext& ctx);
void prepare_gather(OpContext& ctx);
void prepare_gather_rows(OpContext& ctx);
void prepare_linear(OpContext& ctx);
void prepare_matmul(OpContext& ctx);
void prepare_moe(OpContext& ctx);
void prepare_norm(OpContext& ctx);
void prepare_reduce(OpContext& ctx);
void prepare_reduce_span(OpContext& ctx);
void prepare_reshape(OpContext& ctx);
void prepare_rope(OpContext& ctx);
void prepare_scatter(OpContext& ctx);
void prepare_slice(OpContext& ctx);
void prepare_softmax(OpContext& ctx);
void prepare_topk(OpContext& ctx);
void prepare_transpose(OpContext& ctx);
void prepare_unary(OpContext& ctx);
void prepare_where(OpContext& ctx);

}  // namespace qeff
