"""Plans kernels with matrix products: a memory warpgroup that copies ahead, compute warpgroups.

The kernel is emitted twice.  The memory warpgroup gets the *slice* of it that computes addresses:
the statements that the loop bounds and the operands' indices depend on, and one copy per operand
tile.  The compute warpgroups get the kernel with those loads replaced by a wait on the filled
stage, the product issued against an accumulator, and everything after the loop (the epilogue) on
the accumulator's values.  Both walk the same loop, so the number of steps is counted alike.

Planned here: kernels with one ``fori_loop`` whose carry holds only accumulators of the form
``acc + dot(load, load)`` starting at zero or as a loaded tile (added behind the loop), or with such products outside of any loop (the loop over
the contraction is then made).  Operands may be transposed; their masks must be tests against the
ends of the array with a zero fill, which the copy engine does by itself.  The epilogue may load
whole blocks and must store one tile.  Kernels of another form go to ``plan_staged.py``: computed
operands, further carries, reductions, several results.  What neither covers is diagnosed (B130) and
stays on Triton.

What the target decides (registers or tensor memory, which instruction) is not planned here: see
``rewrites/dot_sm90.py`` and ``rewrites/dot_sm100.py``.
"""

from __future__ import annotations

import ast
import functools

from . import actions as act
from .actions import span_of
from .dot_plan import DotPlan, NameTaken, Operand, Product, Unplanned, check_alignment, transposed_by_call
from .model.events import Access, Dot, KernelModel, Loop
from .kernel_shapes import names_in, shape_of
from .names import MOSAIC, PALLAS, TRITON, Resolver, walk
from .plan_dot_launch import known_tiles, plan_launch, unused_partial
from .plan_staged import plan_staged
from .precision import need_of
from .recorded import FLOAT8, HALF, recorded_dtypes
from .replacements import ALONG_AXES, replacement
from .tile_axes import without_transpose
from .tile_limits import tile_problem
from .values import Array, Index


# Names of the emitted functions, which may hide nothing of the user's.
_KERNEL_NAMES = {"ring", "products", "end", "step_index", "chunk", "part", "tile", "count", "loads", "compute"}
_PARTS_NAMES = {"carry", "zeros"}  # where operands are split into parts


def plan_dots(group, names, modules, emission) -> None:
    """Plans a kernel group with products; blocks the group where the form is not covered."""
    if not group.portable:
        return
    try:
        if any(s.extra for site in group.sites for s in (*(site.in_specs or ()), *(site.out_specs or ()))):
            raise Unplanned(group.sites[0].call, "operands or results that exist under a condition")
        planner = _Planner(group)
        plan = planner.plan()
        launches = [plan_launch(group, site, call, plan, names) for site, call in zip(group.sites, group.calls)]
    except Unplanned as problem:
        try:
            if problem.final:
                raise problem
            plan_staged(group, names, modules, emission)
        except Unplanned as left:
            group.block("B130", left.node, left.reason, left.advice)
        _refuse_ieee(group)
        for dot in group.model.dots:
            for dtype in sorted(recorded_dtypes(group.found, dot) & {*FLOAT8, "int8"}):
                group.block("B131", dot.node, f"a product of {dtype} operands among register work", "float16 and bfloat16 only")
        return
    if not plan.parts and plan.accumulate == "float32":
        _refuse_ieee(group)
    if not group.portable:
        return
    accumulators = len(plan.products) * (2 if plan.parts else 1)
    for site, data in zip(group.sites, launches):
        for rows, cols in known_tiles(group, site, data):
            problem = tile_problem(group.target, rows, cols, accumulators)
            if problem:
                group.block("B132", group.model.dots[0].node, problem, "choose another block size")
                return
    for dot in group.model.dots:
        dtypes = recorded_dtypes(group.found, dot)
        if "float32" in dtypes and not (plan.tf32 or plan.parts):
            group.block("B133", dot.node, *_no_tf32(group))
            return
        if dtypes and (dtypes == {"int8"}) != (plan.accumulate == "int32"):
            group.block("B131", dot.node, f"a product of {' and '.join(sorted(dtypes))} operands that adds up in {plan.accumulate}",
                        "int8 operands, and only those, with preferred_element_type=jnp.int32")
            return
    add = emission.actions.append
    pipeline = act.PipelineSm90 if group.target == "sm90" else act.PipelineSm100
    if group.target == "sm100" and planner.loop is not None and not planner.loop.static_bounds:
        group.block("B130", planner.loop.node, "a loop of products whose bounds are known only at run time")
        return
    planner.emit_inner(add, modules)
    kernel = group.model.kernel
    add(pipeline(span_of(kernel, group.lines), plan))
    launch = act.LaunchSm90 if group.target == "sm90" else act.LaunchSm100
    for site, call, data in zip(group.sites, group.calls, launches):
        statement = group.resolver.statement_of(site.call)
        for unused in (*call.unused, *unused_partial(site, group.resolver)):
            add(act.RemoveStatement(span_of(unused, group.lines)))
        add(launch(span_of(statement, group.lines), data))
        add(act.CallLaunch(span_of(site.call, group.lines), data.name))
    for module in ("jax", "jax.numpy", "jax.lax", PALLAS, MOSAIC):
        modules.name(module)
    group.notes += planner.notes
    group.block("N205", group.model.dots[0].node, _precision(group, plan))
    if plan.turned:
        arrays = ", ".join(dict.fromkeys(plan.operands[at].ref for at in sorted(plan.turned)))
        group.notes.append(f"wgmma reads 8-bit and float32 operands only along the contraction: of such dtypes, the array of {arrays}"
                           " is transposed in memory by each call; pass it transposed and contract its last dimension to save that")
    emission.support |= {"_Ring", "_persistent", "_stages", "_num_sms"}
    emission.support |= {"_WgmmaTile"} if group.target == "sm90" else {"_Tcgen05Tile"}
    modules.name("math")
    if plan.parts:
        emission.support |= {"_parts", "_PartsRing", "_parts_product"}
    if plan.tf32 and len(plan.turned) < len(plan.operands):
        emission.support |= {"_tf32"}
    if plan.turned:
        emission.support |= {"_KMajorRing", "_k_major_fit" if plan.masked else "_k_major"}
    if plan.masked:
        emission.support |= {"_tma_fit", "_tma_shape", "_whole"}
    group.emit_square_roots(modules, add, emission)


def _precision(group, plan: DotPlan) -> str:
    """What the matrix unit makes of the products."""
    if plan.accumulate == "int32":
        return "products of int8 accumulate in int32"
    if plan.parts:
        return ("products accumulate in float32; float32 operands are split into three bfloat16 parts each, of whose products six are"
                " added up: about the error of float32, but infinities become NaN")
    if group.target == "sm100":
        return "products accumulate in float32; float16, bfloat16 and float8 operands only"
    single = "float32 operands are rounded to TF32 (10 bits), as the source's precision allows; " if plan.tf32 else ""
    return f"products accumulate in float32, but those of float8 in fewer bits (an error of 2e-3 with 4096 terms); {single}int8 operands are refused"


def _refuse_ieee(group) -> None:
    """Blocks products of float32 operands that may not be TF32, where they are not split into parts."""
    for dot in group.model.dots:
        if need_of(dot, group.resolver) == "ieee" and not _recorded_as_half(group, dot):
            group.block("B133", dot.node, "a product of float32 operands at a precision that TF32 does not reach",
                        "ask for precision HIGH or less; if the operands are float16 or bfloat16, leave precision out")


def _recorded_as_half(group, dot: Dot) -> bool:
    dtypes = recorded_dtypes(group.found, dot)
    return bool(dtypes) and dtypes <= HALF


def _no_tf32(group) -> tuple[str, str]:
    """Why float32 operands cannot be multiplied as TF32, and what to do."""
    if group.target == "sm100":
        return "a product of float32 operands: JAX's tcgen05_mma takes neither float32 nor TF32", ""
    return "a product of float32 operands, whose precision is not known to allow TF32", "give it a literal precision"


class _Planner:
    def __init__(self, group) -> None:
        self.group = group
        self.model: KernelModel = group.model
        self.resolver: Resolver = group.resolver
        kernel = self.model.kernel
        if not isinstance(kernel, ast.FunctionDef):
            raise Unplanned(kernel, "a kernel with matrix products that is not a plain function")
        self.kernel = kernel
        self.notes: list[str] = []
        self.masked = False
        self.replacements: dict[ast.AST, str] = {}
        self.transposes: set[ast.AST] = set()
        self.bounds: list[tuple[str, int, str]] = []
        self.many: list[str] = []
        self.inline_loop = False
        self.accumulate = "float32"
        self.converted = False
        self.starts: list[tuple[str, Access, str]] = []

    # -- the form ---------------------------------------------------------------------------

    def plan(self) -> DotPlan:
        model, kernel = self.model, self.kernel
        for query in model.grid_queries:
            if query.size:
                raise Unplanned(query.node, "num_programs in a kernel with matrix products")
        loops = [loop for loop in model.loops if self.resolver.is_inside(model.dots[0].node, loop.body)]
        if len(loops) > 1 or any(bool(loops) != self.resolver.is_inside(d.node, loops[0].body if loops else kernel.args) for d in model.dots if loops):
            raise Unplanned(model.dots[0].node, "matrix products in several or nested loops")
        if len(model.loops) > len(loops):
            other = next(loop for loop in model.loops if loop not in loops)
            raise Unplanned(other.node, "a second loop beside the products")
        self.loop: Loop | None = loops[0] if loops else None
        if self.loop is None:
            for dot in model.dots:
                around = self.resolver.parents[dot.node]
                while around is not kernel:
                    if isinstance(around, (ast.For, ast.While, ast.If, ast.FunctionDef, ast.Lambda, ast.With)):
                        raise Unplanned(dot.node, "a matrix product inside a Python loop, a branch or a nested function",
                                        "use one lax.fori_loop")
                    around = self.resolver.parents[around]
        self.statements = kernel.body
        self.staged: list[Access] = []
        operands: list[Operand] = []
        products = []
        self.accumulators = self._accumulators()
        for dot, accumulator in zip(model.dots, self.accumulators):
            left, left_t = self._operand(dot, dot.left, operands, "trans_a")
            right, right_t = self._operand(dot, dot.right, operands, "trans_b")
            products.append(Product(accumulator, left, right, left_t, right_t))
        tile = self._tile()
        self.axis_names = self._axis_names()
        loop_at, body_at, body_statements = self._loop_position(operands)
        epilogue = loop_at if self.loop is None or self.inline_loop else loop_at + 1
        for node, name in model.calls:
            if name == ".T" and node not in self.transposes:
                raise Unplanned(node, "a transposed register array")
        self._check_epilogue(epilogue)
        load_statements = self._slice(loop_at, self._address_names(operands, body_statements))
        starts = tuple((name, self._start_text(access, cast)) for name, access, cast in self.starts)
        needed = self._epilogue_names(epilogue) - set(self.accumulators) | self._bound_names()
        compute_statements = self._slice(loop_at, needed.union(*(names_in(text) for _, text in starts)))
        lower, upper = ("0", "")
        if self.loop is not None:
            lower, upper = self._text(self.loop.lower), self._text(self.loop.upper)
        self._check_thin(compute_statements, epilogue)
        from .plan import FreshNames

        taken = _KERNEL_NAMES | (_PARTS_NAMES if self._split() else set())
        for node in walk(kernel):
            name = node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg) else ""
            if name in taken or kernel.name in taken | {"body", "grid"}:
                raise NameTaken(node, name or kernel.name)
        pick = FreshNames.within(kernel).pick
        return DotPlan(
            name=kernel.name,
            operands=tuple(operands),
            products=tuple(products),
            indices=tuple(sorted((q, n) for q, n in self.axis_names.items())),
            lower=lower,
            upper=upper or self._contraction(operands, products[0]),
            step=self.loop.body.args.args[0].arg if self.loop is not None else "",
            load_statements=load_statements,
            compute_statements=compute_statements,
            body_function=body_at,
            body_statements=body_statements,
            epilogue=epilogue,
            tile=tile,
            part=pick("part", "tile_part"),
            count=pick("count", "ring_count"),
            body_name=self.loop.body.name if self.loop is not None and isinstance(self.loop.body, ast.FunctionDef) else "step",
            masked=self.masked or self.loop is None,
            bounds=tuple(dict.fromkeys(self.bounds)),
            many=tuple(dict.fromkeys(self.many)),
            left_out=self.mask_statements,
            statics=frozenset(self.group.sites[0].bound),
            tf32=self.group.target == "sm90" and self.accumulate == "float32" and all(need_of(d, self.resolver) == "tf32" for d in model.dots),
            accumulate=self.accumulate,
            converted=self.converted,
            starts=starts,
            turned=self._turned(products) if self.group.target == "sm90" and not self._split() else frozenset(),
            parts=self._split(),
        )

    def _split(self) -> bool:
        """Whether float32 operands are split into parts. (On sm100 nobody has measured how exactly such sums add up.)"""
        exact = all(need_of(d, self.resolver) == "ieee" and not _recorded_as_half(self.group, d) for d in self.model.dots)
        return self.group.target == "sm90" and exact and self.accumulate == "float32"

    def _turned(self, products: list[Product]) -> frozenset[int]:
        """Operands that are not contracted along their last dimension."""
        left = {(p.left, p.left_transposed) for p in products}
        right = {(p.right, not p.right_transposed) for p in products}
        first, last = ({at for at, turned in left | right if turned is which} for which in (True, False))
        return frozenset(first - last)  # where one is read both ways, only 16-bit elements can be

    def _accumulate(self, start: str) -> str:
        """The dtype of the products' sums, "float32" or "int32"; start: what the accumulators start as, "" without a loop.

        Sums that start in float32 may take products in int32: those add up in int32, and the sum is converted.
        """
        integers = []
        for dot in self.model.dots:
            preferred = None
            if isinstance(dot.node, ast.Call):
                preferred = next((k.value for k in dot.node.keywords if k.arg == "preferred_element_type"), None)
            # pl.dot has the type that its operands ask for
            integers.append(dot.function.endswith(".dot") and dot.function in (f"{TRITON}.dot", f"{PALLAS}.dot") and start == "int32"
                            or preferred is not None and self._is_int32(preferred))
        if any(integers) != all(integers) or start == "int32" and not all(integers):
            raise Unplanned(self.model.dots[0].node, "products of which not all are int32, as their accumulators are",
                            "give each product preferred_element_type=jnp.int32", final=True)
        return "int32" if all(integers) else "float32"

    def _is_int32(self, dtype: ast.expr) -> bool:
        value = self.resolver.value(dtype)
        return (self.resolver.qualified(dtype) or "").endswith(".int32") or isinstance(value, ast.Constant) and value.value == "int32"

    def _accumulators(self) -> list[str]:
        """The name that each product's accumulator has after the loop."""
        if self.loop is None:
            used = {n.id for n in walk(self.kernel) if isinstance(n, ast.Name)}
            names = []
            for i, dot in enumerate(self.model.dots):
                name = next(n for n in ("acc", "acc_") if n not in used) + (str(i + 1) if len(self.model.dots) > 1 else "")
                self.replacements[dot.node] = name
                names.append(name)
            self.accumulate = self._accumulate("")
            return names
        loop = self.loop
        statement = self.resolver.statement_of(loop.node)
        target = statement.targets[0] if isinstance(statement, ast.Assign) and statement.value is loop.node else None
        targets = target.elts if isinstance(target, ast.Tuple) else [target]
        if not all(isinstance(t, ast.Name) for t in targets):
            if len(self.model.dots) != 1:
                raise Unplanned(loop.node, "a loop of several products whose result is not assigned to plain names",
                                "assign it to names first")
            used = {n.id for n in walk(self.kernel) if isinstance(n, ast.Name)}
            targets = [ast.Name(next(n for n in ("acc", "total", "acc_") if n not in used), ast.Store())]
            self.replacements[loop.node] = targets[0].id
            self.inline_loop = True
        inits = loop.init.elts if isinstance(loop.init, ast.Tuple) else [loop.init]
        results, carried = self._body_results(loop, len(targets))
        if not len(targets) == len(inits) == len(results) == len(self.model.dots):
            raise Unplanned(loop.node, "a loop that carries more than the accumulators of its products")
        names: dict[ast.AST, str] = {}
        starts = {self._zeros(init) for init in inits} - {""}
        if len(starts) > 1:
            raise Unplanned(loop.node, "accumulators of different dtypes")
        for out, init, result, name in zip(targets, inits, results, carried):
            if not self._zeros(init):
                self.starts.append((out.id, *self._started(init)))  # type: ignore[union-attr]
            dot = self._added_dot(result, name) if self._only_added_to(name, result) else None
            if dot is None:
                raise Unplanned(result, "a carry that is not the accumulator plus one product")
            names[dot.node] = out.id  # type: ignore[union-attr]
        if len(names) != len(self.model.dots):
            raise Unplanned(loop.node, "a product that is not added to an accumulator")
        start = starts.pop() if starts else "float32"
        self.accumulate = self._accumulate(start)
        self.converted = start != self.accumulate
        if self.starts and self.accumulate != "float32":
            raise Unplanned(loop.node, "accumulators in int32 that do not start at zero")
        return [names[d.node] for d in self.model.dots]

    def _started(self, init: ast.expr) -> tuple[Access, str]:
        """The load of a whole tile that an accumulator starts as, and its cast: it is added behind the loop."""
        if isinstance(init, ast.Name) and sum(isinstance(n.ctx, ast.Load) for n in self.resolver.named(init.id)) != 1:
            raise Unplanned(init, f"{init.id} is where an accumulator starts and is read elsewhere", "load it twice")
        node, cast = self.resolver.value(init), ""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "astype" and len(node.args) == 1:
            cast, node = f".astype({ast.unparse(node.args[0])})", node.func.value
        access = next((a for a in self.model.accesses if a.node is node and a.kind == "load"), None)
        if access is None or access.tile is None or len(access.dims or ()) != 2 or access.mask is not None:
            raise Unplanned(init, "an accumulator that starts neither at zero nor as a tile that is loaded")
        return access, cast

    def _start_text(self, access: Access, cast: str) -> str:
        index = _target(access)
        if isinstance(index, ast.Name):
            return f"load({index.id}){cast}"
        if not isinstance(index, ast.Subscript):
            raise Unplanned(access.node, "an accumulator that starts as a view of a view")
        whole = isinstance(index.slice, ast.Constant) and index.slice.value is ...
        parts = index.slice.elts if isinstance(index.slice, ast.Tuple) else [index.slice]
        window = "" if whole else f".at[{', '.join(map(self._text, parts))}]"
        return f"load({access.ref.name}{window}){cast}"

    def _body_results(self, loop: Loop, count: int) -> tuple[list[ast.expr], list[str]]:
        """(the new carry, the names of the carried values) of the loop body."""
        body = loop.body
        if isinstance(body, ast.Lambda):
            results = body.body.elts if isinstance(body.body, ast.Tuple) else [body.body]
            if count != 1:
                raise Unplanned(body, "a lambda with several accumulators", "write the loop body as a function")
            return list(results), [body.args.args[1].arg]
        returned = [n for n in walk(body) if isinstance(n, ast.Return)]
        if len(returned) != 1 or returned[0] is not body.body[-1] or returned[0].value is None:
            raise Unplanned(body, "a loop body with several returns")
        value = returned[0].value
        results = list(value.elts) if isinstance(value, (ast.Tuple, ast.List)) else [value]
        carry = body.args.args[1].arg
        if count == 1:
            renamed = [
                s.targets[0].id for s in body.body  # type: ignore[attr-defined]
                if isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name) and isinstance(s.value, ast.Name) and s.value.id == carry
            ]
            uses = [n for n in walk(body) if isinstance(n, ast.Name) and n.id == carry]
            return results, renamed if len(renamed) == len(uses) == 1 else [carry]
        for s in body.body:
            if isinstance(s, ast.Assign) and isinstance(s.value, ast.Name) and s.value.id == carry:
                target = s.targets[0]
                if isinstance(target, ast.Tuple) and all(isinstance(e, ast.Name) for e in target.elts):
                    return results, [e.id for e in target.elts]  # type: ignore[attr-defined]
        raise Unplanned(body, "a carry that is not unpacked into names")

    def _added_dot(self, result: ast.expr, name: str) -> Dot | None:
        """The product of ``acc + dot`` or of ``acc += dot; return acc``."""
        by_node = {d.node: d for d in self.model.dots}
        if isinstance(result, ast.Name) and self.loop is not None and isinstance(self.loop.body, ast.FunctionDef):
            found = []
            for s in self.loop.body.body:
                if isinstance(s, ast.AugAssign) and isinstance(s.target, ast.Name) and s.target.id == result.id:
                    found.append(self._resolve_dot(s.value, by_node) if isinstance(s.op, ast.Add) and result.id == name else None)
                elif isinstance(s, ast.Assign) and any(isinstance(t, ast.Name) and t.id == result.id for t in s.targets):
                    found.append(self._sum_dot(s.value, name, by_node))
            return found[0] if len(found) == 1 else None
        return self._sum_dot(result, name, by_node)

    def _only_added_to(self, name: str, result: ast.expr) -> bool:
        """Whether the loop body uses an accumulator in its sum and nowhere else."""
        uses = [n for n in walk(self.loop.body) if isinstance(n, ast.Name) and n.id == name]  # type: ignore[union-attr]
        stores = [n for n in uses if isinstance(n.ctx, ast.Store)]
        updated = isinstance(result, ast.Name) and result.id == name  # acc += product; return acc
        augmented = any(isinstance(self.resolver.parents[n], ast.AugAssign) for n in stores)
        made = name not in {a.arg for a in self.loop.body.args.args}  # type: ignore[union-attr]
        return len(stores) == made + updated and len(uses) - len(stores) == 1 + (updated and not augmented)

    def _sum_dot(self, node: ast.expr, name: str, by_node: dict[ast.AST, Dot]) -> Dot | None:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            for acc, other in ((node.left, node.right), (node.right, node.left)):
                if isinstance(acc, ast.Name) and acc.id == name:
                    return self._resolve_dot(other, by_node)
        return None

    def _resolve_dot(self, node: ast.expr, by_node: dict[ast.AST, Dot]) -> Dot | None:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "astype":
            node = node.func.value
        if node in by_node:
            return by_node[node]
        if isinstance(node, ast.Name):
            value = self.resolver.value(node)
            return by_node.get(value)
        return None

    def _zeros(self, node: ast.expr) -> str:
        """The dtype of an array of zeros, "float32" or "int32"; "" for anything else."""
        value = self.resolver.value(node)
        if not isinstance(value, ast.Call):
            return ""
        name = self.resolver.qualified(value.func) or ""
        at = 2 if name == "jax.numpy.full" else 1
        dtype = value.args[at] if len(value.args) > at else next((k.value for k in value.keywords if k.arg == "dtype"), None)
        zero = name == "jax.numpy.zeros" or name == "jax.numpy.full" and len(value.args) > 1 and ast.unparse(value.args[1]) in ("0", "0.0")
        if dtype is None:
            whole = name == "jax.numpy.full" and ast.unparse(value.args[1]) == "0"  # full's dtype is that of its value
            return "int32" if zero and whole else "float32" if zero else ""
        if self._is_int32(dtype):
            return "int32" if zero else ""
        if zero and self._is_parameter(dtype):  # the matrix unit adds up in float32 whatever it says
            return "float32"
        return "float32" if zero and (self.resolver.qualified(dtype) or "").endswith("float32") else ""

    def _is_parameter(self, dtype: ast.expr) -> bool:
        """Whether a dtype is one that the kernel is given: a static parameter, or that of a ref."""
        if isinstance(dtype, ast.Attribute) and dtype.attr == "dtype" and isinstance(dtype.value, ast.Name):
            return any(r.name == dtype.value.id for r in self.model.refs)
        binding = self.resolver.binding(dtype) if isinstance(dtype, ast.Name) else None
        return binding is not None and binding.kind == "parameter"

    # -- operands ---------------------------------------------------------------------------

    def _operand(self, dot: Dot, node: ast.expr, operands: list[Operand], flag: str) -> tuple[int, bool]:
        transposed = transposed_by_call(dot, flag)
        name = ""
        for _ in range(6):
            if (inner := without_transpose(node, self.resolver)) is not None:
                self.transposes.add(node)
                transposed, node = not transposed, inner
            elif isinstance(node, ast.Name):
                value = self.resolver.value(node)
                if value is node or not isinstance(value, ast.expr):
                    break
                name = name or node.id
                node = value
            else:
                break
        access = next((a for a in self.model.accesses if a.node is node and a.kind == "load"), None)
        if access is None or access.tile is None:
            raise Unplanned(node, f"the operand {ast.unparse(node)[:40]} is computed, not loaded",
                             "operands that are computed in registers are not covered yet")
        if access in self.staged:
            return self.staged.index(access), transposed
        self.staged.append(access)
        operands.append(self._staged(access, name or access.ref.name.removesuffix("_ref"), operands))
        return len(operands) - 1, transposed

    def _staged(self, access: Access, name: str, operands: list[Operand]) -> Operand:
        ref = access.ref
        dims = access.dims
        if dims is None or len(dims) != 2:
            raise Unplanned(access.node, f"the operand {ref.name} is not a tile of rank 2",
                             "give it a BlockSpec or index both dimensions")
        pl = self._pallas()
        view = access.view or ()
        rank = len(ref.dims) if ref.dims is not None else len(view)
        full = [*view, *[Index("full", (), f"{ref.name}.shape[{d}]") for d in range(len(view), rank)]]
        texts, sizes = [], []
        starts: list[tuple[str, int]] = []
        for d, ix in enumerate(full):
            if ix.kind == "full":
                texts.append(":")
                sizes.append(ix.size)
                starts.append(("0", d))
            elif ix.kind == "scalar":
                texts.append(self._emitted(ix.start, access.node))
            elif ix.kind in ("slice", "run"):
                check_alignment(access, ix)
                source = self._slice_text(access, d)
                texts.append(source or f"{pl}.ds({self._emitted(ix.start, access.node)}, {ix.size})")
                sizes.append(ix.size)
                starts.append((ix.start, d))
            else:
                raise Unplanned(access.node, f"the operand {ref.name} is gathered by an index vector")
        if len(sizes) != 2:
            raise Unplanned(access.node, f"the operand {ref.name} is not a tile of rank 2")
        self._check_mask(access, starts)
        taken = {o.name for o in operands} | {r.name for r in self.model.refs}
        taken |= {*self.accumulators, *(a.arg for a in self.kernel.args.kwonlyargs)}
        while name in taken:
            name += "_tile"
        return Operand(ref.name, name, tuple(texts), tuple(sizes))

    def _pallas(self) -> str:
        return next((n for _, n, t in self.resolver.imports() if t == PALLAS), "pl")

    def _slice_text(self, access: Access, dim: int) -> str:
        """The user's own text of one index, e.g. ``ks``, if it is a slice."""
        node = access.node
        if isinstance(node, ast.Call):
            node = node.args[0]
        if not isinstance(node, ast.Subscript):
            return ""
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if isinstance(node.slice, ast.Name):
            value = self.resolver.value(node.slice)
            parts = value.elts if isinstance(value, ast.Tuple) else parts
        if dim >= len(parts):
            return ""
        value = self.model.values.get(parts[dim])
        return self._text(parts[dim]) if type(value).__name__ == "SliceValue" else ""

    def _text(self, node: ast.expr) -> str:
        """The user's own expression with ``program_id`` replaced by the functions' parameters."""
        names = self._axis_names()
        queries = {q.node: names[q.axis] for q in self.model.grid_queries}

        def rebuilt(n):
            if isinstance(n, ast.AST):
                if n in queries:
                    return ast.Name(queries[n], ast.Load())
                return type(n)(**{field: rebuilt(value) for field, value in ast.iter_fields(n)})
            return [rebuilt(v) for v in n] if isinstance(n, list) else n

        return ast.unparse(ast.fix_missing_locations(rebuilt(node)))

    def _emitted(self, expr: str, node: ast.AST) -> str:
        """An ``expr`` as source text of the loads function."""
        if not expr:
            raise Unplanned(node, "an index whose start is not known")
        for axis, name in self._axis_names().items():
            expr = expr.replace(f"program_id({axis})", name)
        return expr

    def _check_mask(self, access: Access, starts: list[tuple[str, int]]) -> None:
        if access.mask is None:
            return
        if access.other is not None and not (isinstance(access.other, ast.Constant) and access.other.value in (0, 0.0)):
            raise Unplanned(access.other, "an operand whose mask fills with something other than 0")
        self._take_bounds(access, starts)

    def _take_bounds(self, access: Access, starts: list[tuple[str, int]]) -> None:
        """Notes what a mask's conjuncts compare with; they must test the tile's own indices.

        The launch checks that each bound is the end of the array, since the copy engine reads zeros
        and drops stores only there.
        """
        self.masked = True
        value = access.mask_value
        if not isinstance(value, Array) or value.mask is None:
            raise Unplanned(access.mask or access.node, "a mask that is not a test against the ends of the array")
        for term in value.mask:
            if term.many:
                self.many.append(shape_of(term.many, self.kernel))
                continue
            start, dim = starts[len(starts) - 1 - term.axis_from_end]
            if not term.bound or not term.start or term.start != start:
                raise Unplanned(access.mask or access.node, "a mask on other indices than those of the load")
            bound = shape_of(term.bound, self.kernel)
            if not any(bound.startswith(f"{r.name}.shape[") for r in self.model.refs):
                raise Unplanned(access.mask or access.node, f"a mask that compares with {bound}, not with the end of an array")
            self.bounds.append((access.ref.name, dim, bound))


    def _tile(self) -> tuple[str, str]:
        """The output tile's extents in the kernel's names."""
        dims = self.model.dots[0].result.dims
        for dot in self.model.dots:
            if dot.result.dims is None or dims is None:
                raise Unplanned(dot.node, "a product whose shape is not known")
        assert dims is not None
        return dims  # type: ignore[return-value]

    def _contraction(self, operands: list[Operand], product: Product) -> str:
        """The whole extent of the contraction, for kernels without a loop."""
        left = operands[product.left]
        return left.block[0 if product.left_transposed else 1]

    # -- statements -------------------------------------------------------------------------

    @functools.cache
    def _axis_names(self) -> dict[int, str]:
        """The parameter that stands for each grid axis: the name that the kernel gives it."""
        names: dict[int, str] = {}
        for s in self.kernel.body:
            if isinstance(s, ast.Assign) and len(s.targets) == 1:
                target, value = s.targets[0], s.value
                pairs = [(target, value)]
                if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                    pairs = list(zip(target.elts, value.elts))
                for t, v in pairs:
                    for q in self.model.grid_queries:
                        if q.node is v and isinstance(t, ast.Name):
                            if names.setdefault(q.axis, t.id) != t.id or len(self._bindings(t.id)) > 1:
                                raise Unplanned(s, f"{t.id} is not the only name of its grid axis, or holds something else later",
                                                 "give each grid axis one name of its own")
        used = {n.id for n in walk(self.kernel) if isinstance(n, ast.Name)}
        for q in self.model.grid_queries:
            letter = "ijklmn"[q.axis]
            names.setdefault(q.axis, letter if letter not in used else f"axis_{letter}")
        return names

    def _bindings(self, name: str) -> list:
        return self.resolver.scopes[self.kernel].bindings.get(name, [])

    def _only_axes(self, s: ast.stmt) -> bool:
        """True for ``i = pl.program_id(0)``: the name is a parameter of the emitted functions."""
        if not isinstance(s, ast.Assign):
            return False
        values = s.value.elts if isinstance(s.value, ast.Tuple) else [s.value]
        return all(any(q.node is v for q in self.model.grid_queries) for v in values)

    def _loop_position(self, operands: list[Operand]) -> tuple[int, int | None, tuple[int, ...]]:
        if self.loop is None:
            for i, s in enumerate(self.statements):
                if any(self.resolver.is_inside(d.node, s) for d in self.model.dots):
                    return i, None, ()
            raise Unplanned(self.kernel, "products in a nested function")
        statement = self.resolver.statement_of(self.loop.node)
        if statement not in self.statements:
            raise Unplanned(statement, "a loop with products inside a conditional")
        at = self.statements.index(statement)
        body = self.loop.body
        if isinstance(body, ast.Lambda):
            return at, None, ()
        if body not in self.statements:
            raise Unplanned(body, "a loop body that is not defined in the kernel")
        needed = {n for o in operands for text in o.index for n in names_in(text)}
        keep = self._dependencies(body.body, needed)
        return at, self.statements.index(body), keep

    def _dependencies(self, body: list[ast.stmt], needed: set[str]) -> tuple[int, ...]:
        """Positions of the statements that define ``needed``, transitively; ``needed`` grows."""
        keep: list[int] = []
        tile_loads = {a.node for a in self.model.accesses if a.tile is not None}
        for i in range(len(body) - 1, -1, -1):
            s = body[i]
            defined = _defined(s)
            if not defined & needed or isinstance(s, ast.FunctionDef) and s.name not in needed:
                continue
            if any(n in tile_loads for n in walk(s)):
                continue
            keep.append(i)
            needed |= {n.id for n in walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        if self.loop is not None and body is getattr(self.loop.body, "body", None):
            defined = [n for i in keep for n in _defined(body[i])]
            if twice := next((n for n in defined if defined.count(n) > 1 and n in needed), ""):
                raise Unplanned(self.loop.body, f"{twice} is assigned twice in the loop body", "use two names")
        return tuple(reversed(keep))

    def _slice(self, before: int, needed: set[str]) -> tuple[int, ...]:
        kept = self._dependencies(self.statements[:before], needed)
        loop_body = self.loop.body if self.loop is not None else None
        return tuple(i for i in kept if self.statements[i] is not loop_body and not self._only_axes(self.statements[i]))

    def _bound_names(self) -> set[str]:
        if self.loop is None:
            return set()
        return names_in(self._text(self.loop.lower)) | names_in(self._text(self.loop.upper))

    def _address_names(self, operands: list[Operand], body_statements: tuple[int, ...]) -> set[str]:
        names = self._bound_names()
        for o in operands:
            for text in o.index:
                names |= names_in(text)
        if self.loop is not None and isinstance(self.loop.body, ast.FunctionDef):
            for i in body_statements:
                names |= {n.id for n in walk(self.loop.body.body[i]) if isinstance(n, ast.Name)}
        return names

    def _epilogue_names(self, epilogue: int) -> set[str]:
        dropped = set(self.mask_nodes)
        names = names_in(self.store_window)
        if self.store_window:
            dropped |= set(walk(_target(self.store)))
        for s in self.statements[epilogue:]:
            names |= {n.id for n in walk(s) if isinstance(n, ast.Name) and n not in dropped}
        return names | {self.store.ref.name}

    def _check_thin(self, compute_statements: tuple[int, ...], epilogue: int) -> None:
        """Thin arrays may only occur in what the emitted functions leave out."""
        kept = [self.statements[i] for i in compute_statements] + list(self.statements[epilogue:])
        dropped = set(self.mask_nodes)
        dropped |= set(walk(_target(self.store)))
        nodes = {n for s in kept for n in walk(s)} - dropped
        for node in (*self.model.strips, *(e.node for e in self.model.expands.values())):
            if node in nodes and not (node in self.model.expands and self.group.is_new_axis(node)):
                raise Unplanned(node, "a thin array beside matrix products")

    # -- epilogue ---------------------------------------------------------------------------

    def _check_epilogue(self, epilogue: int) -> None:
        model = self.model
        for a in model.accesses:
            if a.kind == "atomic":
                raise Unplanned(a.node, "an atomic operation beside matrix products")
        stores = [a for a in model.accesses if a.kind == "store"]
        if len(stores) != 1 or stores[0].tile is None:
            raise Unplanned(stores[1].node if len(stores) > 1 else self.kernel, "a kernel with products that does not store exactly one tile")
        self.store = stores[0]
        if self.loop is not None and self.resolver.is_inside(self.store.node, self.loop.body):
            raise Unplanned(self.store.node, "a store inside the loop of the products")
        if model.reductions:
            raise Unplanned(model.reductions[0].node, "a reduction beside matrix products")
        for node, name in model.calls:
            if replacement(name) in ALONG_AXES:
                raise Unplanned(node, f"{name} beside matrix products", "do it in a kernel of its own")
        if self.resolver.statement_of(self.store.node) not in self.statements:
            raise Unplanned(self.store.node, "a store inside a conditional beside products")
        apart = [*self.staged, *(access for _, access, _ in self.starts)]
        self.loads = [a for a in model.accesses if a.kind == "load" and a not in apart and a.tile is not None]
        if any(access.ref is self.store.ref for _, access, _ in self.starts):
            raise Unplanned(self.store.node, "an accumulator that starts as the result's own tile")
        for a in self.loads:
            at = next((i for i, s in enumerate(self.statements) if self.resolver.is_inside(a.node, s)), -1)
            if at < epilogue:
                raise Unplanned(a.node, "a tile loaded before the products", "load it after the loop")
            if a.mask is not None:
                raise Unplanned(a.node, "a masked load beside matrix products")
            if any(ix.kind == "run" for ix in a.view or ()):
                raise Unplanned(a.node, f"{a.ref.name} is loaded by index vectors beside matrix products", "use pl.ds")
            if a.dims is None or len(a.dims) > 2:
                raise Unplanned(a.node, f"a load of {a.ref.name}, whose rank is not known")
        starts = []
        ref = self.store.ref
        view = self.store.view or ()
        for d, ix in enumerate([*view, *[Index("full", (), "", start="0")] * ((len(ref.dims) if ref.dims else len(view)) - len(view))]):
            if ix.kind == "scalar":
                continue
            if ix.kind not in ("slice", "run", "full"):
                raise Unplanned(self.store.node, "a scattered store beside matrix products")
            starts.append((ix.start or "0", d))
        if len(starts) != 2:
            raise Unplanned(self.store.node, "a store that is not a tile of rank 2")
        self.store_window = ""
        if any(ix.kind == "run" for ix in view):
            pl = self._pallas()
            texts = [
                f"{pl}.ds({self._emitted(ix.start, self.store.node)}, {ix.size})" if ix.kind in ("run", "slice")
                else self._emitted(ix.start, self.store.node)
                for ix in view
            ]
            self.store_window = f"{ref.name}.at[{', '.join(texts)}]"
        if self.store.mask is not None:
            self._take_bounds(self.store, starts)
        indexes = {n for a in (self.store, *self.loads) for n in walk(_target(a))}
        self.mask_nodes, self.mask_statements = self._only_for_mask(epilogue)
        indexes |= self.mask_nodes
        iotas = [n for s in self.statements[epilogue:] for n in walk(s)
                 if isinstance(n, ast.Call) and (self.resolver.qualified(n.func) or "").endswith(("arange", "iota")) and n not in indexes]
        if iotas:
            raise Unplanned(iotas[0], "index vectors in the epilogue of a matrix product")

    def _only_for_mask(self, epilogue: int) -> tuple[set[ast.AST], frozenset[int]]:
        """What the store's mask alone needs, which the copy engine stands in for: nodes, and positions of statements."""
        nodes = set(walk(self.store.mask)) if self.store.mask is not None else set()
        loads = {a.node for a in self.model.accesses}
        found: set[int] = set()
        positions = range(epilogue, len(self.statements)) if nodes else range(0)
        for i in reversed(positions):
            s = self.statements[i]
            if not isinstance(s, ast.Assign) or not all(isinstance(t, ast.Name) for t in s.targets):
                continue
            names = {t.id for t in s.targets}  # type: ignore[attr-defined]
            uses = [n for n in walk(self.kernel) if isinstance(n, ast.Name) and n.id in names and isinstance(n.ctx, ast.Load)]
            if uses and all(n in nodes for n in uses) and not any(n in loads for n in walk(s)):
                found.add(i)
                nodes |= set(walk(s))
        return nodes, frozenset(found)

    def emit_inner(self, add, modules) -> None:
        """The rewrites inside the epilogue; the assembled functions contain their results."""
        span = self.group.span
        part = "part"
        for node, name in self.replacements.items():
            add(act.ReplaceExpression(span(node), name))
        only = {n for s in self.kernel.body if self._only_axes(s) for n in walk(s)}
        for q in self.model.grid_queries:
            if q.node not in only:
                add(act.ReplaceExpression(span(q.node), self.axis_names[q.axis]))
        for a in self.loads:
            axis = self._vector_axis(a)
            add(act.EpilogueLoad(span(a.node), part, axis))
        statement = self.store.statement is not None
        node = self.store.statement if statement else self.store.node
        add(act.EpilogueStore(span(node), part, statement, self.store_window))
        count, rows, cols = len(self.model.dots), *self._tile()
        blocks = " + ".join(" * ".join(o.dims or ()) for o in self.staged)
        self.notes += self.group.call_notes()
        self.notes.append(f"{count} accumulator(s) of {rows} x {cols}; {len(self.staged)} operand(s) staged in SMEM")
        self.notes.append("one memory warpgroup with 40 registers; ")
        if self.group.target == "sm90":
            self.notes[-1] += "one compute warpgroup up to 128 x 128 accumulator elements, else two (248 or 232 registers)"
            self.notes.append(f"registers per thread for accumulators: {count} * {rows} * {cols} / 128 / warpgroups")
        else:
            self.notes[-1] += "a compute warpgroup for each 128 rows (248 or 232 registers)"
            self.notes.append(f"TMEM columns: {count} * {cols} * warpgroups of 512")
        self.notes.append(f"stages: up to twice num_stages, as many as fit 226 KB: bytes of an element * ({blocks}) each, beside the epilogue's chunks")
        if self.masked:
            self.notes.append("bounds masks: the copy engine reads zeros past the ends and drops stores there")

    def _vector_axis(self, access: Access) -> int | None:
        """For a rank-1 load: the axis of the output tile that it runs along."""
        if len(access.dims or ()) != 1:
            return None
        tile = access.tile.find()  # type: ignore[union-attr]
        if tile.parent is None or tile.conflict:
            raise Unplanned(access.node, f"{access.ref.name} is not broadcast against the product")
        return tile.axis


def _target(access: Access) -> ast.AST:
    """The syntax that says where an access goes: the subscript, or a call's first argument."""
    if access.statement is not None:
        return access.node
    return access.node.args[0] if isinstance(access.node, ast.Call) else access.node


def _defined(s: ast.stmt) -> set[str]:
    if isinstance(s, ast.FunctionDef):
        return {s.name}
    return {n.id for n in walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
