// Times Pinocchio's algorithms from C++, one Data per thread, over a batch of given states.
//
//   pinocchio_loop MODEL STATES
//
// MODEL is a text file, one line per joint (see benchmarks/peers/pinocchio.py, which writes it):
//   kind parent axis(3) rotation(9, row by row) translation(3) mass com(3) inertia(6: xx xy yy xz yz zz)
// and STATES a binary file: three int64 (count, nq, nv), then count rows of q, v, a, tau in doubles.
//
// The program is a small server, so that its repeats can be interleaved with those of other libraries.
// One request per line on standard input, one line of JSON per request on standard output:
//   measure NAME LOOPS THREADS   evaluates NAME at all states, LOOPS times, on THREADS threads
//   check NAME COUNT FILE        writes the results at the first COUNT states to FILE (doubles)
//   quit
// The model is rebuilt here and not read by Pinocchio's own library: everything is then compiled in one
// piece for this processor. (With -march=native Eigen aligns to wider vectors than the shipped library
// was built for, so that the two could not exchange a Model.)

#include <pinocchio/multibody.hpp>
#include <pinocchio/multibody/joint.hpp>

#include <pinocchio/algorithm/aba-derivatives.hpp>
#include <pinocchio/algorithm/aba.hpp>
#include <pinocchio/algorithm/cholesky.hpp>
#include <pinocchio/algorithm/crba.hpp>
#include <pinocchio/algorithm/jacobian.hpp>
#include <pinocchio/algorithm/rnea-derivatives.hpp>
#include <pinocchio/algorithm/rnea.hpp>

#include <chrono>
#include <cstdint>
#include <ctime>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace pin = pinocchio;

// The joints that robots from URDF files need. Pinocchio's own collection has 25 kinds; with these few the
// program compiles in a third of the time and runs as fast or slightly faster. (Its algorithms ask for the
// mimic joint by name, so that it has to be there.)
template <class S, int O>
struct FewJoints {
  using Scalar = S;
  static constexpr int Options = O;
  using JointModelMimic = pin::JointModelMimicTpl<S, O, FewJoints>;
  using JointDataMimic = pin::JointDataMimicTpl<S, O, FewJoints>;
  using JointModelVariant =
      boost::variant<pin::JointModelFreeFlyerTpl<S, O>, pin::JointModelRevoluteTpl<S, O, 0>,
                     pin::JointModelRevoluteTpl<S, O, 1>, pin::JointModelRevoluteTpl<S, O, 2>,
                     pin::JointModelRevoluteUnalignedTpl<S, O>, pin::JointModelPrismaticUnalignedTpl<S, O>,
                     boost::recursive_wrapper<JointModelMimic>>;
  using JointDataVariant =
      boost::variant<pin::JointDataFreeFlyerTpl<S, O>, pin::JointDataRevoluteTpl<S, O, 0>,
                     pin::JointDataRevoluteTpl<S, O, 1>, pin::JointDataRevoluteTpl<S, O, 2>,
                     pin::JointDataRevoluteUnalignedTpl<S, O>, pin::JointDataPrismaticUnalignedTpl<S, O>,
                     boost::recursive_wrapper<JointDataMimic>>;
};

using Model = pin::ModelTpl<double, 0, FewJoints>;
using Data = pin::DataTpl<double, 0, FewJoints>;
using Vector = Eigen::VectorXd;
using Matrix = Eigen::MatrixXd;

struct State {
  Vector q, v, a, tau;
};

// What one thread owns; nothing in it is shared.
struct Worker {
  explicit Worker(const Model& model)
      : data(model), solution(model.nv), dtau_dq(Matrix::Zero(model.nv, model.nv)),
        dtau_dv(Matrix::Zero(model.nv, model.nv)), dtau_da(Matrix::Zero(model.nv, model.nv)) {}
  Data data;
  Vector solution;
  // Of a whole batch: given matrices and Jacobians, and results, for what takes or returns one per state.
  std::vector<Matrix> masses, jacobians, results;
  const State* given = nullptr;  // the first of the states whose matrices those are
  Matrix solutions;
  Matrix half;
  Matrix dtau_dq, dtau_dv, dtau_da;
};

using Evaluate = std::function<void(const Model&, Worker&, const State*, const State*)>;
using Collect = std::function<void(const Worker&, std::vector<double>&)>;
struct Algorithm {
  Evaluate run;     // over a range of states; the loop is inside, so the indirect call costs nothing
  Collect collect;  // appends the results of the last evaluation
};

template <class Body>
Evaluate over_states(Body body) {
  return [body](const Model& model, Worker& w, const State* begin, const State* end) {
    for (const State* s = begin; s != end; ++s) body(model, w, *s);
  };
}

void append(const Matrix& m, std::vector<double>& out) {
  for (Eigen::Index i = 0; i < m.rows(); ++i)
    for (Eigen::Index j = 0; j < m.cols(); ++j) out.push_back(m(i, j));
}

Matrix from_upper(const Matrix& m) {
  Matrix full = m.triangularView<Eigen::Upper>();
  full.triangularView<Eigen::StrictlyLower>() = full.transpose().triangularView<Eigen::StrictlyLower>();
  return full;
}

// The mass matrix of each state and the Jacobian of one point on each body at the end of a limb, made once.
void give_matrices(const Model& m, Worker& w, const State* begin, const State* end) {
  if (w.given == begin && w.masses.size() == static_cast<std::size_t>(end - begin)) return;
  w.given = begin;
  w.masses.clear();
  w.jacobians.clear();
  std::vector<pin::JointIndex> ends;
  for (pin::JointIndex j = 1; j < m.joints.size(); ++j)
    if (m.children[j].empty()) ends.push_back(j);
  Eigen::Matrix<double, 6, Eigen::Dynamic> one(6, m.nv);
  for (const State* s = begin; s != end; ++s) {
    pin::crba(m, w.data, s->q, pin::Convention::LOCAL);
    w.masses.push_back(from_upper(w.data.M));
    pin::computeJointJacobians(m, w.data, s->q);
    Matrix all = Matrix::Zero(m.nv, 3 * static_cast<Eigen::Index>(ends.size()));
    for (std::size_t k = 0; k < ends.size(); ++k) {
      one.setZero();
      pin::getJointJacobian(m, w.data, ends[k], pin::LOCAL_WORLD_ALIGNED, one);
      all.middleCols(3 * static_cast<Eigen::Index>(k), 3) = one.topRows(3).transpose();
    }
    w.jacobians.push_back(all);
  }
}

// The mass matrices of all states, whole and kept.
void keep_masses(const Model& m, Worker& w, const State* begin, const State* end, pin::Convention convention) {
  w.results.resize(static_cast<std::size_t>(end - begin), Matrix(m.nv, m.nv));
  for (const State* s = begin; s != end; ++s) {
    pin::crba(m, w.data, s->q, convention);
    w.data.M.triangularView<Eigen::StrictlyLower>() = w.data.M.transpose().triangularView<Eigen::StrictlyLower>();
    w.results[static_cast<std::size_t>(s - begin)] = w.data.M;
  }
}

std::map<std::string, Algorithm> algorithms() {
  std::map<std::string, Algorithm> table;
  const auto mass = [](const Worker& w, auto& out) { append(from_upper(w.data.M), out); };
  const auto solution = [](const Worker& w, auto& out) { append(w.solution, out); };
  const auto acceleration = [](const Worker& w, auto& out) { append(w.data.ddq, out); };

  table["rnea"] = {over_states([](const auto& m, Worker& w, const State& s) { pin::rnea(m, w.data, s.q, s.v, s.a); }),
                   [](const Worker& w, auto& out) { append(w.data.tau, out); }};
  table["crba_local"] = {over_states([](const auto& m, Worker& w, const State& s) {
                           pin::crba(m, w.data, s.q, pin::Convention::LOCAL);
                         }), mass};
  table["crba_world"] = {over_states([](const auto& m, Worker& w, const State& s) {
                           pin::crba(m, w.data, s.q, pin::Convention::WORLD);
                         }), mass};
  table["aba_local"] = {over_states([](const auto& m, Worker& w, const State& s) {
                          pin::aba(m, w.data, s.q, s.v, s.tau, pin::Convention::LOCAL);
                        }), acceleration};
  table["aba_world"] = {over_states([](const auto& m, Worker& w, const State& s) {
                          pin::aba(m, w.data, s.q, s.v, s.tau, pin::Convention::WORLD);
                        }), acceleration};
  table["aba_derivatives"] = {over_states([](const auto& m, Worker& w, const State& s) {
                                pin::computeABADerivatives(m, w.data, s.q, s.v, s.tau);
                              }),
                              [](const Worker& w, auto& out) {
                                append(w.data.ddq_dq, out);
                                append(w.data.ddq_dv, out);
                                append(from_upper(w.data.Minv), out);
                              }};
  table["rnea_derivatives"] = {over_states([](const auto& m, Worker& w, const State& s) {
                                 pin::computeRNEADerivatives(m, w.data, s.q, s.v, s.a, w.dtau_dq, w.dtau_dv, w.dtau_da);
                               }),
                               [](const Worker& w, auto& out) {
                                 append(w.dtau_dq, out);
                                 append(w.dtau_dv, out);
                                 append(from_upper(w.dtau_da), out);
                               }};
  table["mass_solve"] = {over_states([](const auto& m, Worker& w, const State& s) {
                           pin::crba(m, w.data, s.q, pin::Convention::LOCAL);
                           pin::cholesky::decompose(m, w.data);
                           w.solution = s.tau;
                           pin::cholesky::solve(m, w.data, w.solution);
                         }), solution};
  const auto kept = [](const Worker& w, auto& out) { append(w.results.back(), out); };
  table["crba_kept_local"] = {[](const Model& m, Worker& w, const State* begin, const State* end) {
                                keep_masses(m, w, begin, end, pin::Convention::LOCAL);
                              }, kept};
  table["crba_kept_world"] = {[](const Model& m, Worker& w, const State* begin, const State* end) {
                                keep_masses(m, w, begin, end, pin::Convention::WORLD);
                              }, kept};
  // The factor and the solve alone, of a batch of given matrices.
  table["factor_solve"] = {[](const Model& m, Worker& w, const State* begin, const State* end) {
                             give_matrices(m, w, begin, end);
                             w.solutions.resize(m.nv, end - begin);
                             for (const State* s = begin; s != end; ++s) {
                               w.data.M = w.masses[static_cast<std::size_t>(s - begin)];
                               pin::cholesky::decompose(m, w.data);
                               w.solution = s->tau;
                               pin::cholesky::solve(m, w.data, w.solution);
                               w.solutions.col(s - begin) = w.solution;
                             }
                           }, solution};
  // Factor, and J M^-1 J^T; M and J given.
  table["factor_delassus"] = {[](const Model& m, Worker& w, const State* begin, const State* end) {
                                const auto count = static_cast<std::size_t>(end - begin);
                                give_matrices(m, w, begin, end);
                                w.results.resize(count);
                                for (std::size_t i = 0; i < count; ++i) {
                                  w.data.M = w.masses[i];
                                  pin::cholesky::decompose(m, w.data);
                                  w.half = w.jacobians[i];
                                  pin::cholesky::Uiv(m, w.data, w.half);
                                  w.results[i].noalias() = w.half.transpose() * w.data.Dinv.asDiagonal() * w.half;
                                }
                              }, kept};
  return table;
}

pin::JointIndex add_joint(Model& model, const std::string& kind, pin::JointIndex parent, const Eigen::Vector3d& axis,
                          const pin::SE3& placement) {
  const auto add = [&](const auto& joint) {
    return model.addJoint(parent, joint, placement, "joint" + std::to_string(model.njoints));
  };
  if (kind == "FreeFlyer") return add(pin::JointModelFreeFlyer());
  if (kind == "RX") return add(pin::JointModelRX());
  if (kind == "RY") return add(pin::JointModelRY());
  if (kind == "RZ") return add(pin::JointModelRZ());
  if (kind == "RevoluteUnaligned") return add(pin::JointModelRevoluteUnaligned(axis));
  if (kind == "PX" || kind == "PY" || kind == "PZ" || kind == "PrismaticUnaligned")
    return add(pin::JointModelPrismaticUnaligned(axis));
  throw std::runtime_error("joint kind " + kind + " is not known to the timing program");
}

Model read_model(const char* path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error(std::string("cannot read ") + path);
  Model model;
  std::string line;
  std::getline(file, line);
  {
    std::istringstream in(line);
    Eigen::Vector3d gravity;
    in >> gravity[0] >> gravity[1] >> gravity[2];
    model.gravity.linear(gravity);
  }
  while (std::getline(file, line)) {
    std::istringstream in(line);
    std::string kind;
    pin::JointIndex parent;
    double mass;
    Eigen::Vector3d axis, com;
    Eigen::Matrix<double, 6, 1> inertia;
    pin::SE3 placement;
    in >> kind >> parent;
    for (int i = 0; i < 3; ++i) in >> axis[i];
    for (int i = 0; i < 3; ++i)
      for (int j = 0; j < 3; ++j) in >> placement.rotation()(i, j);
    for (int i = 0; i < 3; ++i) in >> placement.translation()[i];
    in >> mass;
    for (int i = 0; i < 3; ++i) in >> com[i];
    for (int i = 0; i < 6; ++i) in >> inertia[i];
    if (!in) throw std::runtime_error("bad model line: " + line);
    const pin::JointIndex id = add_joint(model, kind, parent, axis, placement);
    model.appendBodyToJoint(id, pin::Inertia(mass, com, pin::Symmetric3(inertia)), pin::SE3::Identity());
  }
  return model;
}

std::vector<State> read_states(const char* path, const Model& model) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(std::string("cannot read ") + path);
  std::int64_t head[3];
  file.read(reinterpret_cast<char*>(head), sizeof head);
  if (head[1] != model.nq || head[2] != model.nv) throw std::runtime_error("the states do not fit the model");
  const auto read = [&file](std::int64_t size) {
    Vector x(size);
    file.read(reinterpret_cast<char*>(x.data()), static_cast<std::streamsize>(size * sizeof(double)));
    return x;
  };
  std::vector<State> states;
  for (std::int64_t i = 0; i < head[0]; ++i) {
    State s;
    s.q = read(head[1]);
    s.v = read(head[2]);
    s.a = read(head[2]);
    s.tau = read(head[2]);
    states.push_back(s);
  }
  if (!file) throw std::runtime_error("the file of states is too short");
  return states;
}

double cpu_seconds() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

void measure(const Algorithm& algorithm, const Model& model, const std::vector<State>& states, long loops,
             int threads, std::vector<Worker>& workers) {
  while (static_cast<int>(workers.size()) < threads) workers.emplace_back(model);
  const auto work = [&](int t) {
    const std::size_t n = states.size();
    const State* begin = states.data() + n * t / threads;
    const State* end = states.data() + n * (t + 1) / threads;
    for (long l = 0; l < loops; ++l) algorithm.run(model, workers[t], begin, end);
  };
  const double cpu = cpu_seconds();
  const auto start = std::chrono::steady_clock::now();
  if (threads == 1) {
    work(0);
  } else {
    std::vector<std::thread> pool;
    for (int t = 0; t < threads; ++t) pool.emplace_back(work, t);
    for (auto& thread : pool) thread.join();
  }
  const double wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::cout << "{\"wall\": " << wall << ", \"cpu\": " << cpu_seconds() - cpu
            << ", \"evaluations\": " << loops * static_cast<long>(states.size()) << "}" << std::endl;
}

void check(const Algorithm& algorithm, const Model& model, const std::vector<State>& states, long count,
           const std::string& path) {
  Worker worker(model);
  std::vector<double> out;
  for (long i = 0; i < count; ++i) {
    algorithm.run(model, worker, &states[i], &states[i] + 1);
    algorithm.collect(worker, out);
  }
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(out.data()), static_cast<std::streamsize>(out.size() * sizeof(double)));
  file.close();  // before the answer: it is read upon that
  std::cout << "{\"size\": " << out.size() << "}" << std::endl;
}

int main(int argc, char** argv) try {
  if (argc != 3) throw std::runtime_error("usage: pinocchio_loop MODEL STATES");
  const Model model = read_model(argv[1]);
  const std::vector<State> states = read_states(argv[2], model);
  const auto table = algorithms();
  std::vector<Worker> workers;
  std::cout.precision(12);
  std::cout << "{\"nq\": " << model.nq << ", \"nv\": " << model.nv << ", \"version\": \"" << PINOCCHIO_VERSION
            << "\"}" << std::endl;
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream in(line);
    std::string request, name;
    in >> request >> name;
    if (request == "quit") break;
    const auto found = table.find(name);
    if (found == table.end()) {
      std::cout << "{\"error\": \"no algorithm " << name << "\"}" << std::endl;
      continue;
    }
    long count = 0;
    in >> count;
    if (request == "measure") {
      int threads = 1;
      in >> threads;
      measure(found->second, model, states, count, threads, workers);
    } else if (request == "check") {
      std::string path;
      in >> path;
      check(found->second, model, states, count, path);
    } else {
      std::cout << "{\"error\": \"no request " << request << "\"}" << std::endl;
    }
  }
  return 0;
} catch (const std::exception& e) {
  std::cerr << "pinocchio_loop: " << e.what() << std::endl;
  return 1;
}
