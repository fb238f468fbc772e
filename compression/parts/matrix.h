// Tensors as matrices, and the few operations that low-rank codecs need. Sums have a fixed order,
// so results are reproducible on one machine, and bit-identical between instruction sets.
#pragma once

#include <optional>
#include <vector>

#include "common/codec/codec.h"

namespace cleave {

// Calls checkpoint() at intervals in loops with iterations that are too short for a call in each.
class Checkpoints {
 public:
  static constexpr std::size_t kBetween = std::size_t{1} << 26;  // multiplications; about 10 ms

  explicit Checkpoints(const CodecContext& context) : context_(&context) {}
  // Calls nothing: for work of at most kBetween, or on another thread.
  Checkpoints() = default;
  // Reports the multiplications done since the last call.
  void passed(std::size_t multiplications) {
    done_ += multiplications;
    if (context_ == nullptr || done_ < kBetween) return;
    done_ = 0;
    context_->checkpoint();
  }

 private:
  const CodecContext* context_ = nullptr;
  std::size_t done_ = 0;
};

// A tensor as a batch of matrices, samples x rows x columns, with contiguous rows.
//   [B, C, H, W] contiguous     C rows of H * W
//   [B, C, H, W] channels-last  H * W rows of C
//   [B, S, F]                   S rows of F
struct MatrixShape {
  std::size_t samples = 0, rows = 0, columns = 0;
  bool featuresAreRows = false;  // C or F: the side that has the same meaning in every sample
};
// The shape of a tensor of 3 or 4 dimensions; nullopt for other tensors.
std::optional<MatrixShape> matrixShape(const TensorSpec& spec);

// Factors are stored rank by rank: factor[r * n + j], where n is the number of rows or columns.
//
// product[r] = a * x[r] for each of `rank` vectors: x over columns, product over rows.
void timesColumns(Checkpoints& checkpoints, const float* a, std::size_t rows, std::size_t columns,
                  const float* x, std::size_t rank, float* product);
// product[r] = a^T * x[r]: x over rows, product over columns.
void timesRows(Checkpoints& checkpoints, const float* a, std::size_t rows, std::size_t columns,
               const float* x, std::size_t rank, float* product);
// a = sum over r of left[r] * right[r]^T, each element clamped to ±max.
void outerProduct(Checkpoints& checkpoints, const float* left, std::size_t rows, const float* right,
                  std::size_t columns, std::size_t rank, float max, float* a);

// a * a^T if rows <= columns, otherwise a^T * a.
std::vector<double> gramMatrix(Checkpoints& checkpoints, const float* a, std::size_t rows,
                               std::size_t columns);

// Makes `rank` vectors of n elements orthonormal, by modified Gram-Schmidt, applied twice; a vector
// that depends on previous ones becomes 0.
void orthonormalise(Checkpoints& checkpoints, float* vectors, std::size_t n, std::size_t rank);

// The eigenvectors of the symmetric n x n matrix for its `rank` largest eigenvalues, largest first,
// by Jacobi rotations (Golub and Van Loan, "Matrix Computations", 8.5). Overwrites the matrix.
// Requires rank <= n.
std::vector<float> eigenvectors(Checkpoints& checkpoints, std::vector<double>& matrix,
                                std::size_t n, std::size_t rank);

}  // namespace cleave
