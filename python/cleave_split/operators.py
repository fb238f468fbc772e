"""The operators that Cleave runs, from common/graph/operators.cpp; tests/docs_test.py --write updates this file."""

ALLOWED = frozenset("""
__and__.Scalar __and__.Tensor __iand__.Tensor __ior__.Tensor __ixor__.Tensor __lshift__.Scalar __lshift__.Tensor __or__.Scalar
__or__.Tensor __rshift__.Scalar __rshift__.Tensor __xor__.Scalar __xor__.Tensor _softmax.default _upsample_bicubic2d_aa.vec
_upsample_bilinear2d_aa.vec _upsample_nearest_exact1d.vec _upsample_nearest_exact2d.vec _upsample_nearest_exact3d.vec _weight_norm.default
abs.default abs_.default absolute.default absolute_.default acos.default acos_.default acosh.default adaptive_avg_pool1d.default
adaptive_avg_pool2d.default adaptive_avg_pool3d.default adaptive_max_pool1d.default adaptive_max_pool2d.default
adaptive_max_pool3d.default add.Scalar add.Tensor add_.Scalar add_.Tensor addbmm.default addbmm_.default addcdiv.default addcdiv_.default
addcmul.default addcmul_.default addmm.default addmm_.default addmv.default addmv_.default addr.default addr_.default adjoint.default
affine_grid_generator.default alias.default all.default all.dim all.dims alpha_dropout.default alpha_dropout_.default amax.default
amin.default aminmax.default any.default any.dim any.dims arange.default arange.start arange.start_step arccos.default arccosh.default
arcsin.default arcsinh.default arctan.default arctan2.default arctanh.default argmax.default argmin.default argsort.default argsort.stable
asin.default asin_.default asinh.default atan.default atan2.default atan2_.default atan_.default atanh.default atleast_1d.Sequence
atleast_1d.default atleast_2d.Sequence atleast_2d.default atleast_3d.Sequence atleast_3d.default avg_pool1d.default avg_pool2d.default
avg_pool3d.default baddbmm.default baddbmm_.default bartlett_window.default batch_norm.default bernoulli.default bernoulli.p
bernoulli_.float bilinear.default binary_cross_entropy.default binary_cross_entropy_with_logits.default bitwise_and.Scalar
bitwise_and.Tensor bitwise_and_.Tensor bitwise_left_shift.Tensor bitwise_left_shift.Tensor_Scalar bitwise_not.default bitwise_not_.default
bitwise_or.Scalar bitwise_or.Tensor bitwise_or_.Tensor bitwise_right_shift.Tensor bitwise_right_shift.Tensor_Scalar bitwise_xor.Scalar
bitwise_xor.Tensor blackman_window.default blackman_window.periodic bmm.default broadcast_tensors.default broadcast_to.default
bucketize.Tensor cat.default cdist.default ceil.default ceil_.default celu.default celu_.default chain_matmul.default
channel_shuffle.default chunk.default clamp.Tensor clamp.default clamp_.Tensor clamp_.default clamp_max.Tensor clamp_max.default
clamp_max_.Tensor clamp_max_.default clamp_min.Tensor clamp_min.default clamp_min_.Tensor clamp_min_.default clip.Tensor clip.default
clip_.Tensor clip_.default clone.default col2im.default column_stack.default concat.default concatenate.default constant_pad_nd.default
contiguous.default conv1d.default conv1d.padding conv2d.default conv2d.padding conv3d.default conv3d.padding conv_transpose1d.default
conv_transpose2d.input conv_transpose3d.input copy_.default copysign.Scalar copysign.Tensor copysign_.Scalar copysign_.Tensor cos.default
cos_.default cosh.default cosh_.default cosine_embedding_loss.default cosine_similarity.default count_nonzero.default
count_nonzero.dim_IntList cross.default cross_entropy_loss.default cummax.default cummin.default cumprod.default cumprod_.default
cumsum.default cumsum_.default cumulative_trapezoid.dx cumulative_trapezoid.x deg2rad.default det.default detach.default detach_.default
diag.default diag_embed.default diagonal.default diagonal_scatter.default diff.default digamma.default dist.default div.Scalar
div.Scalar_mode div.Tensor div.Tensor_mode div_.Scalar div_.Scalar_mode div_.Tensor div_.Tensor_mode divide.Scalar divide.Scalar_mode
divide.Tensor divide.Tensor_mode divide_.Scalar divide_.Tensor dot.default dropout.default dropout_.default dsplit.array dsplit.int
dstack.default einsum.default elu.default elu_.default embedding.default embedding_bag.padding_idx empty.memory_format empty_like.default
eq.Scalar eq.Tensor eq_.Scalar erf.default erf_.default erfc.default erfc_.default erfinv.default erfinv_.default exp.default exp2.default
exp2_.default exp_.default expand.default expand_as.default expm1.default expm1_.default exponential_.default eye.default eye.m
feature_alpha_dropout.default feature_dropout.default feature_dropout_.default fill.Scalar fill.Tensor fill_.Scalar fill_.Tensor
fill_diagonal_.default fix.default fix_.default flatten.using_ints flip.default fliplr.default flipud.default float_power.Scalar
float_power.Tensor_Scalar float_power.Tensor_Tensor floor.default floor_.default floor_divide.Scalar floor_divide.default
floor_divide_.Scalar floor_divide_.Tensor fmax.default fmin.default fmod.Scalar fmod.Tensor fmod_.Scalar fmod_.Tensor frac.default
frac_.default frobenius_norm.dim full.default full_like.default gather.default ge.Scalar ge.Tensor gelu.default ger.default glu.default
greater.Scalar greater.Tensor greater_equal.Scalar greater_equal.Tensor grid_sampler.default group_norm.default gru.input gru_cell.default
gt.Scalar gt.Tensor hamming_window.default hamming_window.periodic hann_window.default hann_window.periodic hardshrink.default
hardsigmoid.default hardsigmoid_.default hardswish.default hardswish_.default hardtanh.default hardtanh_.default heaviside.default
hinge_embedding_loss.default hsplit.array hsplit.int hstack.default huber_loss.default hypot.default hypot_.default im2col.default
index.Tensor index_add.default index_add_.default index_copy.default index_copy_.default index_fill.int_Scalar index_fill.int_Tensor
index_fill_.int_Scalar index_fill_.int_Tensor index_put.default index_put_.default index_reduce.default index_reduce_.default
index_select.default inner.default instance_norm.default inverse.default isclose.default isfinite.default isin.Tensor_Scalar
isin.Tensor_Tensor isinf.default isnan.default isneginf.default isposinf.default kl_div.default kron.default kthvalue.default
l1_loss.default layer_norm.default ldexp.Tensor le.Scalar le.Tensor leaky_relu.default leaky_relu_.default lerp.Scalar lerp.Tensor
lerp_.Scalar lerp_.Tensor less.Scalar less.Tensor less_equal.Scalar less_equal.Tensor lgamma.default lift_fresh_copy.default
linalg_cholesky.default linalg_cross.default linalg_det.default linalg_diagonal.default linalg_inv.default linalg_matmul.default
linalg_matrix_norm.default linalg_matrix_norm.str_ord linalg_matrix_power.default linalg_multi_dot.default linalg_norm.default
linalg_norm.ord_str linalg_slogdet.default linalg_solve.default linalg_solve_triangular.default linalg_vecdot.default
linalg_vector_norm.default linear.default linspace.default log.default log10.default log10_.default log1p.default log1p_.default
log2.default log2_.default log_.default log_sigmoid.default log_softmax.int logaddexp.default logaddexp2.default logcumsumexp.default
logical_and.default logical_and_.default logical_not.default logical_not_.default logical_or.default logical_or_.default
logical_xor.default logit.default logit_.default logspace.default logsumexp.default lstm.input lstm_cell.default lt.Scalar lt.Tensor
mH.default mT.default margin_ranking_loss.default masked_fill.Scalar masked_fill.Tensor masked_fill_.Scalar masked_fill_.Tensor
masked_scatter.default masked_scatter_.default matmul.default matrix_H.default matrix_power.default max.default max.dim max.other
max_pool1d.default max_pool1d_with_indices.default max_pool2d.default max_pool2d_with_indices.default max_pool3d.default
max_pool3d_with_indices.default max_unpool2d.default max_unpool3d.default maximum.default mean.default mean.dim median.default median.dim
meshgrid.default meshgrid.indexing min.default min.dim min.other minimum.default mish.default mish_.default mm.default mode.default
moveaxis.int moveaxis.intlist movedim.int movedim.intlist mse_loss.default mul.Scalar mul.Tensor mul_.Scalar mul_.Tensor
multi_margin_loss.default multilabel_margin_loss.default multiply.Scalar multiply.Tensor multiply_.Scalar multiply_.Tensor mv.default
nan_to_num.default nan_to_num_.default nanmean.default nanmedian.default nanmedian.dim nansum.default narrow.default ne.Scalar ne.Tensor
ne_.Scalar neg.default neg_.default negative.default negative_.default new_empty.default new_full.default new_ones.default
new_zeros.default nll_loss_nd.default norm.Scalar norm.ScalarOpt_dim norm.ScalarOpt_dim_dtype norm.ScalarOpt_dtype normal_.default
normal_functional.default not_equal.Scalar not_equal.Tensor numpy_T.default one_hot.default ones.default ones_like.default outer.default
pad.default pairwise_distance.default permute.default pixel_shuffle.default pixel_unshuffle.default poisson_nll_loss.default
positive.default pow.Scalar pow.Tensor_Scalar pow.Tensor_Tensor pow_.Scalar pow_.Tensor prelu.default prod.default prod.dim_int
rad2deg.default rand.default rand_like.default randint.default randint.low randint_like.default randn.default randn_like.default
randperm.default ravel.default reciprocal.default reciprocal_.default reflection_pad2d.default relu.default relu6.default relu6_.default
relu_.default remainder.Scalar remainder.Scalar_Tensor remainder.Tensor remainder_.Scalar remainder_.Tensor repeat.default
repeat_interleave.self_int replication_pad2d.default reshape.default reshape_as.default resolve_conj.default resolve_neg.default
rms_norm.default rnn_relu.input rnn_relu_cell.default rnn_tanh.input rnn_tanh_cell.default roll.default rot90.default round.default
round_.default row_stack.default rrelu.default rrelu_.default rsqrt.default rsqrt_.default rsub.Scalar rsub.Tensor scalar_tensor.default
scaled_dot_product_attention.default scatter.src scatter.value scatter.value_reduce scatter_.src scatter_.value scatter_.value_reduce
scatter_add.default scatter_add_.default scatter_reduce.two scatter_reduce_.two searchsorted.Tensor select.int select_scatter.default
selu.default selu_.default sgn.default sgn_.default sigmoid.default sigmoid_.default sign.default sign_.default signbit.default
silu.default silu_.default sin.default sin_.default sinc.default sinh.default sinh_.default slice.Tensor slice_scatter.default
smooth_l1_loss.default soft_margin_loss.default softmax.int softplus.default softshrink.default sort.default sort.stable
special_entr.default special_erf.default special_erfc.default special_erfinv.default special_exp2.default special_expit.default
special_expm1.default special_log1p.default special_log_softmax.default special_logit.default special_logsumexp.default
special_ndtr.default special_sinc.default special_softmax.default special_xlog1py.default special_xlogy.default split.Tensor
split_with_sizes.default sqrt.default sqrt_.default square.default square_.default squeeze.default squeeze.dim squeeze.dims
squeeze_.default squeeze_.dim squeeze_.dims stack.default std.correction std.default std.dim std_mean.correction std_mean.default
std_mean.dim sub.Scalar sub.Tensor sub_.Scalar sub_.Tensor subtract.Scalar subtract.Tensor subtract_.Scalar subtract_.Tensor sum.default
sum.dim_IntList swapaxes.default swapaxes_.default swapdims.default swapdims_.default t.default t_.default take.default
take_along_dim.default tan.default tan_.default tanh.default tanh_.default tensor_split.indices tensor_split.sections tensordot.default
threshold.default threshold_.default tile.default to.device to.dtype to.dtype_layout to.other topk.default trace.default transpose.int
transpose_.default trapezoid.dx trapezoid.x trapz.dx trapz.x tril.default tril_.default tril_indices.default triplet_margin_loss.default
triu.default triu_.default triu_indices.default true_divide.Scalar true_divide.Tensor true_divide_.Scalar true_divide_.Tensor
trunc.default trunc_.default type_as.default unbind.int unflatten.int unfold.default uniform_.default unsafe_chunk.default
unsafe_split.Tensor unsafe_split_with_sizes.default unsqueeze.default unsqueeze_.default upsample_bicubic2d.vec upsample_bilinear2d.vec
upsample_linear1d.vec upsample_nearest1d.vec upsample_nearest2d.vec upsample_nearest3d.vec upsample_trilinear3d.vec var.correction
var.default var.dim var_mean.correction var_mean.default var_mean.dim vdot.default view.default view_as.default vsplit.array vsplit.int
vstack.default where.Scalar where.ScalarOther where.ScalarSelf where.self xlogy.Scalar_Other xlogy.Scalar_Self xlogy.Tensor xlogy_.Tensor
zero_.default zeros.default zeros_like.default
""".split())
