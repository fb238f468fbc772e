#include "compression/parts/matrix.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "compression/kernels/kernels.h"

namespace cleave {
namespace {

// Independent sums, so that the compiler may vectorise without reordering additions.
constexpr std::size_t kLanes = 16;
// Multiplications between two checkpoints; a few µs.
constexpr std::size_t kTogether = std::size_t{1} << 18;

// How many of these are done between two checkpoints, each of so many multiplications.
std::size_t together(std::size_t multiplications) {
  return std::max<std::size_t>(1, kTogether / multiplications);
}

double wideDot(const float* __restrict a, const float* __restrict b, std::size_t n) {
  std::array<double, kLanes> sums{};
  std::size_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      sums[lane] += double{a[j + lane]} * double{b[j + lane]};
    }
  }
  double sum = 0;
  for (const double part : sums) sum += part;
  for (; j < n; ++j) sum += double{a[j]} * double{b[j]};
  return sum;
}

void addScaled(float* __restrict to, const float* __restrict from, float factor, std::size_t n) {
  for (std::size_t j = 0; j < n; ++j) to[j] += factor * from[j];
}

double norm(const float* vector, std::size_t n) { return std::sqrt(wideDot(vector, vector, n)); }

// One rotation that zeroes matrix[p][q]; the rows of `vectors` become the eigenvectors.
void rotate(std::vector<double>& matrix, std::vector<double>& vectors, std::size_t n, std::size_t p,
            std::size_t q) {
  const double theta = (matrix[q * n + q] - matrix[p * n + p]) / (2 * matrix[p * n + q]);
  const double t = std::copysign(1.0, theta) / (std::abs(theta) + std::sqrt(theta * theta + 1));
  const double c = 1 / std::sqrt(t * t + 1);
  const double s = t * c;
  for (std::size_t k = 0; k < n; ++k) {
    const double kp = matrix[k * n + p];
    const double kq = matrix[k * n + q];
    matrix[k * n + p] = c * kp - s * kq;
    matrix[k * n + q] = s * kp + c * kq;
  }
  for (std::size_t k = 0; k < n; ++k) {
    const double pk = matrix[p * n + k];
    const double qk = matrix[q * n + k];
    matrix[p * n + k] = c * pk - s * qk;
    matrix[q * n + k] = s * pk + c * qk;
    const double vp = vectors[p * n + k];
    const double vq = vectors[q * n + k];
    vectors[p * n + k] = c * vp - s * vq;
    vectors[q * n + k] = s * vp + c * vq;
  }
}

}  // namespace

std::optional<MatrixShape> matrixShape(const TensorSpec& spec) {
  const auto at = [&](std::size_t d) { return static_cast<std::size_t>(spec.shape[d]); };
  if (spec.shape.size() == 3) return MatrixShape{at(0), at(1), at(2), false};
  if (spec.shape.size() != 4) return std::nullopt;
  if (spec.order == MemoryOrder::channelsLast) {
    return MatrixShape{at(0), at(2) * at(3), at(1), false};
  }
  return MatrixShape{at(0), at(1), at(2) * at(3), true};
}

void timesColumns(Checkpoints& checkpoints, const float* a, std::size_t rows, std::size_t columns,
                  const float* x, std::size_t rank, float* product) {
  const std::size_t some = together(rank * columns);
  for (std::size_t row = 0; row < rows; row += some) {
    const std::size_t count = std::min(some, rows - row);
    kernels::dots(a + row * columns, count, columns, x, rank, rows, product + row);
    checkpoints.passed(count * rank * columns);
  }
}

void timesRows(Checkpoints& checkpoints, const float* a, std::size_t rows, std::size_t columns,
               const float* x, std::size_t rank, float* product) {
  // Whole cache lines of each row.
  const std::size_t some = (together(rank * rows) + 63) / 64 * 64;
  for (std::size_t j = 0; j < columns; j += some) {
    const std::size_t count = std::min(some, columns - j);
    kernels::weightedSums({a + j, rows, count, columns}, x, rank, columns, product + j);
    checkpoints.passed(count * rank * rows);
  }
}

void outerProduct(Checkpoints& checkpoints, const float* left, std::size_t rows, const float* right,
                  std::size_t columns, std::size_t rank, float max, float* a) {
  const std::size_t some = together(rank * columns);
  for (std::size_t row = 0; row < rows; row += some) {
    const std::size_t count = std::min(some, rows - row);
    kernels::outer(left + row, count, rows, right, columns, rank, max, a + row * columns);
    checkpoints.passed(count * rank * columns);
  }
}

std::vector<double> gramMatrix(Checkpoints& checkpoints, const float* a, std::size_t rows,
                               std::size_t columns) {
  const std::size_t n = std::min(rows, columns);
  std::vector<double> gram(n * n);
  if (rows <= columns) {
    for (std::size_t p = 0; p < n; ++p) {
      for (std::size_t q = 0; q <= p; ++q) {
        gram[p * n + q] = gram[q * n + p] = wideDot(a + p * columns, a + q * columns, columns);
        checkpoints.passed(columns);
      }
    }
    return gram;
  }
  for (std::size_t row = 0; row < rows; ++row) {
    const float* const values = a + row * columns;
    for (std::size_t p = 0; p < n; ++p) {
      double* const out = &gram[p * n];
      const double factor = values[p];
      for (std::size_t q = 0; q < n; ++q) out[q] += factor * double{values[q]};
    }
    checkpoints.passed(n * n);
  }
  return gram;
}

void orthonormalise(Checkpoints& checkpoints, float* vectors, std::size_t n, std::size_t rank) {
  for (std::size_t r = 0; r < rank; ++r) {
    float* const vector = vectors + r * n;
    const double before = norm(vector, n);
    for (int time = 0; time < 2; ++time) {
      for (std::size_t other = 0; other < r; ++other) {
        float product = 0;
        kernels::dots(vector, 1, n, vectors + other * n, 1, 1, &product);
        addScaled(vector, vectors + other * n, -product, n);
        checkpoints.passed(2 * n);
      }
    }
    const double length = norm(vector, n);
    // A smaller remainder is rounding error.
    constexpr double kRounding = 1e-5;
    const bool independent = length > kRounding * before && length > 1e-30;
    const auto factor = static_cast<float>(independent ? 1 / length : 0);
    for (std::size_t j = 0; j < n; ++j) vector[j] *= factor;
  }
}

std::vector<float> eigenvectors(Checkpoints& checkpoints, std::vector<double>& matrix,
                                std::size_t n, std::size_t rank) {
  std::vector<double> vectors(n * n);
  for (std::size_t j = 0; j < n; ++j) vectors[j * n + j] = 1;
  constexpr int kSweeps = 30;
  constexpr double kConverged = 1e-24;  // fraction of the sum of squares
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    double all = 0;
    double off = 0;
    for (std::size_t p = 0; p < n; ++p) {
      for (std::size_t q = 0; q < n; ++q) {
        const double square = matrix[p * n + q] * matrix[p * n + q];
        all += square;
        if (p != q) off += square;
      }
    }
    if (off <= kConverged * all) break;
    for (std::size_t p = 0; p + 1 < n; ++p) {
      for (std::size_t q = p + 1; q < n; ++q) {
        if (matrix[p * n + q] != 0) rotate(matrix, vectors, n, p, q);
      }
      checkpoints.passed(6 * n * n);
    }
  }
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return matrix[a * n + a] > matrix[b * n + b];
  });
  std::vector<float> result(rank * n);
  for (std::size_t r = 0; r < rank; ++r) {
    for (std::size_t j = 0; j < n; ++j) {
      result[r * n + j] = static_cast<float>(vectors[order[r] * n + j]);
    }
  }
  return result;
}

}  // namespace cleave
