// embed: rows of a table, picked by a whole number for each token.
#include <cstring>

#include "ops/signature.h"
#include "program/op_context.h"

namespace qeff {

namespace {

class EmbedStage final : public Stage {
 public:
  struct Parts {
    int index, y, op;
    DType index_dtype;
    int64_t num_indices;  // an entry
    int64_t rows, offset;
    int64_t row_size;      // elements
    const std::byte* data;
    bool is_matrix;
    WeightFormat format;
    int64_t element_bytes;  // of a plain table
  };

  EmbedStage(Over over, const LinearKernels& kernels, const Parts& parts)
      : Stage(over), kernels_(kernels), parts_(parts) {}

  void run(const Step& step, int64_t first, int64_t last, Scratch) const override {
    const int64_t row_bytes = parts_.row_size * (parts_.is_matrix ? 4 : parts_.element_bytes);
    for (int64_t i = first; i < last; ++i) {
      std::byte* out = step.entry<std::byte>(parts_.y, i);
      for (int64_t j = 0; j < parts_.num_indices; ++j, out += row_bytes) {
        const int64_t index = parts_.index_dtype == DType::kI64 ? step.entry<int64_t>(parts_.index, i)[j]
                                                                : step.entry<int32_t>(parts_.index, i)[j];
        // An index may be anything, so nothing is added to it before it is checked.
        if (index < -parts_.offset || index >= parts_.rows - parts_.offset) {
          step.fail(parts_.op, index);
          std::memset(out, 0, static_cast<size_t>(row_bytes));
        } else if (parts_.is_matrix) {
          kernels_.unpack_row(parts_.format, reinterpret_cast<const uint8_t*>(parts_.data), parts_.row_size,
                              index + parts_.offset, reinterpret_cast<float*>(out));
        } else {
          std::memcpy(out, parts_.data + (index + parts_.offset) * row_bytes, static_cast<size_t>(row_bytes));
        }
      }
    }
  }

 private:
  const LinearKernels& kernels_;
  const Parts parts_;
};

}  // namespace

void prepare_embed(OpContext& ctx) {
  const ValueKind kind = check_signature(
      ctx, {{{"table", kMatrices | kWholes | kTruths, From::kWeight}, {"index", kWholes}}, {"offset", "dtype"}});
  EmbedStage::Parts parts{};
  const int table_id = ctx.input(0);
  parts.index = ctx.input(1);
  parts.y = ctx.output(0);
  parts.op = ctx.index();
  const Value& table = ctx.value(table_id);
  const Value& index = ctx.value(parts.index);
  ctx.check(!table.shape.empty() && table.shape[0] > 0, "needs a table with rows");
  parts.is_matrix = table.dtype == DType::kPanels;
  Shape expected = index.shape;
  expected.insert(expected.end(), table.shape.begin() + 1, table.shape.end());
  const DType dtype = parts.is_matrix ? DType::kF32 : table.dtype;
  check_output(ctx, 0, expected, dtype);
  ctx.check(ctx.string_attr("dtype") == dtype_name(dtype), "reads a table as another element type");
  parts.index_dtype = index.dtype;
  parts.num_indices = index.size;
  parts.rows = table.shape[0];
  parts.offset = int_attr_in(ctx, "offset", -(1LL << 40), 1LL << 40);
  parts.row_size = table.size / table.shape[0];
  parts.data = ctx.weight_data(table_id);
  parts.format = table.format;
  parts.element_bytes = dtype_bytes(table.dtype);
  const auto over = kind == ValueKind::kRow ? Stage::Over::kRows : Stage::Over::kTokens;
  ctx.emit(std::make_unique<EmbedStage>(over, *ctx.kernels().linear, parts), {parts.index}, {parts.y});
}

}  // namespace qeff
