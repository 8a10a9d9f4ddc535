// Work that is stopped: wherever that happens, values are as they were, and can be computed.
#include "koine/base/interrupt.hpp"
#include <sys/wait.h>
#include <unistd.h>

#include <future>
#include <thread>

#include "check.hpp"
#include "koine/base/error.hpp"
#include "koine/base/left_work.hpp"
#include "koine/engine/engine.hpp"

namespace koine {
namespace {

using Floats = std::vector<float>;

// Runs `work`, which asks whether to go on, and says no at the given time, from 0. False where the
// work had ended before.
bool is_stopped(int64_t at, const std::function<void()>& work) {
  int64_t asked = 0;
  const Interruption interruption([&] { return asked++ == at; }, 0);
  try {
    work();
  } catch (const Interrupted&) {
    return true;
  }
  return false;
}

// When to stop next: at each of the first questions, and then here and there.
int64_t later(int64_t at) { return at + 1 + at / 8; }

TEST(interrupt, a_run_is_stopped_between_launches) {
  const int launches = 8;
  const Tensor x = test::small({16, 16}, 1).realize(), y = test::small({16, 16}, 2).realize();
  auto chain = [&] {
    Tensor value = x;
    for (int k = 0; k < launches; ++k) value = value.matmul(y).contiguous();
    return value;
  };
  const Floats expected = chain().tolist<float>();  // compiled: only launches are left to be asked
  int64_t stops = 0;
  for (bool goes_on = true; goes_on; stops += goes_on ? 1 : 0) {
    const Tensor fresh = chain();
    reset_counters();
    goes_on = is_stopped(stops, [&] { (void)fresh.realize(); });
    EXPECT_EQ(counters().kernels, goes_on ? 0 : launches);
    EXPECT_EQ(fresh.tolist<float>(), expected);
  }
  EXPECT_EQ(stops, launches);
}

TEST(interrupt, a_compilation_is_stopped_anywhere_and_can_begin_again) {
  const Tensor x = test::small({6, 10}, 3).realize();
  const Tensor expected = (x.softmax(1).matmul(x.T()) + x.square().sum({1}, true)).realize();
  const Tensor value = x.softmax(1).matmul(x.T()) + x.square().sum({1}, true);
  int64_t at = 0;
  while (is_stopped(at, [&] {
    clear_compile_cache();
    (void)koine::realize({value.uop()});
  }))
    at = later(at);
  EXPECT_GE(at, 20);  // walks, stages of each kernel, launches
  EXPECT_EQ(value.tolist<float>(), expected.tolist<float>());
}

TEST(interrupt, work_that_nobody_can_stop_is_left_behind) {
  using Left = const std::atomic<bool>&;
  EXPECT_EQ(run_or_leave([](Left) { return std::string("done"); }), "done");
  EXPECT_THROW(run_or_leave([](Left) -> std::string { raise(ErrorKind::Value, "bad"); }), Error);
  auto is_left = [](const std::function<void(Left)>& work) {
    return is_stopped(0, [&] {
      const Interruptible scope;
      (void)run_or_leave([=](Left left) {
        work(left);
        return std::string();
      });
    });
  };
  std::promise<void> may_end;
  std::atomic<bool> ended = false, goes_on = false;
  EXPECT_TRUE(is_left([&, go = may_end.get_future().share()](Left) {
    go.wait();
    ended = true;
  }));
  EXPECT_FALSE(ended);
  if (const pid_t child = fork(); child == 0) {
    wait_for_left_work();  // which is not there
    _exit(0);
  } else {
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  may_end.set_value();
  wait_for_left_work();
  EXPECT_TRUE(ended);
  EXPECT_TRUE(is_left([&](Left left) {  // which looks, and rests
    while (!left) std::this_thread::yield();
    rest_if_left(left);
    goes_on = true;
  }));
  wait_for_left_work();
  EXPECT_FALSE(goes_on);
}

// LLVM works on a kernel of so many instructions for a second.
TEST(interrupt, a_large_kernel_is_left_to_its_compiler) {
  const Tensor x = test::small({8}, 5).realize();
  auto make = [&] {
    return custom_kernel("large", CallResult{x.shape()}, {x}, [](const std::vector<UOp>& p) {
      const UOp i = range(0, p[0].dim(0), AxisType::Loop);
      UOp v = index(p[1], {i});
      for (int k = 0; k < 60; ++k) v = add(sine(v), index(p[1], {i}));
      return sink({end(store(index(p[0], {i}), v), {i})});
    });
  };
  const Tensor value = make();
  (void)schedule({value.uop()});
  // Stopped while LLVM is at it: it is asked every 10 ms there, and a few times before.
  int64_t asked = 0;
  bool stopped = false;
  try {
    const Interruption interruption([&] { return ++asked == 10; }, 0.01);
    (void)koine::realize({value.uop()});
  } catch (const Interrupted&) {
    stopped = true;
  }
  wait_for_left_work();
  EXPECT_TRUE(stopped) << "asked " << asked << " times";
  Floats expected = x.tolist<float>();
  const Floats start = expected;
  for (size_t e = 0; e < expected.size(); ++e)
    for (int k = 0; k < 60; ++k) expected[e] = std::sin(expected[e]) + start[e];
  const Floats got = value.tolist<float>();
  for (size_t e = 0; e < expected.size(); ++e) EXPECT_NEAR(got[e], expected[e], 1e-4);
}

TEST(interrupt, assignments_are_done_or_wait) {
  auto next = [](const Tensor& t) {
    t[0].assign(t[1] * 2 + 1);  // in place where nobody wants the old contents
    t[Slice{1, 3}].assign(t[Slice{1, 3}].square());
  };
  const Tensor expected = test::small({4, 5}, 4).contiguous().realize();
  next(expected);
  const Floats wanted = expected.tolist<float>();
  bool stopped = true;
  for (int64_t at = 0; stopped; at = later(at)) {
    const Tensor t = test::small({4, 5}, 4).contiguous().realize();
    const Tensor before = t + 0;  // reads what was there, now or later
    clear_compile_cache();
    next(t);
    stopped = is_stopped(at, [&] { (void)t.realize(); });
    EXPECT_EQ(t.tolist<float>(), wanted) << "stopped at " << at;
    EXPECT_EQ(before.tolist<float>(), test::small({4, 5}, 4).tolist<float>());
  }
}

TEST(interrupt, what_is_written_in_place_runs_to_its_end) {
  const Tensor t = test::small({64}, 5).contiguous().realize();
  (void)t.tolist<float>();
  t[Slice{0, 32}].assign(t[Slice{0, 32}] + 1);
  (void)t.realize();  // compiled
  for (int k = 0; k < 3; ++k) {
    const Floats was = t.tolist<float>();
    t[Slice{0, 32}].assign(t[Slice{0, 32}] + 1);
    EXPECT_FALSE(is_stopped(0, [&] { (void)t.realize(); }));
    const Floats now = t.tolist<float>();
    for (size_t i = 0; i < now.size(); ++i) EXPECT_EQ(now[i], was[i] + (i < 32 ? 1 : 0));
  }
}

TEST(interrupt, what_is_computed_before_a_write_is_stopped) {
  const int launches = 4;
  const Tensor x = test::small({16, 16}, 10).realize();
  auto written = [&] {
    Tensor t = test::small({32, 16}, 11).contiguous().realize();
    Tensor value = x;
    for (int k = 0; k < launches; ++k) value = value.matmul(x).contiguous();
    t[Slice{0, 16}].assign(value * 2);
    return t;
  };
  const Floats expected = written().tolist<float>();
  int64_t stops = 0;
  for (bool goes_on = true; goes_on; stops += goes_on ? 1 : 0) {
    const Tensor t = written();
    goes_on = is_stopped(stops, [&] { (void)t.realize(); });
    EXPECT_EQ(t.tolist<float>(), expected) << "stopped at " << stops;
  }
  EXPECT_GE(stops, launches - 1);
}

TEST(interrupt, an_optimisers_step_changes_all_or_nothing) {
  auto trained = [](int64_t at) {
    Tensor w = test::small({8, 4}, 6).contiguous().realize();
    w.requires_grad();
    nn::Adam optimizer({w});
    const Tensor x = test::small({3, 8}, 7).realize();
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      const Tensor loss = x.matmul(w).square().sum();
      loss.backward();
      if (step == 1 && at >= 0) {
        const Floats before = w.tolist<float>();
        if (is_stopped(at, [&] { optimizer.step({loss}); })) {
          EXPECT_EQ(w.tolist<float>(), before) << at;
          optimizer.step({loss});
        }
        continue;
      }
      optimizer.step({loss});
    }
    return w.tolist<float>();
  };
  const Floats expected = trained(-1);
  for (int64_t at = 0; at < 4; ++at) EXPECT_EQ(trained(at), expected);
}

TEST(interrupt, loops_are_stopped_between_their_steps) {
  const Tensor start = test::small({4}, 8).realize();
  auto walk = [&] {
    return fori_loop(0, 50, [](const Tensor&, const Tensor& x) { return x * 0.5f + 1; }, start);
  };
  const Floats expected = walk().tolist<float>();
  int64_t stops = 0;
  for (const int64_t at : {0, 1, 7, 49}) {
    const Tensor value = walk();
    stops += is_stopped(at, [&] { (void)value.realize(); }) ? 1 : 0;
    EXPECT_EQ(value.tolist<float>(), expected);
  }
  EXPECT_EQ(stops, 4);
}

TEST(interrupt, a_captured_function_goes_on_after_one) {
  const Tensor x = test::small({16, 16}, 9).realize();
  CapturedFunction f(
      [](const std::vector<Tensor>& a) {
        return std::vector<Tensor>{a[0].matmul(a[0]).contiguous().matmul(a[0])};
      },
      {x});
  const Floats expected = f({x})[0].tolist<float>();
  const Tensor kept = f({x})[0];
  for (int64_t at = 0; at < 2; ++at) {
    EXPECT_TRUE(is_stopped(at, [&] { (void)f({x}); }));
    EXPECT_EQ(f({x})[0].tolist<float>(), expected);
    EXPECT_EQ(kept.tolist<float>(), expected);
  }
}

TEST(interrupt, only_work_that_can_begin_again_is_asked) {
  bool asked = false;
  const Interruption interruption(
      [&] {
        asked = true;
        return true;
      },
      0);
  EXPECT_FALSE(is_interrupted());  // nothing said that it may be stopped
  {
    const Interruptible scope;
    EXPECT_TRUE(is_interrupted());
    const Uninterruptible whole;
    const Interruptible inside;
    EXPECT_FALSE(is_interrupted());
  }
  EXPECT_TRUE(asked);
  EXPECT_EQ(interruption_here(), nullptr);
  // An outer one is back when an inner one is gone.
  {
    const Interruption inner([] { return false; }, 0);
    const Interruptible scope;
    EXPECT_FALSE(is_interrupted());
  }
  const Interruptible scope;
  EXPECT_TRUE(is_interrupted());
}

TEST(interrupt, it_is_not_asked_more_often_than_was_said) {
  int asked = 0;
  const Interruption interruption(
      [&] {
        ++asked;
        return false;
      },
      3600);
  const Interruptible scope;
  for (int k = 0; k < 1000; ++k) EXPECT_FALSE(is_interrupted());
  EXPECT_EQ(asked, 0);
}

}  // namespace
}  // namespace koine
