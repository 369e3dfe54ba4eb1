// The one table from op kinds to what prepares them.
#include "ops/prepare.h"

namespace qeff {

namespace {

struct Kind {
  const char* name;
  Prepare prepare;
};

constexpr Kind kKinds[] = {
    {"attention", prepare_attention},
    {"binary", prepare_binary},
    {"cast", prepare_cast},
    {"concat", prepare_concat},
    {"cumsum", prepare_cumsum},
    {"embed", prepare_embed},
    {"expand", prepare_expand},
    {"gated", prepare_gated},
    {"gather", prepare_gather},
    {"gather_rows", prepare_gather_rows},
    {"linear", prepare_linear},
    {"matmul", prepare_matmul},
    {"moe", prepare_moe},
    {"norm", prepare_norm},
    {"reduce", prepare_reduce},
    {"reduce_span", prepare_reduce_span},
    {"reshape", prepare_reshape},
    {"rope", prepare_rope},
    {"scatter", prepare_scatter},
    {"slice", prepare_slice},
    {"softmax", prepare_softmax},
    {"topk", prepare_topk},
    {"transpose", prepare_transpose},
    {"unary", prepare_unary},
    {"where", prepare_where},
};

}  // namespace

Prepare find_prepare(const std::string& kind) {
  for (const Kind& known : kKinds) {
    if (kind == known.name) return known.prepare;
  }
  return nullptr;
}

}  // namespace qeff
