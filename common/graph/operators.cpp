#include "common/graph/operators.h"

#include <algorithm>
#include <array>

namespace cleave {
namespace {

// The names, in alphabetical order, by how the operator's result relates to its first tensor. After
// a change, run tests/docs_test.py with --write: docs/models.md and the Python package have copies.

constexpr std::string_view kOwnMemory =  // ResultMemory::own
    "__and__.Scalar __and__.Tensor __lshift__.Scalar __lshift__.Tensor __or__.Scalar "
    "__or__.Tensor __rshift__.Scalar __rshift__.Tensor __xor__.Scalar __xor__.Tensor "
    "_softmax.default _upsample_bicubic2d_aa.vec _upsample_bilinear2d_aa.vec "
    "_upsample_nearest_exact1d.vec _upsample_nearest_exact2d.vec _upsample_nearest_exact3d.vec "
    "_weight_norm.default abs.default absolute.default acos.default acosh.default "
    "adaptive_avg_pool1d.default adaptive_avg_pool2d.default adaptive_avg_pool3d.default "
    "adaptive_max_pool1d.default adaptive_max_pool2d.default adaptive_max_pool3d.default "
    "add.Scalar add.Tensor addbmm.default addcdiv.default addcmul.default addmm.default "
    "addmv.default addr.default affine_grid_generator.default all.default all.dim all.dims "
    "amax.default amin.default aminmax.default any.default any.dim any.dims arange.default "
    "arange.start arange.start_step arccos.default arccosh.default arcsin.default arcsinh.default "
    "arctan.default arctan2.default arctanh.default argmax.default argmin.default argsort.default "
    "argsort.stable asin.default asinh.default atan.default atan2.default atanh.default "
    "avg_pool1d.default avg_pool2d.default avg_pool3d.default baddbmm.default "
    "bartlett_window.default batch_norm.default bernoulli.default bernoulli.p bilinear.default "
    "binary_cross_entropy.default binary_cross_entropy_with_logits.default bitwise_and.Scalar "
    "bitwise_and.Tensor bitwise_left_shift.Tensor bitwise_left_shift.Tensor_Scalar "
    "bitwise_not.default bitwise_or.Scalar bitwise_or.Tensor bitwise_right_shift.Tensor "
    "bitwise_right_shift.Tensor_Scalar bitwise_xor.Scalar bitwise_xor.Tensor "
    "blackman_window.default blackman_window.periodic bmm.default bucketize.Tensor cat.default "
    "cdist.default ceil.default celu.default clamp.Tensor clamp.default clamp_max.Tensor "
    "clamp_max.default clamp_min.Tensor clamp_min.default clip.Tensor clip.default clone.default "
    "col2im.default concat.default concatenate.default constant_pad_nd.default conv1d.default "
    "conv1d.padding conv2d.default conv2d.padding conv3d.default conv3d.padding "
    "conv_transpose1d.default conv_transpose2d.input conv_transpose3d.input copysign.Scalar "
    "copysign.Tensor cos.default cosh.default cosine_embedding_loss.default "
    "cosine_similarity.default count_nonzero.default count_nonzero.dim_IntList cross.default "
    "cross_entropy_loss.default cummax.default cummin.default cumprod.default cumsum.default "
    "cumulative_trapezoid.dx cumulative_trapezoid.x deg2rad.default det.default "
    "diag_embed.default diagonal_scatter.default diff.default digamma.default dist.default "
    "div.Scalar div.Scalar_mode div.Tensor div.Tensor_mode divide.Scalar divide.Scalar_mode "
    "divide.Tensor divide.Tensor_mode dot.default einsum.default elu.default embedding.default "
    "embedding_bag.padding_idx empty.memory_format empty_like.default eq.Scalar eq.Tensor "
    "erf.default erfc.default erfinv.default exp.default exp2.default expm1.default eye.default "
    "eye.m fill.Scalar fill.Tensor fix.default flip.default fliplr.default flipud.default "
    "float_power.Scalar float_power.Tensor_Scalar float_power.Tensor_Tensor floor.default "
    "floor_divide.Scalar floor_divide.default fmax.default fmin.default fmod.Scalar fmod.Tensor "
    "frac.default frobenius_norm.dim full.default full_like.default gather.default ge.Scalar "
    "ge.Tensor gelu.default ger.default glu.default greater.Scalar greater.Tensor "
    "greater_equal.Scalar greater_equal.Tensor grid_sampler.default group_norm.default gru.input "
    "gru_cell.default gt.Scalar gt.Tensor hamming_window.default hamming_window.periodic "
    "hann_window.default hann_window.periodic hardshrink.default hardsigmoid.default "
    "hardswish.default hardtanh.default heaviside.default hinge_embedding_loss.default "
    "huber_loss.default hypot.default im2col.default index.Tensor index_add.default "
    "index_copy.default index_fill.int_Scalar index_fill.int_Tensor index_put.default "
    "index_reduce.default index_select.default inner.default instance_norm.default "
    "inverse.default isclose.default isfinite.default isin.Tensor_Scalar isin.Tensor_Tensor "
    "isinf.default isnan.default isneginf.default isposinf.default kl_div.default kron.default "
    "kthvalue.default l1_loss.default layer_norm.default ldexp.Tensor le.Scalar le.Tensor "
    "leaky_relu.default lerp.Scalar lerp.Tensor less.Scalar less.Tensor less_equal.Scalar "
    "less_equal.Tensor lgamma.default lift_fresh_copy.default linalg_cholesky.default "
    "linalg_cross.default linalg_det.default linalg_inv.default linalg_matmul.default "
    "linalg_matrix_norm.default linalg_matrix_norm.str_ord linalg_multi_dot.default "
    "linalg_norm.default linalg_norm.ord_str "
    "linalg_slogdet.default linalg_solve.default linalg_solve_triangular.default "
    "linalg_vecdot.default linalg_vector_norm.default linear.default linspace.default log.default "
    "log10.default log1p.default log2.default log_sigmoid.default log_softmax.int "
    "logaddexp.default logaddexp2.default logcumsumexp.default logical_and.default "
    "logical_not.default logical_or.default logical_xor.default logit.default logspace.default "
    "logsumexp.default lstm.input lstm_cell.default lt.Scalar lt.Tensor "
    "margin_ranking_loss.default masked_fill.Scalar masked_fill.Tensor masked_scatter.default "
    "matmul.default max.default max.dim max.other max_pool1d.default "
    "max_pool1d_with_indices.default max_pool2d.default max_pool2d_with_indices.default "
    "max_pool3d.default max_pool3d_with_indices.default max_unpool2d.default max_unpool3d.default "
    "maximum.default mean.default mean.dim median.default median.dim min.default min.dim "
    "min.other minimum.default mish.default mm.default mode.default mse_loss.default mul.Scalar "
    "mul.Tensor multi_margin_loss.default multilabel_margin_loss.default multiply.Scalar "
    "multiply.Tensor mv.default nan_to_num.default nanmean.default nanmedian.default "
    "nanmedian.dim nansum.default ne.Scalar ne.Tensor neg.default negative.default "
    "new_empty.default new_full.default new_ones.default new_zeros.default nll_loss_nd.default "
    "norm.Scalar norm.ScalarOpt_dim norm.ScalarOpt_dim_dtype norm.ScalarOpt_dtype "
    "normal_functional.default not_equal.Scalar not_equal.Tensor one_hot.default ones.default "
    "ones_like.default outer.default pad.default pairwise_distance.default pixel_shuffle.default "
    "pixel_unshuffle.default poisson_nll_loss.default pow.Scalar pow.Tensor_Scalar "
    "pow.Tensor_Tensor prelu.default prod.default prod.dim_int rad2deg.default rand.default "
    "rand_like.default randint.default randint.low randint_like.default randn.default "
    "randn_like.default randperm.default reciprocal.default reflection_pad2d.default relu.default "
    "relu6.default remainder.Scalar remainder.Scalar_Tensor remainder.Tensor repeat.default "
    "repeat_interleave.self_int replication_pad2d.default rms_norm.default rnn_relu.input "
    "rnn_relu_cell.default rnn_tanh.input rnn_tanh_cell.default roll.default round.default "
    "rsqrt.default rsub.Scalar rsub.Tensor scalar_tensor.default "
    "scaled_dot_product_attention.default scatter.src scatter.value scatter.value_reduce "
    "scatter_add.default scatter_reduce.two searchsorted.Tensor select_scatter.default "
    "selu.default sgn.default sigmoid.default sign.default signbit.default silu.default "
    "sin.default sinc.default sinh.default slice_scatter.default smooth_l1_loss.default "
    "soft_margin_loss.default softmax.int softplus.default softshrink.default sort.default "
    "sort.stable special_entr.default special_erf.default special_erfc.default "
    "special_erfinv.default special_exp2.default special_expit.default special_expm1.default "
    "special_log1p.default special_log_softmax.default special_logit.default "
    "special_logsumexp.default special_ndtr.default special_sinc.default special_softmax.default "
    "special_xlog1py.default special_xlogy.default sqrt.default square.default stack.default "
    "std.correction std.default std.dim std_mean.correction std_mean.default std_mean.dim "
    "sub.Scalar sub.Tensor subtract.Scalar subtract.Tensor sum.default sum.dim_IntList "
    "take.default tan.default tanh.default tensordot.default threshold.default topk.default "
    "trace.default trapezoid.dx trapezoid.x trapz.dx trapz.x tril.default tril_indices.default "
    "triplet_margin_loss.default triu.default triu_indices.default true_divide.Scalar "
    "true_divide.Tensor trunc.default upsample_bicubic2d.vec upsample_bilinear2d.vec "
    "upsample_linear1d.vec upsample_nearest1d.vec upsample_nearest2d.vec upsample_nearest3d.vec "
    "upsample_trilinear3d.vec var.correction var.default var.dim var_mean.correction "
    "var_mean.default var_mean.dim vdot.default where.Scalar where.ScalarOther where.ScalarSelf "
    "where.self xlogy.Scalar_Other xlogy.Scalar_Self xlogy.Tensor zeros.default "
    "zeros_like.default";

constexpr std::string_view kMayShare =  // ResultMemory::mayShare
    "adjoint.default alias.default alpha_dropout.default atleast_1d.Sequence atleast_1d.default "
    "atleast_2d.Sequence atleast_2d.default atleast_3d.Sequence atleast_3d.default "
    "broadcast_tensors.default broadcast_to.default chain_matmul.default channel_shuffle.default "
    "chunk.default column_stack.default contiguous.default detach.default diag.default "
    "diagonal.default dropout.default dsplit.array dsplit.int dstack.default expand.default "
    "expand_as.default feature_alpha_dropout.default feature_dropout.default flatten.using_ints "
    "hsplit.array hsplit.int hstack.default linalg_diagonal.default linalg_matrix_power.default "
    "mH.default mT.default matrix_H.default matrix_power.default meshgrid.default "
    "meshgrid.indexing moveaxis.int moveaxis.intlist movedim.int movedim.intlist narrow.default "
    "numpy_T.default permute.default positive.default ravel.default reshape.default "
    "reshape_as.default resolve_conj.default resolve_neg.default rot90.default row_stack.default "
    "rrelu.default select.int slice.Tensor split.Tensor split_with_sizes.default squeeze.default "
    "squeeze.dim squeeze.dims swapaxes.default swapdims.default t.default take_along_dim.default "
    "tensor_split.indices tensor_split.sections tile.default to.device to.dtype to.dtype_layout "
    "to.other transpose.int type_as.default unbind.int unflatten.int unfold.default "
    "unsafe_chunk.default unsafe_split.Tensor unsafe_split_with_sizes.default unsqueeze.default "
    "view.default view_as.default vsplit.array vsplit.int vstack.default";

constexpr std::string_view kInPlace =  // ResultMemory::inPlace
    "__iand__.Tensor __ior__.Tensor __ixor__.Tensor abs_.default absolute_.default acos_.default "
    "add_.Scalar add_.Tensor addbmm_.default addcdiv_.default addcmul_.default addmm_.default "
    "addmv_.default addr_.default alpha_dropout_.default asin_.default atan2_.default "
    "atan_.default baddbmm_.default bernoulli_.float bitwise_and_.Tensor bitwise_not_.default "
    "bitwise_or_.Tensor ceil_.default celu_.default clamp_.Tensor clamp_.default "
    "clamp_max_.Tensor clamp_max_.default clamp_min_.Tensor clamp_min_.default clip_.Tensor "
    "clip_.default copy_.default copysign_.Scalar copysign_.Tensor cos_.default cosh_.default "
    "cumprod_.default cumsum_.default detach_.default div_.Scalar div_.Scalar_mode div_.Tensor "
    "div_.Tensor_mode divide_.Scalar divide_.Tensor dropout_.default elu_.default eq_.Scalar "
    "erf_.default erfc_.default erfinv_.default exp2_.default exp_.default expm1_.default "
    "exponential_.default feature_dropout_.default fill_.Scalar fill_.Tensor "
    "fill_diagonal_.default fix_.default floor_.default floor_divide_.Scalar floor_divide_.Tensor "
    "fmod_.Scalar fmod_.Tensor frac_.default hardsigmoid_.default hardswish_.default "
    "hardtanh_.default hypot_.default index_add_.default index_copy_.default "
    "index_fill_.int_Scalar index_fill_.int_Tensor index_put_.default index_reduce_.default "
    "leaky_relu_.default lerp_.Scalar lerp_.Tensor log10_.default log1p_.default log2_.default "
    "log_.default logical_and_.default logical_not_.default logical_or_.default logit_.default "
    "masked_fill_.Scalar masked_fill_.Tensor masked_scatter_.default mish_.default mul_.Scalar "
    "mul_.Tensor multiply_.Scalar multiply_.Tensor nan_to_num_.default ne_.Scalar neg_.default "
    "negative_.default normal_.default pow_.Scalar pow_.Tensor reciprocal_.default relu6_.default "
    "relu_.default remainder_.Scalar remainder_.Tensor round_.default rrelu_.default "
    "rsqrt_.default scatter_.src scatter_.value scatter_.value_reduce scatter_add_.default "
    "scatter_reduce_.two selu_.default sgn_.default sigmoid_.default sign_.default silu_.default "
    "sin_.default sinh_.default sqrt_.default square_.default squeeze_.default squeeze_.dim "
    "squeeze_.dims sub_.Scalar sub_.Tensor subtract_.Scalar subtract_.Tensor swapaxes_.default "
    "swapdims_.default t_.default tan_.default tanh_.default threshold_.default "
    "transpose_.default tril_.default triu_.default true_divide_.Scalar true_divide_.Tensor "
    "trunc_.default uniform_.default unsqueeze_.default xlogy_.Tensor zero_.default";

constexpr std::size_t countWords(std::string_view words) {
  return 1 + static_cast<std::size_t>(std::ranges::count(words, ' '));
}

constexpr auto kOperators = [] {
  std::array<OperatorRow, countWords(kOwnMemory) + countWords(kMayShare) + countWords(kInPlace)>
      rows;
  auto* row = rows.data();
  const auto add = [&](std::string_view words, ResultMemory memory) {
    for (std::size_t begin = 0; begin < words.size();) {
      const std::size_t end = std::min(words.find(' ', begin), words.size());
      *row++ = {words.substr(begin, end - begin), memory};
      begin = end + 1;
    }
  };
  add(kOwnMemory, ResultMemory::own);
  add(kMayShare, ResultMemory::mayShare);
  add(kInPlace, ResultMemory::inPlace);
  std::ranges::sort(rows, {}, &OperatorRow::name);
  return rows;
}();
static_assert(std::ranges::adjacent_find(kOperators, {}, &OperatorRow::name) == kOperators.end(),
              "an operator is listed twice");

}  // namespace

std::span<const OperatorRow> operatorTable() { return kOperators; }

const OperatorRow* findOperator(std::string_view op) {
  constexpr std::string_view kPrefix = "aten.";
  if (!op.starts_with(kPrefix)) return nullptr;
  op.remove_prefix(kPrefix.size());
  const auto row = std::ranges::lower_bound(kOperators, op, {}, &OperatorRow::name);
  return row != kOperators.end() && row->name == op ? &*row : nullptr;
}

}  // namespace cleave
