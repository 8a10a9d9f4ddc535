// Sizes, axes and dtypes from Python.
#include "bind.hpp"

#include <condition_variable>
#include <koine/base/error.hpp>
#include <koine/base/left_work.hpp>
#include <mutex>

namespace koine::python {

std::string name_of_type(nb::handle given) {
  if (PyType_Check(given.ptr()) != 0)
    return "class " + nb::cast<std::string>(nb::borrow(given.attr("__name__")));
  return nb::cast<std::string>(nb::borrow(nb::handle(given.type()).attr("__name__")));
}

namespace {

bool is_whole(nb::handle given) {
  return !PyBool_Check(given.ptr()) && PyIndex_Check(given.ptr()) && !nb::isinstance<Tensor>(given);
}

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
  if (nb::isinstance<Variable>(given)) return nb::cast<const Variable&>(given);
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
  std::condition_variable fewer;
  int without_lock = 0;
  int closed = 0;  // nobody may be without it any more: the interpreter ends, or somebody forks
};
Leaving& leaving() {
  static auto& instance = *new Leaving;
  return instance;
}

// Of without_lock, those of this thread: around a function of Python's that is described, say.
thread_local int own_without_lock = 0;

// With the lock of the interpreter held before and after: others that are without it come to their
// end, and later ones keep it.
void wait_for_others() {
  PyThreadState* const state = PyEval_SaveThread();
  {
    std::unique_lock lock(leaving().mutex);
    ++leaving().closed;
    leaving().fewer.wait(lock, [] { return leaving().without_lock == own_without_lock; });
  }
  wait_for_left_work();
  PyEval_RestoreThread(state);
}

void let_others_go_on() {
  const std::lock_guard lock(leaving().mutex);
  --leaving().closed;
}

}  // namespace

Unlocked::Unlocked() : state_(nullptr) {
  {
    const std::lock_guard lock(leaving().mutex);
    if (leaving().closed > 0) return;
    ++leaving().without_lock;
  }
  ++own_without_lock;
  state_ = PyEval_SaveThread();
}
Unlocked::~Unlocked() {
  if (state_ == nullptr) return;
  PyEval_RestoreThread(state_);
  --own_without_lock;
  const std::lock_guard lock(leaving().mutex);
  --leaving().without_lock;
  leaving().fewer.notify_all();
}

// The handler itself would run Python here, in the middle of what is computed, so it only is asked
// for: it runs once the work has ended.
bool is_ctrl_c_waiting() {
  const PyGILState_STATE state = PyGILState_Ensure();
  const bool waiting = PyOS_InterruptOccurred() != 0;
  if (waiting) PyErr_SetInterrupt();  // asking has taken it away
  PyGILState_Release(state);
  return waiting;
}

void run_signal_handlers() {
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

void bind_ends_and_forks(nb::module_&) {
  nb::module_::import_("atexit").attr("register")(nb::cpp_function(&wait_for_others));
  // Who computes holds locks, which a child would wait for in vain.
  nb::module_::import_("os").attr("register_at_fork")(
      "before"_a = nb::cpp_function(&wait_for_others),
      "after_in_parent"_a = nb::cpp_function(&let_others_go_on),
      "after_in_child"_a = nb::cpp_function(&let_others_go_on));
}

}  // namespace koine::python
