"""Kernels that keep the batch axis last in memory, whatever `vmap` the caller writes.

`jax.vmap` puts the batch first, so that the innermost loops of a rigid-body algorithm run over axes of length 3 and 6
and nothing vectorises. A *kernel* here is a function of arrays that all carry one extra trailing axis, of length 1 or
B: the batch. `batch_last(kernel)` turns it into a function of single arrays, and makes a JAX primitive of the call,
whose

- batching rule folds every mapped axis into the trailing one (an argument that is not mapped keeps length 1),
- differentiation rules differentiate the kernel itself, batch still last, to any order and in any mode,
- lowering cuts a large batch into tiles that stay in cache (CPU only).

Derivations of the differentiation rules. Let y = k(x). The tangent is the *linear call* L(k'; x; dx) = k'(x) dx,
computed by `jax.jvp` of the kernel. A linear call L(l; r; z), linear in z with residuals r, has

    tangent:   dL = L(l; r; dz) + L(l_r; r, z; dr)        with l_r the derivative of l with respect to r
    transpose: z^bar = L(l^T; r; c)                       with l^T by `jax.linear_transpose`

so that calls and linear calls are closed under differentiation. Linear operands always carry the full batch: the
broadcast of an unmapped one happens outside, in plain JAX, whose transpose is the sum over the batch that a shared
parameter's gradient needs.
"""

import functools
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import jax
import jax.numpy as jnp
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

#: Batch that one tile of a kernel holds on a CPU, measured: with 40 of a quadruped or a humanoid the working set stays in
#: the second-level cache, with 120 derivatives take a sixth longer. An odd multiple of 8: strides that are powers of two
#: collide in the cache's sets.
TILE = 40


# A derivative rule of a kernel: `rule(static, arguments, tangents, output) -> tangent of the output`, all batch last;
# `tangents` has the structure of `arguments` with `None` where an argument does not vary.
Rule: TypeAlias = Callable[[Any, Any, Any, Any], Any]


@dataclass(frozen=True)
class _Kernel:
    """A kernel as a function of flat arrays; hashable, so that compiled code is shared between equal calls."""

    function: Callable
    static: Hashable
    structure: Any
    rule: Rule | None = field(default=None)

    def __call__(self, *flat):
        return tuple(jax.tree.leaves(self.tree(*flat)))

    def tree(self, *flat):
        return self.function(self.static, *jax.tree.unflatten(self.structure, flat))


@dataclass(frozen=True)
class _Jvp:
    """The tangent of `kernel` along the arguments marked in `varying`: (*arguments, *tangents of the marked ones) ->
    tangents."""

    kernel: Callable
    varying: tuple[bool, ...]

    def __call__(self, *flat):
        n = len(self.varying)
        arguments, tangents = flat[:n], flat[n:]
        moving = tuple(x for x, moves in zip(arguments, self.varying, strict=True) if moves)

        def restricted(*moved):
            rest = iter(moved)
            return self.kernel(*(next(rest) if moves else x for x, moves in zip(arguments, self.varying, strict=True)))

        # A shared argument (trailing length 1) is widened first: its tangent carries the whole batch.
        width = _width(flat)
        return jax.jvp(restricted, tuple(_full_width(moving, width)), tuple(_full_width(tangents, width)))[1]


@dataclass(frozen=True)
class _Transpose:
    """The transpose of a linear kernel with `n_residuals` leading residuals: (*residuals, *cotangents) -> cotangents
    of the operands."""

    kernel: Callable
    n_residuals: int
    shapes: tuple[tuple[tuple[int, ...], Any], ...]

    def __call__(self, *flat):
        residuals, cotangents = flat[: self.n_residuals], flat[self.n_residuals :]
        width = _width(flat)
        operands = tuple(jax.ShapeDtypeStruct((*shape, width), dtype) for shape, dtype in self.shapes)
        transposed = jax.linear_transpose(lambda *z: tuple(_full_width(self.kernel(*residuals, *z), width)), *operands)
        return transposed(tuple(_full_width(cotangents, width)))


def _full_width(outputs: Sequence, width: int) -> list:
    return [x if x.shape[-1] == width else jnp.broadcast_to(x, (*x.shape[:-1], width)) for x in outputs]


def _width(arrays) -> int:
    return broadcast_width(x.shape[-1] for x in arrays)


def broadcast_width(widths: Iterable[int]) -> int:
    """The length to which batches of length 1 and B broadcast; a batch may be empty (B = 0)."""
    widths = list(widths)
    return 0 if 0 in widths else max(widths, default=1)


def _run(*flat, kernel: Callable, **_):
    return _full_width(kernel(*flat), _width(flat))


def _run_tiled(*flat, kernel: Callable, **_):
    """The kernel over tiles of the batch. The last tile overlaps the one before it rather than being padded."""
    width = _width(flat)
    if width <= TILE + TILE // 2:
        return _run(*flat, kernel=kernel)
    count = -(-width // TILE)
    tile = min(width, -(-width // count // 8) * 8)  # whole vector registers
    shapes = [(*x.shape[:-1], tile if x.shape[-1] == width else 1) for x in flat]
    structs = [jax.ShapeDtypeStruct(s, x.dtype) for s, x in zip(shapes, flat, strict=True)]
    outputs = jax.eval_shape(functools.partial(_run, kernel=kernel), *structs)
    # Results are collected batch first, as `vmap` wants them: turned round tile by tile, in cache, or never where the
    # kernel's last stage is batch first itself.
    buffers = [jnp.zeros((width, *o.shape[:-1]), o.dtype) for o in outputs]

    def body(i, buffers):
        start = jnp.minimum(i * tile, width - tile)
        cut = [jax.lax.dynamic_slice_in_dim(x, start, tile, -1) if x.shape[-1] == width else x for x in flat]
        parts = _run(*cut, kernel=kernel)
        return [
            jax.lax.dynamic_update_slice_in_dim(b, jnp.moveaxis(p, -1, 0), start, 0)
            for b, p in zip(buffers, parts, strict=True)
        ]

    return [jnp.moveaxis(b, 0, -1) for b in jax.lax.fori_loop(0, count, body, buffers)]


@functools.lru_cache(maxsize=4096)
def _output_shapes(kernel: Callable, signature: tuple) -> tuple:
    structs = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in signature]
    return tuple(jax.eval_shape(functools.partial(_run, kernel=kernel), *structs))


def _abstract(*avals, kernel: Callable, **_):
    signature = tuple((tuple(a.shape), a.dtype) for a in avals)
    return [ShapedArray(o.shape, o.dtype) for o in _output_shapes(kernel, signature)]


@functools.lru_cache(maxsize=4096)
def _compiled(primitive: Primitive, parameters: tuple) -> Callable:
    return jax.jit(functools.partial(primitive.bind, **dict(parameters)))


def _fold(x, dim: int | None, size: int, inner: int, full: bool):
    """Fold the mapped axis `dim` of `x` into its trailing axis; `inner` is the width before, `full` asks for the
    whole new width."""
    if dim is None:
        if x.shape[-1] == 1 and not full:
            return x
        x = jnp.broadcast_to(x[..., None, :], (*x.shape[:-1], size, inner))
    else:
        x = jnp.moveaxis(x, dim, -2)
        if x.shape[-1] != inner:
            x = jnp.broadcast_to(x, (*x.shape[:-1], inner))
    return x.reshape(*x.shape[:-2], size * inner)


def _batch_rule(primitive: Primitive, arguments, dims, **parameters):
    size = next(x.shape[d] for x, d in zip(arguments, dims, strict=True) if d is not None)
    n_residuals = parameters.get("n_residuals", len(arguments))
    inner = broadcast_width(_trailing(x, d) for x, d in zip(arguments, dims, strict=True))
    folded = [
        _fold(x, d, size, inner, full=i >= n_residuals) for i, (x, d) in enumerate(zip(arguments, dims, strict=True))
    ]
    outputs = primitive.bind(*folded, **parameters)
    split = [y.reshape(*y.shape[:-1], size, inner) for y in outputs]
    return split, [y.ndim - 2 for y in split]


def _trailing(x, dim: int | None) -> int:
    """Length of the trailing axis of `x` seen from inside the map over `dim`."""
    if dim is None:
        return x.shape[-1]
    return x.shape[-2] if dim % x.ndim == x.ndim - 1 else x.shape[-1]


def _evaluate(primitive: Primitive, *flat, **parameters) -> list:
    """The call outside of `jit`: compiled all the same, but for a debugger, which asks that nothing is."""
    if cast(Any, jax.config).jax_disable_jit:  # its flags are attributes, made when JAX is imported
        return _run(*flat, **parameters)
    return _compiled(primitive, tuple(sorted(parameters.items())))(*flat)


call_p = Primitive("jaxdyn_kernel")
linear_p = Primitive("jaxdyn_linear_kernel")

for _primitive in (call_p, linear_p):
    _primitive.multiple_results = True
    _primitive.def_impl(functools.partial(_evaluate, _primitive))
    _primitive.def_abstract_eval(_abstract)
    mlir.register_lowering(_primitive, mlir.lower_fun(_run, multiple_results=True))
    mlir.register_lowering(_primitive, mlir.lower_fun(_run_tiled, multiple_results=True), platform="cpu")
    batching.primitive_batchers[_primitive] = functools.partial(_batch_rule, _primitive)


def _zero_tangent(y) -> Any:
    return ad.Zero(jax.typeof(y).to_tangent_aval())


def linear(kernel: Callable, residuals: Sequence, operands: Sequence) -> list:
    """Call a flat kernel that is linear in `operands`; widens the operands to the full batch first."""
    width = _width([*residuals, *operands])
    operands = _full_width(operands, width)
    return linear_p.bind(*residuals, *operands, kernel=kernel, n_residuals=len(residuals))


def _call_jvp(primals, tangents, *, kernel):
    outputs = call_p.bind(*primals, kernel=kernel)
    varying = tuple(type(t) is not ad.Zero for t in tangents)
    if not any(varying):
        return outputs, [_zero_tangent(y) for y in outputs]
    rule = getattr(kernel, "rule", None)
    if rule is None:
        return outputs, linear(_Jvp(kernel, varying), primals, [t for t in tangents if type(t) is not ad.Zero])
    structure = jax.tree.structure(jax.eval_shape(kernel.tree, *primals))
    arguments = jax.tree.unflatten(kernel.structure, primals)
    moved = jax.tree.unflatten(kernel.structure, [None if type(t) is ad.Zero else t for t in tangents])
    result = rule(kernel.static, arguments, moved, jax.tree.unflatten(structure, outputs))
    return outputs, _full_width(jax.tree.leaves(result), _width(outputs))


def _linear_jvp(primals, tangents, *, kernel, n_residuals):
    outputs = linear_p.bind(*primals, kernel=kernel, n_residuals=n_residuals)
    total = None
    operand_tangents = tangents[n_residuals:]
    if any(type(t) is not ad.Zero for t in operand_tangents):
        dz = [ad.instantiate_zeros(t) for t in operand_tangents]
        total = linear(kernel, primals[:n_residuals], dz)
    varying = tuple(type(t) is not ad.Zero for t in tangents[:n_residuals])
    if any(varying):
        mask = varying + (False,) * len(operand_tangents)
        part = linear(_Jvp(kernel, mask), primals, [t for t in tangents[:n_residuals] if type(t) is not ad.Zero])
        total = part if total is None else [a + b for a, b in zip(total, part, strict=True)]
    if total is None:
        total = [_zero_tangent(y) for y in outputs]
    return outputs, total


def _linear_transpose(cotangents, *arguments, kernel, n_residuals):
    residuals, operands = arguments[:n_residuals], arguments[n_residuals:]
    avals = [x.aval for x in operands]
    if all(type(c) is ad.Zero for c in cotangents):
        return [None] * n_residuals + [ad.Zero(a) for a in avals]
    shapes = tuple((tuple(a.shape[:-1]), a.dtype) for a in avals)
    transposed = _Transpose(kernel, n_residuals, shapes)
    result = linear(transposed, residuals, [ad.instantiate_zeros(c) for c in cotangents])
    return [None] * n_residuals + list(result)


ad.primitive_jvps[call_p] = _call_jvp
ad.primitive_jvps[linear_p] = _linear_jvp
ad.primitive_transposes[linear_p] = _linear_transpose


def batch_last(function: Callable, rule: Rule | None = None) -> Callable:
    """Make a function of single arrays out of a kernel of arrays with a trailing batch axis.

    **Arguments:** `function(static, *arguments)`, a module-level function of pytrees of arrays whose trailing axis
    has length 1 or B and that must broadcast against each other; `rule(static, arguments, tangents, output)`, an
    optional derivative rule in the same convention (see `Rule`).

    **Returns:** `wrapped(static, *arguments)` of the same pytrees without the trailing axis; `static` is hashable.
    """

    @functools.wraps(function)
    def wrapped(static: Hashable, *arguments):
        outputs, structure = _bind(_Kernel(function, static, jax.tree.structure(arguments), rule), arguments)
        return jax.tree.unflatten(structure, [y[..., 0] for y in outputs])

    return wrapped


def _bind(kernel: _Kernel, arguments):
    flat = [jnp.asarray(x)[..., None] for x in jax.tree.leaves(arguments)]
    structure = _output_structure(kernel, tuple((x.shape, x.dtype) for x in flat))
    return call_p.bind(*flat, kernel=kernel), structure


@functools.lru_cache(maxsize=4096)
def _output_structure(kernel: _Kernel, signature: tuple):
    structs = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in signature]
    return jax.tree.structure(jax.eval_shape(kernel.tree, *structs))


def call(function: Callable, rule: Rule | None, static: Hashable, *arguments):
    """Call a kernel from inside a derivative rule: arguments and result keep their trailing batch axis."""
    flat, structure = jax.tree.flatten(arguments)
    kernel = _Kernel(function, static, structure, rule)
    outputs = call_p.bind(*flat, kernel=kernel)
    return jax.tree.unflatten(_output_structure(kernel, tuple((x.shape, x.dtype) for x in flat)), outputs)


def push_forward(function: Callable, static: Hashable, arguments, tangents):
    """Tangent of a kernel along the leaves of `arguments` that have one (`None` elsewhere), trailing batch axes kept.

    Returns `None` when nothing varies.
    """
    flat, structure = jax.tree.flatten(arguments)
    moved = structure.flatten_up_to(tangents)
    varying = tuple(t is not None for t in moved)
    if not any(varying):
        return None
    kernel = _Kernel(function, static, structure)
    outputs = linear(_Jvp(kernel, varying), flat, [t for t in moved if t is not None])
    return jax.tree.unflatten(_output_structure(kernel, tuple((x.shape, x.dtype) for x in flat)), outputs)


# -- a boundary between stages
# ---------------------------------------------------------------------------------------------------------------

materialize_p = Primitive("jaxdyn_materialize")
materialize_p.def_impl(lambda x: x)
materialize_p.def_abstract_eval(lambda x: x)


def _windowed_identity(x):
    """The sum over windows of length 1 of two equal operands: an identity that the CPU compiler neither removes nor
    fuses across."""
    zero = jnp.zeros((), x.dtype)
    ones = (1,) * x.ndim
    return jax.lax.reduce_window((x, x), (zero, zero), lambda a, b: (a[0] + b[0], a[1] + b[1]), ones, ones, "VALID")[0]


mlir.register_lowering(materialize_p, mlir.lower_fun(lambda x: x, multiple_results=False))
mlir.register_lowering(materialize_p, mlir.lower_fun(_windowed_identity, multiple_results=False), platform="cpu")
ad.deflinear2(materialize_p, lambda ct, _: [materialize(ct)])
batching.primitive_batchers[materialize_p] = lambda args, dims: (materialize_p.bind(*args), dims[0])


def materialize(x):
    """Identity. On a CPU the compiler must store `x` here instead of computing it again in each of its consumers."""
    return materialize_p.bind(x)
