// Sizes, axes and dtypes from Python.
#include "bind.hpp"

#include <condition_variable>
#include <koine/base/error.hpp>
#include <mutex>

namespace koine::python {

std::string name_of_type(nb::handle given) {
  return nb::cast<std::string>(nb::borrow(nb::handle(given.type()).attr("__name__")));
}

namespace {

bool is_whole(nb::handle given) {
  return !PyBool_Check(given.ptr()) && PyIndex_Check(given.ptr()) && !nb::isinstance<Tensor>(given);
}

bool is_list(nb::handle given) { return PyList_Check(given.ptr()) || PyTuple_Check(given.ptr()); }

}  // namespace

int64_t as_int(nb::handle given, const char* method, const char* what) {
  KOINE_REQUIRE(is_whole(given), Type, "{}: {} is a whole number, not a '{}'", method, what,
                name_of_type(given));
  const auto number = nb::steal(PyNumber_Index(given.ptr()));
  if (!number.is_valid()) throw nb::python_error();
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  KOINE_REQUIRE(overflow == 0, Value, "{}: {} does not fit into 64 bits", method, what);
  return value;
}

Size as_size(nb::handle given, const char* method) {
  if (nb::isinstance<Size>(given)) return nb::cast<Size>(given);
  return as_int(given, method, "a size");
}

Shape as_shape(nb::handle given, const char* method) {
  if (!is_list(given)) return {as_size(given, method)};
  Shape out;
  for (const nb::handle item : nb::borrow<nb::sequence>(given))
    out.push_back(as_size(item, method));
  return out;
}

Shape shape_of_all(const nb::args& given, const char* method) {
  if (given.size() == 1) return as_shape(given[0], method);
  return as_shape(given, method);
}

IntList as_axes(nb::handle given, const char* method) {
  IntList out;
  if (given.is_none()) return out;
  if (!is_list(given)) return {as_int(given, method, "an axis")};
  for (const nb::handle item : nb::borrow<nb::sequence>(given))
    out.push_back(as_int(item, method, "an axis"));
  return out;
}

IntList axes_of_all(const nb::args& given, const char* method) {
  if (given.size() == 1) return as_axes(given[0], method);
  return as_axes(given, method);
}

SizePairs as_pairs(nb::handle given, const char* method) {
  KOINE_REQUIRE(is_list(given), Type, "{}: takes a pair of sizes for each axis, not a '{}'", method,
                name_of_type(given));
  SizePairs out;
  for (const nb::handle item : nb::borrow<nb::sequence>(given)) {
    KOINE_REQUIRE(is_list(item) && nb::len(item) == 2, Type,
                  "{}: takes a pair of sizes for each axis, such as (1, 2), not {}", method,
                  nb::repr(item).c_str());
    out.emplace_back(as_size(item[0], method), as_size(item[1], method));
  }
  return out;
}

nb::tuple tuple_of(const Shape& shape) {
  nb::list out;
  for (const Size& s : shape) out.append(s.is_number() ? nb::cast(int64_t{s}) : nb::cast(s));
  return nb::tuple(out);
}

// --- what is let go without the lock of the interpreter ------------------------------------------

namespace {

struct Waiting {
  std::mutex mutex;
  std::vector<PyObject*> objects;
};
Waiting& waiting() {
  static auto& instance = *new Waiting;
  return instance;
}

}  // namespace

void let_go_now() {
  std::vector<PyObject*> objects;
  {
    const std::lock_guard lock(waiting().mutex);
    objects.swap(waiting().objects);
  }
  for (PyObject* object : objects) Py_DECREF(object);
}

// Whoever lets memory go may hold locks, so that Python must not run here even if it could.
void let_go_later(PyObject* object) {
  {
    const std::lock_guard lock(waiting().mutex);
    waiting().objects.push_back(object);
  }
  if (Py_IsInitialized() == 0) return;
  Py_AddPendingCall(
      [](void*) {
        let_go_now();
        return 0;
      },
      nullptr);  // refused where many wait: one of these lets all go
}

// --- the lock of the interpreter -----------------------------------------------------------------

namespace {

struct Leaving {
  std::mutex mutex;
  std::condition_variable nobody;
  int without_lock = 0;
  bool ending = false;
};
Leaving& leaving() {
  static auto& instance = *new Leaving;
  return instance;
}

}  // namespace

Unlocked::Unlocked() : state_(nullptr) {
  {
    const std::lock_guard lock(leaving().mutex);
    if (leaving().ending) return;
    ++leaving().without_lock;
  }
  state_ = PyEval_SaveThread();
}
Unlocked::~Unlocked() {
  if (state_ == nullptr) return;
  PyEval_RestoreThread(state_);
  const std::lock_guard lock(leaving().mutex);
  if (--leaving().without_lock == 0) leaving().nobody.notify_all();
}

void wait_for_all_and_keep_the_lock() {
  PyThreadState* const state = PyEval_SaveThread();
  {
    std::unique_lock lock(leaving().mutex);
    leaving().ending = true;
    leaving().nobody.wait(lock, [] { return leaving().without_lock == 0; });
  }
  PyEval_RestoreThread(state);
}

}  // namespace koine::python
