// Index expressions and the normal form that each has: what keeps the address arithmetic of kernels
// as short as a person would write it. That values stay is the matter of the random tests.
#include "check.hpp"
#include "koine/ir/build.hpp"
#include "koine/ir/symbolic.hpp"
#include "koine/ir/text.hpp"
#include "koine/rules/simplify.hpp"

namespace koine::test {
namespace {

// Index arithmetic in C++'s operators; `/` and `%` round down.
struct E {
  UOp u;
  E(UOp node) : u(std::move(node)) {}          // NOLINT: as in a formula
  E(int value) : u(index_const(value)) {}      // NOLINT: as in a formula
  E(int64_t value) : u(index_const(value)) {}  // NOLINT: as in a formula
};
E operator+(const E& a, const E& b) { return {add(a.u, b.u)}; }
E operator-(const E& a, const E& b) { return {sub(a.u, b.u)}; }
E operator*(const E& a, const E& b) { return {mul(a.u, b.u)}; }
E operator/(const E& a, const E& b) { return {idiv(a.u, b.u)}; }
E operator%(const E& a, const E& b) { return {mod(a.u, b.u)}; }
E operator<(const E& a, const E& b) { return {lt(a.u, b.u)}; }
E operator!=(const E& a, const E& b) { return {ne(a.u, b.u)}; }
E max(const E& a, const E& b) { return {maximum(a.u, b.u)}; }

E loop(int64_t id, const E& bound) { return {range(id, bound.u, AxisType::Loop)}; }

class IndexTable : public testing::Test {
 protected:
  // L0 < 8, L1 < 4, L2 < 3; b in [0, 20], s in [-6, 6]
  const E i = loop(0, 8), j = loop(1, 4), k = loop(2, 3);
  const E b{variable("b", 0, 20)}, s{variable("s", -6, 6)};
  static std::string row_text(const E& e) { return dim_text(simplify(e.u)); }
  static void row(const E& before, const std::string& after) {
    EXPECT_EQ(row_text(before), after) << "from " << dim_text(before.u);
  }
};

TEST_F(IndexTable, sums) {
  row(E(1) + i, "L0+1");
  row(j + i, "L0+L1");
  row(i + i, "L0*2");
  row(i - i, "0");
  row(i * 3 - i * 2 - i + 5, "5");
  row((i + 2) + (j + 3), "L0+L1+5");
  row((i + 2) * 3, "L0*3+6");
  row((i + 1) * (j + 2), "L0*2+L0*L1+L1+2");
  row(j * i, "L0*L1");
  row((i + j) * 0, "0");
  row(i * j - j * i, "0");
  row(E(7) * 6, "42");
}

TEST_F(IndexTable, quotients_and_remainders) {
  row((i * 4 + j) / 4, "L0");
  row((i * 4 + j) % 4, "L1");
  row((i * 4 + j + 4) / 4, "L0+1");
  row((i * 4 + j + 5) / 8, "(L0*4+L1+5)//8");
  row((i * 8 + j * 2 + 1) / 8, "L0");
  row((i * 8 + j * 2 + 1) % 8, "L1*2+1");
  row((i * 8 + j * 2 + 1) / 2, "L0*4+L1");
  row((i * 8 + j * 2 + 1) % 2, "1");
  row((i * 12 + j * 3 + k) / 3, "L0*4+L1");
  row((i * 12 + j * 3 + k) % 3, "L2");
  row((i * 12 + j * 3 + k) / 12, "L0");
  row((i * 12 + j * 3 + k) % 12, "L1*3+L2");
  row((i * 6 + j) / 12, "L0//2");
  row((i * 6 + j) % 12, "L1+L0%2*6");
  row(i / 8, "0");
  row(i % 8, "L0");
  row((i + 8) / 8, "1");
  row((i - 8) / 8, "-1");
  row((i - 8) % 8, "L0");
  row(s / 7, "s//7");
  row((s + 6) / 13, "0");
  row((s + 6) % 13, "s+6");
  row(b / 3 / 5, "b//15");
  row(b / 3 % 5, "b//3%5");
  row(b % 6 % 3, "b%3");
  row(b % 6 / 3, "b%6//3");
  row(b / 21, "0");
  row(b / 20, "b//20");
  row(b / 1, "b");
  row(b % 1, "0");
  row(E(-7) / 2, "-4");
  row(E(-7) % 2, "1");
  row(E(7) / -2, "-4");
  row(E(7) % -2, "-1");
  row(E(7) / 0, "0");
  row(E(7) % 0, "0");
  row(b / 0, "0");
  row(b / b, "b//b");  // b may be 0
  row((b + 1) / (b + 1), "1");
  row((b + 1) % (b + 1), "0");
  row(b / (b + 1), "0");
  row(b % (b + 1), "b");
}

TEST_F(IndexTable, remainders_by_subtraction) {
  row(b - b / 4 * 4, "b%4");
  row(b * 3 - b / 4 * 12, "b%4*3");
  row(b / 4 * 4 - b, "b%4*-1");
  row(b - b / 4 * 4 + b / 4 * 4, "b");
  row(b - b / 4 * 8, "b+b//4*-8");
  row(b + b / 4 * 4, "b+b//4*4");
  row(i * b - b / 4 * i * 4, "L0*(b%4)");
  row((b + i) - (b + i) / 5 * 5, "(L0+b)%5");
}

TEST_F(IndexTable, remainders_and_quotients_that_belong_together) {
  row((i * 4 + j) / 4 * 4 + (i * 4 + j) % 4, "L0*4+L1");
  row(b / 5 * 5 + b % 5, "b");
  row(b / 5 * 10 + b % 5 * 2, "b*2");
  row(b / 5 * 5 * i + b % 5 * i, "L0*b");
  const std::string apart = row_text(b / 5 * 5 + b % 5 * 2);
  EXPECT_NE(apart.find('%'), std::string::npos) << apart;
  row((b + 3) / 5 * 5 + (b + 3) % 5, "b+3");
}

TEST_F(IndexTable, comparisons) {
  row(i < 8, "1");
  row(i < 7, "L0<7");
  row(i < 0, "0");
  row(i * 4 + 3 < E(16), "L0<4");
  row(i * 4 < E(14), "L0<4");
  row(i * 4 < E(13), "L0<4");
  row(i * 4 < E(12), "L0<3");
  row(i + j < j + 3, "L0<3");
  row(i * 4 + j < E(12), "L0<3");
  row(i * 4 + j + 2 < E(12), "L0*4+L1<10");  // L0 = 2: decided by L1
  row(i * 4 + j + 3 < E(12), "L0*4+L1<9");
  row(i * 4 + k < E(11), "L0<3");
  row(i * 16 + j * 4 + k < E(36), "L0*4+L1<9");
  row(i * 16 + j * 4 + k < E(48), "L0<3");
  row(i * 16 + j * 4 + k < E(37), "L0*16+L1*4+L2<37");
  row(i * 16 + j * 4 + k < E(35), "L0*4+L1<9");
  row(i * 8 + s < E(8), "L0*8+s<8");
  row(i * 16 + s < E(7), "L0<1");
  row(i * 16 + s < E(6), "L0*16+s<6");
  row(E(12) < i * 4 + j + 1, "L0<3!=1");
  row((j - i) * 4 + k < E(3), "L0*-1+L1<1");
  row(i * j * 4 + k < E(7), "L0*L1<2");
  row(E(3) < i, "L0<4!=1");
  row(b / 3 < E(4), "b<12");
  row(b / 3 + 1 < E(4), "b<9");
  row(i < i, "0");
  row(i != i, "0");
  row(i != i + 1, "1");
  row(i * 2 != E(3), "1");
  row(i * 2 != E(6), "L0!=3");
  row(E(0) - i * 2 != E(-6), "L0!=3");
  row(i != j, row_text(j != i));
  row(i != 9, "1");
}

TEST_F(IndexTable, maxima) {
  row(max(i, 0), "L0");
  row(max(i, 7), "7");
  row(max(i, i), "L0");
  row(max(i + 1, i), "L0+1");
  row(max(i, i + 1), "L0+1");
  row(max(i, 8), "8");
  row(max(i, 6), "Max(L0, 6)");
}

TEST_F(IndexTable, symbolic_sizes) {
  const E n{variable("n", 1, 10)}, m{variable("m", 1, 10)};
  const E x = loop(3, n), y = loop(4, m);
  row((y * n + x) / n, "L4");
  row((y * n + x) % n, "L3");
  row((y * n + x + n) / n, "L4+1");
  row((i * (n * m) + y * n + x) / (n * m), "L0");
  row((i * (n * m) + y * n + x) % (n * m) / n, "L4");
  row(x < n, "1");
  row(x < n - 1, row_text(x + 1 < n));
  row(x - n < 0, "1");
  row(max(x + 1, n), "n");
  row(n / n, "1");
  row((n * m) / n, "m");
  row((n * m) % n, "0");
  // Taken by its term n m, long division of n n m comes back to n n m after two steps.
  const E circle = n * m + m * m + n * n;
  EXPECT_EQ(simplify((n * n * m / circle).u).op(), Op::Idiv);
}

}  // namespace
}  // namespace koine::test
