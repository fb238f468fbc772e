#include "tests/operators/forms.h"

#include <algorithm>
#include <array>

namespace cleave::test {
namespace {

// Sorted by operator. A letter is a size from 1 to 16, the same one in all arguments of a case.
constexpr auto kForms = std::to_array<OperatorForm>({
    {"__lshift__.Tensor", "self=T:N,C:i other=T:N,C:i"},
    {"__rshift__.Tensor", "self=T:N,C:i other=T:N,C:i"},
    {"_upsample_bicubic2d_aa.vec",
     "input=T:N,C,H,W output_size=S:A,B align_corners=B:0 scale_factors=-"},
    {"_upsample_bilinear2d_aa.vec",
     "input=T:N,C,H,W output_size=S:A,B align_corners=B:0 scale_factors=-"},
    {"_upsample_nearest_exact1d.vec", "input=T:N,C,W output_size=S:A scale_factors=-"},
    {"_upsample_nearest_exact2d.vec", "input=T:N,C,H,W output_size=S:A,B scale_factors=-"},
    {"_upsample_nearest_exact3d.vec", "input=T:N,C,D,H,W output_size=S:A,B,E scale_factors=-"},
    {"_weight_norm.default", "v=T:K,C,3 g=T:K,1,1 dim=I:0"},
    {"_weight_norm.default", "v=T:K,C g=T:1,C dim=I:1"},
    {"adaptive_avg_pool1d.default", "self=T:N,C,W output_size=S:A"},
    {"adaptive_avg_pool2d.default", "self=T:N,C,H,W output_size=S:A,B"},
    {"adaptive_avg_pool3d.default", "self=T:N,C,D,H,W output_size=S:A,B,E"},
    {"adaptive_max_pool1d.default", "self=T:N,C,W output_size=S:A"},
    {"adaptive_max_pool2d.default", "self=T:N,C,H,W output_size=S:A,B"},
    {"adaptive_max_pool3d.default", "self=T:N,C,D,H,W output_size=S:A,B,E"},
    {"addbmm.default", "self=T:M,K batch1=T:N,M,C batch2=T:N,C,K"},
    {"addmm.default", "self=T:M,K mat1=T:M,C mat2=T:C,K"},
    {"addmv.default", "self=T:M mat=T:M,C vec=T:C"},
    {"addr.default", "self=T:M,C vec1=T:M vec2=T:C"},
    {"affine_grid_generator.default", "theta=T:N,2,3 size=S:N,C,H,W"},
    {"affine_grid_generator.default", "theta=T:N,3,4 size=S:N,C,D,H,W"},
    {"avg_pool1d.default", "self=T:N,C,W kernel_size=S:2 stride=S:1 padding=S:1"},
    {"avg_pool2d.default", "self=T:N,C,H,W kernel_size=S:2,2 stride=S:1,1 padding=S:1,1"},
    {"avg_pool3d.default", "self=T:N,C,D,H,W kernel_size=S:2,2,2 stride=S:1,1,1 padding=S:1,1,1"},
    {"baddbmm.default", "self=T:N,M,K batch1=T:N,M,C batch2=T:N,C,K"},
    {"batch_norm.default",
     "input=T:N,C,H weight=T:C bias=T:C running_mean=T:C running_var=T:C training=B:0"},
    {"batch_norm.default",
     "input=T:N,C,H,W weight=T:C bias=T:C running_mean=- running_var=- training=B:1"},
    {"bilinear.default", "input1=T:N,A input2=T:N,B weight=T:K,A,B bias=T:K"},
    {"bmm.default", "self=T:N,M,C mat2=T:N,C,K"},
    {"bucketize.Tensor", "self=T:N,C boundaries=T:K"},
    {"cdist.default", "x1=T:N,M,C x2=T:N,K,C"},
    {"channel_shuffle.default", "self=T:N,4C,H,W groups=I:2"},
    {"col2im.default",
     "self=T:N,4C,12 output_size=S:4,5 kernel_size=S:2,2 dilation=S:1,1 padding=S:0,0 "
     "stride=S:1,1"},
    {"conv1d.default",
     "input=T:N,2C,W weight=T:2K,C,3 bias=T:2K stride=S:1 padding=S:1 dilation=S:1 groups=I:2"},
    {"conv1d.padding",
     "input=T:N,C,W weight=T:K,C,3 bias=T:K stride=S:1 padding=X:same dilation=S:1 groups=I:1"},
    {"conv2d.default",
     "input=T:N,2C,H,W weight=T:2K,C,3,3 bias=T:2K stride=S:1,1 padding=S:1,1 dilation=S:1,1 "
     "groups=I:2"},
    {"conv2d.default",
     "input=T:N,C,H,W weight=T:C,1,3,3 bias=T:C stride=S:1,1 padding=S:1,1 dilation=S:1,1 "
     "groups=I:C"},
    {"conv2d.default",
     "input=T:N,C,H,W weight=T:K,C,1,1 bias=T:K stride=S:2,2 padding=S:0,0 dilation=S:1,1 "
     "groups=I:1"},
    {"conv2d.padding",
     "input=T:N,C,H,W weight=T:K,C,3,3 bias=T:K stride=S:1,1 padding=X:valid dilation=S:1,1 "
     "groups=I:1"},
    {"conv3d.default",
     "input=T:N,C,D,H,W weight=T:K,C,2,2,2 bias=T:K stride=S:1,1,1 padding=S:1,1,1 "
     "dilation=S:1,1,1 groups=I:1"},
    {"conv3d.padding",
     "input=T:N,C,D,H,W weight=T:K,C,2,2,2 bias=T:K stride=S:1,1,1 padding=X:same dilation=S:1,1,1 "
     "groups=I:1"},
    {"conv_transpose1d.default",
     "input=T:N,C,W weight=T:C,K,3 bias=T:K stride=S:2 padding=S:1 output_padding=S:1 groups=I:1 "
     "dilation=S:1"},
    {"conv_transpose2d.input",
     "input=T:N,C,H,W weight=T:C,K,3,3 bias=T:K stride=S:2,2 padding=S:1,1 output_padding=S:1,1 "
     "groups=I:1 dilation=S:1,1"},
    {"conv_transpose3d.input",
     "input=T:N,C,D,H,W weight=T:C,K,2,2,2 bias=T:K stride=S:1,1,1 padding=S:0,0,0 "
     "output_padding=S:0,0,0 groups=I:1 dilation=S:1,1,1"},
    {"cosine_embedding_loss.default", "input1=T:N,C input2=T:N,C target=T:N"},
    {"cross.default", "self=T:N,3 other=T:N,3 dim=I:1"},
    {"cross_entropy_loss.default",
     "self=T:N,C target=T:N:iC weight=T:C reduction=I:1 ignore_index=I:0 label_smoothing=F:0.1"},
    {"cross_entropy_loss.default",
     "self=T:N,C,H target=T:N,H:iC weight=T:C reduction=I:0 ignore_index=-"},
    {"cummax.default", "self=T:N,C dim=I:1"},
    {"cumulative_trapezoid.x", "y=T:N,C x=T:N,C"},
    {"diagonal_scatter.default", "self=T:N,N src=T:N offset=I:0"},
    {"embedding.default", "weight=T:V,C indices=T:N,L:iV sparse=B:0"},
    {"embedding_bag.padding_idx",
     "weight=T:V,C indices=T:4N:iV offsets=T:N:i2 mode=I:0 sparse=B:0 per_sample_weights=- "
     "padding_idx=-"},
    {"embedding_bag.padding_idx",
     "weight=T:V,C indices=T:4N:iV offsets=T:1:i1 mode=I:2 sparse=B:0 per_sample_weights=- "
     "include_last_offset=B:0"},
    {"embedding_bag.padding_idx",
     "weight=T:V,C indices=T:4N:iV offsets=T:1:i1 mode=I:0 sparse=B:0 per_sample_weights=T:4N"},
    {"fill_diagonal_.default", "self=T:N,C fill_value=F:1"},
    {"floor_divide.default", "self=T:N:i other=T:N:i"},
    {"fmod.Tensor", "self=T:N:i other=T:N:i"},
    {"gather.default", "self=T:N,C dim=I:1 index=T:N,K:iC sparse_grad=B:0"},
    {"glu.default", "self=T:N,2C dim=I:1"},
    {"grid_sampler.default",
     "input=T:N,C,H,W grid=T:N,A,B,2 interpolation_mode=I:0 padding_mode=I:0"},
    {"grid_sampler.default",
     "input=T:N,C,H,W grid=T:N,A,B,2 interpolation_mode=I:2 padding_mode=I:1"},
    {"grid_sampler.default",
     "input=T:N,C,D,H,W grid=T:N,A,B,E,3 interpolation_mode=I:1 padding_mode=I:2"},
    {"group_norm.default", "input=T:N,4C,H num_groups=I:2 weight=T:4C bias=T:4C"},
    {"gru.input",
     "input=T:L,B,C hx=T:1,B,H params=L:3H,C;3H,H;3H;3H has_biases=B:1 num_layers=I:1 dropout=F:0 "
     "bidirectional=B:0 batch_first=B:0"},
    {"gru.input",
     "input=T:B,L,C hx=T:2,B,H params=L:3H,C;3H,H;3H,C;3H,H has_biases=B:0 num_layers=I:1 "
     "dropout=F:0 bidirectional=B:1 batch_first=B:1"},
    {"gru_cell.default", "input=T:B,C hx=T:B,H w_ih=T:3H,C w_hh=T:3H,H b_ih=T:3H b_hh=T:3H"},
    {"hinge_embedding_loss.default", "self=T:N,C target=T:N,C"},
    {"im2col.default",
     "self=T:N,C,H,W kernel_size=S:2,2 dilation=S:1,1 padding=S:1,1 stride=S:1,1"},
    {"index.Tensor", "self=T:N,C indices=L:K:iN;K:iC"},
    {"index_add.default", "self=T:N,C dim=I:1 index=T:K:iC source=T:N,K"},
    {"index_copy.default", "self=T:N,C dim=I:1 index=T:K:iC source=T:N,K"},
    {"index_fill.int_Scalar", "self=T:N,C dim=I:1 index=T:K:iC"},
    {"index_put.default", "self=T:N,C indices=L:K:iN;K:iC values=T:K"},
    {"index_reduce.default", "self=T:N,C dim=I:1 index=T:K:iC source=T:N,K reduce=X:mean"},
    {"index_select.default", "self=T:N,C dim=I:1 index=T:K:iC"},
    {"instance_norm.default",
     "input=T:N,C,H weight=T:C bias=T:C running_mean=- running_var=- use_input_stats=B:1"},
    {"instance_norm.default",
     "input=T:N,C,H weight=T:C bias=T:C running_mean=T:C running_var=T:C use_input_stats=B:0"},
    {"kthvalue.default", "self=T:N,C k=I:1 dim=I:1"},
    {"layer_norm.default", "input=T:N,H,C normalized_shape=S:C weight=T:C bias=T:C"},
    {"layer_norm.default", "input=T:N,H,C normalized_shape=S:H,C weight=T:H,C bias=T:H,C"},
    {"linalg_solve.default", "A=T:N,M,M B=T:N,M,K left=B:1"},
    {"linalg_solve_triangular.default", "self=T:N,M,M B=T:N,M,K left=B:1"},
    {"linear.default", "input=T:N,C weight=T:K,C bias=T:K"},
    {"linear.default", "input=T:N,L,C weight=T:K,C bias=T:K"},
    {"lstm.input",
     "input=T:L,B,C hx=L:1,B,H;1,B,H params=L:4H,C;4H,H;4H;4H has_biases=B:1 num_layers=I:1 "
     "dropout=F:0 bidirectional=B:0 batch_first=B:0"},
    {"lstm.input",
     "input=T:B,L,C hx=L:2,B,H;2,B,H params=L:4H,C;4H,H;4H,H;4H,H has_biases=B:0 num_layers=I:2 "
     "dropout=F:0 bidirectional=B:0 batch_first=B:1"},
    {"lstm.input",
     "input=T:L,B,C hx=L:2,B,H;2,B,H params=L:4H,C;4H,H;4H;4H;4H,C;4H,H;4H;4H has_biases=B:1 "
     "num_layers=I:1 dropout=F:0 bidirectional=B:1 batch_first=B:0"},
    {"lstm.input",
     "input=T:L,B,C hx=L:1,B,K;1,B,H params=L:4H,C;4H,K;4H;4H;K,H has_biases=B:1 num_layers=I:1 "
     "dropout=F:0 bidirectional=B:0 batch_first=B:0"},
    {"lstm_cell.default", "input=T:B,C hx=L:B,H;B,H w_ih=T:4H,C w_hh=T:4H,H b_ih=T:4H b_hh=T:4H"},
    {"margin_ranking_loss.default", "input1=T:N input2=T:N target=T:N"},
    {"masked_fill.Scalar", "self=T:N,C mask=T:N,C:b"},
    {"masked_scatter.default", "self=T:N,C mask=T:N,C:b source=T:N,C"},
    {"matmul.default", "self=T:N,M,C other=T:N,C,K"},
    {"max_pool1d.default", "self=T:N,C,W kernel_size=S:2 stride=S:2 padding=S:1 dilation=S:1"},
    {"max_pool1d_with_indices.default",
     "self=T:N,C,W kernel_size=S:2 stride=S:2 padding=S:1 dilation=S:1"},
    {"max_pool2d.default",
     "self=T:N,C,H,W kernel_size=S:2,2 stride=S:2,2 padding=S:1,1 dilation=S:1,1"},
    {"max_pool2d.default",
     "self=T:N,C,H,W kernel_size=S:2,2 stride=S:1,1 padding=S:1,1 dilation=S:H,W"},
    {"max_pool2d_with_indices.default",
     "self=T:N,C,H,W kernel_size=S:2,2 stride=S:2,2 padding=S:1,1 dilation=S:1,1"},
    {"max_pool2d_with_indices.default",
     "self=T:N,C,H,W kernel_size=S:2,2 stride=S:1,1 padding=S:1,1 dilation=S:H,W"},
    {"max_pool3d.default",
     "self=T:N,C,D,H,W kernel_size=S:2,2,2 stride=S:1,1,1 padding=S:1,1,1 dilation=S:1,1,1"},
    {"max_pool3d_with_indices.default",
     "self=T:N,C,D,H,W kernel_size=S:2,2,2 stride=S:1,1,1 padding=S:1,1,1 dilation=S:D,H,W"},
    {"max_unpool2d.default", "self=T:N,C,H,W indices=T:N,C,H,W:iH output_size=S:2H,2W"},
    {"max_unpool3d.default",
     "self=T:N,C,D,H,W indices=T:N,C,D,H,W:iH output_size=S:2D,2H,2W stride=S:2,2,2 "
     "padding=S:0,0,0"},
    {"mm.default", "self=T:M,C mat2=T:C,K"},
    {"multi_margin_loss.default", "self=T:N,C target=T:N:iC p=I:1 weight=T:C reduction=I:1"},
    {"multilabel_margin_loss.default", "self=T:N,C target=T:N,C:iC reduction=I:1"},
    {"mv.default", "self=T:M,C vec=T:C"},
    {"nll_loss_nd.default", "self=T:N,C target=T:N:iC weight=T:C reduction=I:1"},
    {"nll_loss_nd.default", "self=T:N,C,H,W target=T:N,H,W:iC weight=T:C reduction=I:0"},
    {"one_hot.default", "self=T:N:i5 num_classes=I:5"},
    {"pad.default", "self=T:N,C,H,W pad=S:1,1,1,1 mode=X:reflect value=-"},
    {"pad.default", "self=T:N,C,W pad=S:1,1 mode=X:replicate value=-"},
    {"pad.default", "self=T:N,C,W pad=S:1,1 mode=X:circular value=-"},
    {"pixel_shuffle.default", "self=T:N,4C,H,W upscale_factor=I:2"},
    {"pixel_unshuffle.default", "self=T:N,C,2H,2W downscale_factor=I:2"},
    {"prelu.default", "self=T:N,C,H weight=T:C"},
    {"reflection_pad2d.default", "self=T:N,C,H,W padding=S:1,1,1,1"},
    {"remainder.Tensor", "self=T:N:i other=T:N:i"},
    {"repeat_interleave.self_int", "self=T:N,C repeats=I:2 dim=I:1"},
    {"replication_pad2d.default", "self=T:N,C,H,W padding=S:1,1,1,1"},
    {"rms_norm.default", "input=T:N,H,C normalized_shape=S:C weight=T:C"},
    {"rnn_relu.input",
     "input=T:L,B,C hx=T:1,B,H params=L:H,C;H,H;H;H has_biases=B:1 num_layers=I:1 dropout=F:0 "
     "bidirectional=B:0 batch_first=B:0"},
    {"rnn_relu_cell.default", "input=T:B,C hx=T:B,H w_ih=T:H,C w_hh=T:H,H b_ih=T:H b_hh=T:H"},
    {"rnn_tanh.input",
     "input=T:L,B,C hx=T:2,B,H params=L:H,C;H,H;H,H;H,H has_biases=B:0 num_layers=I:2 dropout=F:0 "
     "bidirectional=B:0 batch_first=B:0"},
    {"rnn_tanh_cell.default", "input=T:B,C hx=T:B,H w_ih=T:H,C w_hh=T:H,H b_ih=T:H b_hh=T:H"},
    {"scaled_dot_product_attention.default",
     "query=T:N,K,L,H key=T:N,K,M,H value=T:N,K,M,H attn_mask=- dropout_p=F:0 is_causal=B:0 "
     "scale=- enable_gqa=B:0"},
    {"scaled_dot_product_attention.default",
     "query=T:N,K,L,H key=T:N,K,M,H value=T:N,K,M,H attn_mask=T:N,1,L,M dropout_p=F:0 "
     "is_causal=B:0 scale=- enable_gqa=B:0"},
    {"scaled_dot_product_attention.default",
     "query=T:N,K,L,H key=T:N,K,M,H value=T:N,K,M,H attn_mask=T:L,M:b dropout_p=F:0 is_causal=B:0 "
     "scale=- enable_gqa=B:0"},
    {"scaled_dot_product_attention.default",
     "query=T:N,4K,L,H key=T:N,K,M,H value=T:N,K,M,H attn_mask=- dropout_p=F:0 is_causal=B:1 "
     "scale=- enable_gqa=B:1"},
    {"scatter.src", "self=T:N,C dim=I:1 index=T:N,K:iC src=T:N,K"},
    {"scatter.value", "self=T:N,C dim=I:1 index=T:N,K:iC"},
    {"scatter_add.default", "self=T:N,C dim=I:1 index=T:N,K:iC src=T:N,K"},
    {"scatter_reduce.two", "self=T:N,C dim=I:1 index=T:N,K:iC src=T:N,K reduce=X:prod"},
    {"searchsorted.Tensor", "sorted_sequence=T:N,C self=T:N,K sorter=T:N,C:iC side=-"},
    {"take.default", "self=T:N,C index=T:K:iN"},
    {"take_along_dim.default", "self=T:N,C indices=T:N,K:iC dim=I:1"},
    {"tensordot.default", "self=T:M,C other=T:C,K dims_self=S:1 dims_other=S:0"},
    {"topk.default", "self=T:N,C k=I:1 dim=I:1"},
    {"trapezoid.x", "y=T:N,C x=T:N,C"},
    {"triplet_margin_loss.default", "anchor=T:N,C positive=T:N,C negative=T:N,C"},
    {"unfold.default", "self=T:N,C dimension=I:1 size=I:1 step=I:1"},
    {"upsample_bicubic2d.vec", "input=T:N,C,H,W output_size=S:A,B scale_factors=-"},
    {"upsample_bilinear2d.vec", "input=T:N,C,H,W output_size=S:A,B scale_factors=-"},
    {"upsample_linear1d.vec", "input=T:N,C,W output_size=S:A scale_factors=-"},
    {"upsample_nearest1d.vec", "input=T:N,C,W output_size=S:A scale_factors=-"},
    {"upsample_nearest2d.vec", "input=T:N,C,H,W output_size=S:A,B scale_factors=-"},
    {"upsample_nearest3d.vec", "input=T:N,C,D,H,W output_size=S:A,B,E scale_factors=-"},
    {"upsample_trilinear3d.vec", "input=T:N,C,D,H,W output_size=S:A,B,E scale_factors=-"},
});
static_assert(std::ranges::is_sorted(kForms, {}, &OperatorForm::op));

}  // namespace

std::optional<std::string> OperatorForm::argument(std::string_view name) const {
  std::string_view rest = arguments;
  while (!rest.empty()) {
    const std::string_view each = rest.substr(0, rest.find(' '));
    rest.remove_prefix(std::min(rest.size(), each.size() + 1));
    const auto equals = each.find('=');
    if (each.substr(0, equals) == name) return std::string(each.substr(equals + 1));
  }
  return std::nullopt;
}

std::span<const OperatorForm> formsOf(std::string_view op) {
  // In-place operators have the arguments of the others.
  std::string plain(op);
  if (const auto bar = plain.find("_.");
      bar != std::string::npos && bar > 0 && plain[bar - 1] != '_') {
    plain.erase(bar, 1);
  }
  const auto found =
      std::ranges::equal_range(kForms, std::string_view(plain), {}, &OperatorForm::op);
  return {found.begin(), found.end()};
}

}  // namespace cleave::test
