"""Assembles the functions of a kernel with matrix products; what differs by target is passed in.

From the rewritten kernel function and the ``DotPlan`` two functions are made: the loads (the slice
of the kernel that computes addresses, with one copy per operand) and the kernel itself, whose loop
waits for stages and issues products.  Statements that are kept are the user's own, with comments.
"""

from __future__ import annotations

import libcst as cst

from ..translator.dot_plan import DotPlan, LaunchData, Operand, Product, contracted_dimension
from ..translator.model.text import call_lines
from ..translator.names import MOSAIC, PALLAS
from .engine import comments


def loads_function(node: cst.FunctionDef, plan: DotPlan, modules) -> list[str]:
    """Source lines of the memory warpgroup's function."""
    lax = modules.name("jax.lax")
    indent = "  "
    lines = [_head(node, plan, f"{plan.name}_loads", ["ring", plan.count])]
    lines.append(f'{indent}"""Memory warpgroup: copies the operand tiles of {plan.name}, step by step."""')
    for i in plan.load_statements:
        lines += _code(body_statements(node)[i], 1)
    copies = [_window(o) for o in plan.operands]
    lines += ["", f"{indent}def {plan.body_name}({plan.step or 'step_index'}, {plan.count}):"]
    if plan.step:
        for i in plan.body_statements:
            body = body_statements(body_statements(node)[plan.body_function])  # type: ignore[index, arg-type]
            lines += _code(body[i], 2)
    else:
        pl = modules.name(PALLAS)
        lines.append(f"{indent * 2}chunk = {pl}.ds(step_index * {CHUNK}, {CHUNK})")
        copies = [_chunk_window(o, i, plan) for i, o in enumerate(plan.operands)]
    if plan.masked and plan.step:
        lines.append(f"{indent * 2}# past the ends of the arrays the copies read zeros, as the masks did")
    lines += call_lines(f"{indent * 2}return ring.load", [plan.count, *copies])
    lines += ["", f"{indent}return {lax}.fori_loop({_bounds(plan, modules)}, {plan.body_name}, {plan.count})"]
    return lines


CHUNK = 64  # contraction elements per step where the source takes all of them at once: 128 bytes


def _bounds(plan: DotPlan, modules) -> str:
    if plan.step:
        return f"{plan.lower}, {plan.upper}"
    return f"0, {modules.name(PALLAS)}.cdiv({plan.upper}, {CHUNK})"


def any_steps(plan: DotPlan, modules) -> str:
    """Whether the loop runs at all, as an expression that is known when the kernel is traced."""
    low, _, high = _bounds(plan, modules).partition(", ")
    return f"{high} > {low}"


def _window(operand: Operand) -> str:
    if all(i == ":" for i in operand.index):
        return operand.ref
    return f"{operand.ref}.at[{', '.join(operand.index)}]"


def _chunk_window(operand: Operand, at: int, plan: DotPlan) -> str:
    """The operand's window with the contracted dimension replaced by the step's chunk."""
    index = list(operand.index)
    tile_dims = [d for d, i in enumerate(index) if i == ":" or ".ds(" in i]
    index[tile_dims[contracted_dimension(at, plan)]] = "chunk"
    return f"{operand.ref}.at[{', '.join(index)}]"


def body_statements(node: cst.FunctionDef) -> list[cst.BaseStatement]:
    """The statements of a function, one by one as the plan counts them, also those that share a line."""
    if isinstance(node.body, cst.SimpleStatementSuite):
        return [cst.SimpleStatementLine([_single(s)]) for s in node.body.body]
    found: list[cst.BaseStatement] = []
    for s in node.body.body:
        if isinstance(s, cst.SimpleStatementLine) and len(s.body) > 1:
            lines = [cst.SimpleStatementLine([_single(part)]) for part in s.body]
            lines[0] = lines[0].with_changes(leading_lines=s.leading_lines)
            lines[-1] = lines[-1].with_changes(trailing_whitespace=s.trailing_whitespace)
            found += lines
        else:
            found.append(s)  # type: ignore[arg-type]
    return found


def _single(part: cst.BaseSmallStatement) -> cst.BaseSmallStatement:
    return part.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)


def dropped_comments(node: cst.FunctionDef, plan: DotPlan) -> tuple[list[str], list[str], list[str]]:
    """The user's comments on statements that neither function keeps: (before the loop, in its body, on it)."""
    before: list[str] = []
    inside: list[str] = []
    on_loop: list[str] = []
    kept = {*plan.load_statements, *plan.compute_statements}
    kept |= {0} if node.get_docstring() is not None else set()
    statements = body_statements(node)[: plan.epilogue]
    for i, s in enumerate(statements):
        if i == plan.body_function:
            assert isinstance(s, cst.FunctionDef)
            before += [c for line in s.leading_lines for c in _comment(line)]
            body = body_statements(s)
            copied = {id(body[j]) for j in plan.body_statements}
            inside += [c for b in body if id(b) not in copied for c in _comments(b)]
            inside += _comment(s.body.header) if isinstance(s.body, cst.IndentedBlock) else []
        elif i not in kept:
            (on_loop if plan.step and i == len(statements) - 1 else before).extend(_comments(s))
    return before, inside, on_loop


def _comments(statement: cst.BaseStatement) -> list[str]:
    return comments(cst.Module([statement]).code)


def _comment(line: cst.EmptyLine | cst.TrailingWhitespace) -> list[str]:
    return [line.comment.value] if line.comment is not None else []


def kernel_head(node: cst.FunctionDef, plan: DotPlan, tile: str) -> list[str]:
    """Signature and leading statements of the compute warpgroups' function."""
    lines = [_head(node, plan, plan.name, ["ring", plan.count, tile])]
    docstring = node.get_docstring()
    if docstring is not None:
        lines += _code(body_statements(node)[0], 1)
    for i in plan.compute_statements:
        code = _code(body_statements(node)[i], 1)
        lines += code[1:] if len(lines) == 1 and not code[0] else code
    return lines if len(lines) == 1 else [*lines, ""]


def epilogue(node: cst.FunctionDef, plan: DotPlan, depth: int) -> list[str]:
    """The user's statements after the products."""
    lines: list[str] = []
    for i, s in enumerate(body_statements(node)):
        if i < plan.epilogue or i in plan.left_out:
            continue
        lines += _code(s, depth)
    while lines and not lines[0].strip():
        lines.pop(0)
    return lines


def starts(plan: DotPlan, depth: int) -> list[str]:
    """Source lines that add what the accumulators start as."""
    return [f"{'  ' * depth}{name} += {plan.part}.{text}" for name, text in plan.starts]


def left_tile(product: Product, plan: DotPlan) -> str:
    name, rows = plan.operands[product.left].name, f"{plan.part}.rows"
    return f"{name}.at[:, {rows}].transpose((1, 0))" if product.left_transposed else f"{name}.at[{rows}, :]"


def right_tile(product: Product, plan: DotPlan, cols: str) -> str:
    name = plan.operands[product.right].name
    if not cols:
        return f"{name}.transpose((1, 0))" if product.right_transposed else name
    return f"{name}.at[{cols}, :].transpose((1, 0))" if product.right_transposed else f"{name}.at[:, {cols}]"


def wait_line(plan: DotPlan) -> str:
    names = ", ".join(o.name for o in plan.operands)
    names += "," if len(plan.operands) == 1 else ""
    return f"{names} = ring.wait({plan.count})"


def loop_call(plan: DotPlan, modules, carry: str = "") -> str:
    return f"{modules.name('jax.lax')}.fori_loop({_bounds(plan, modules)}, {plan.body_name}, {carry or plan.count})"


def launch_lines(data: LaunchData, tile_class: str, modules) -> list[str]:
    """The function that launches the kernel, in place of ``pallas_call(...)``."""
    plan, plgpu = data.plan, modules.name(MOSAIC)
    jax, math = modules.name("jax"), modules.name("math")
    arrays = ", ".join(data.parameters)
    count = len(plan.products) * (2 if plan.parts else 1)  # a step's products apart from their sum
    accumulators = f", accumulators={count}" if count > 1 else ""
    if plan.accumulate != "float32":
        accumulators += f", accumulate={modules.name('jax.numpy')}.{plan.accumulate}"
    lines = [f"def {data.name}({arrays}):"]
    add = lambda depth, text: lines.append("  " * depth + text)  # noqa: E731
    add(1, f"out_type = {data.out_type}")
    grid = ", ".join(data.grid) + ("," if len(data.grid) == 1 else "")
    for extent, whole in data.checks:
        add(1, f"if {extent} != {whole}:")
        add(2, f'raise ValueError(f"{extent} is {{{extent}}}, but the array ends at {{{whole}}}")')
    for number in data.many:
        add(1, f"if {number} <= 1:")
        add(2, f'raise ValueError(f"{number} is {{{number}}}: the masks that compare with it need more than 1")')
    add(1, f"grid = ({grid})")
    add(1, f"tile = {tile_class}({data.tile[0]}, {data.tile[1]}, out_type{accumulators})")
    blocks = []
    for at, ((extents, array), operand) in enumerate(zip(data.blocks, plan.operands)):
        extents = list(extents)
        if not plan.step:
            extents[contracted_dimension(at, plan)] = str(CHUNK)
        if any(p.left == at for p in plan.products):
            extents[1 - contracted_dimension(at, plan)] = "tile.staged_rows"
        shape = f"({', '.join(extents)})"
        blocks.append(f"*{array}.blocks({shape})" if plan.parts else f"({shape}, {array}.dtype)")
    operands = ", ".join(array for _, array in data.blocks)
    if plan.parts:
        lines += [f"  {array} = _parts({array})" for array in dict.fromkeys(array for _, array in data.blocks)]
    add(1, f"blocks = [{', '.join(blocks)}]")
    minor = dict.fromkeys(_minor(at, data) for at in range(len(plan.operands)))
    if plan.step:  # an instruction contracts whole swizzled tiles, across the rows of an operand too
        minor |= dict.fromkeys(extents[contracted_dimension(at, plan)] for at, (extents, _) in enumerate(data.blocks))
    if not plan.masked:  # TMA takes whole swizzled tiles of an array that is not padded
        minor |= dict.fromkeys(f"{array}.shape[-1]" for _, array in data.blocks)
    first = data.blocks[0][1]
    along_k = ", ".join(_along_k(data))
    more = [f"along_k=({along_k}{'' if ',' in along_k else ','})"] if plan.turned else []
    more += ["tf32=True"] if plan.tf32 else []
    lines += call_lines("  swizzle = tile.swizzle", [f"{first}.dtype", *minor, *more])
    add(1, f"stages = _stages({data.num_stages}, tile, *blocks)")
    out = "out_type"
    turned = {data.blocks[at][1] for at in plan.turned}
    rounded = lambda array: f"_tf32({array})" if plan.tf32 and array not in turned else array  # noqa: E731
    if plan.masked:
        padded = dict.fromkeys((a, o.ref) for (_, a), o in zip(data.blocks, plan.operands))
        for array, _ in padded:
            fit = "_k_major_fit" if array in turned else "_tma_fit"
            fitted = f"{array}.each(lambda part: _tma_fit(part, swizzle))" if plan.parts else f"{fit}({rounded(array)}, swizzle)"
            add(1, f"{array}_shape, {array} = {array}.shape, {fitted}")
        add(1, "fitted = _tma_shape(out_type.shape, 128 // out_type.dtype.itemsize, out_type.dtype.itemsize)")
        out = f"{jax}.ShapeDtypeStruct(fitted, out_type.dtype)"
    else:
        ahead = {array: f"_k_major({array})" if array in turned else rounded(array) for _, array in data.blocks}
        lines += [f"  {array} = {text}" for array, text in ahead.items() if text != array]
    lines.append("")
    add(1, f"def body({', '.join(data.refs)}, ring, scratch):")
    ring = "_KMajorRing" if turned else "_Ring"
    add(2, f"ring = _PartsRing(*ring, arrays=[{operands}])" if plan.parts else f"ring = {ring}(*ring)")
    if plan.masked:
        for array, ref in padded:
            add(2, f"{ref} = _whole({ref}, {array}_shape)")
        add(2, f"{data.refs[-1]} = _whole({data.refs[-1]}, out_type.shape)")
    views = [f"{r}{v}" for r, v in zip(data.refs, data.views)]
    passed = [data.axes[axis] for axis, _ in plan.indices]
    bound = [f"{k}={v}" for k, v in data.bound]
    axes = ", ".join(data.axes)
    for name, function, more in (
        ("loads", f"{plan.name}_loads", []), ("compute", plan.name, ["tile.part(scratch)"])
    ):
        lines.append("")
        add(2, f"def {name}({axes}, count):")
        lines += call_lines(f"      return {function}", [*views, "ring", "count", *more, *passed, *bound])
    lines.append("")
    add(2, "_persistent(grid, tile.warpgroups, loads, compute, ring.drain)")
    lines.append("")
    given = f", arrays=[{operands}]" if turned else ""
    keywords = {
        "out_type": out,
        "grid": f"(min(_num_sms(), {math}.prod(grid)),)",
        "grid_names": '("sm",)',
        "num_threads": "tile.warpgroups + 1",
        "thread_name": '"wg"',
        "scratch_types": f"({ring}.scratch(stages, tile, swizzle, *blocks{given}), tile.scratch())",
        **dict(data.extra),
    }
    add(1, f"{'result =' if data.listed else 'return'} {plgpu}.kernel(")
    add(3, "body,")
    for k, v in keywords.items():
        add(3, f"{k}={v},")
    add(1, f")({arrays})" + ("[tuple(map(slice, out_type.shape))]" if plan.masked else ""))
    if data.listed:
        add(1, "return (result,)")
    return lines


def _along_k(data: LaunchData) -> dict[str, None]:
    """The contracted extents of the operands' blocks, and of the arrays where TMA reads them as they are."""
    plan = data.plan
    extents = {data.blocks[at][0][contracted_dimension(at, plan)] if plan.step else str(CHUNK): None for at in range(len(plan.operands))}
    if not plan.masked:
        extents |= {f"{array}.shape[{contracted_dimension(at, plan) - 2}]": None for at, (_, array) in enumerate(data.blocks)}
    return extents


def _minor(at: int, data: LaunchData) -> str:
    """The minor extent of an operand as one warpgroup sees it."""
    plan = data.plan
    if contracted_dimension(at, plan) == 1:
        return data.blocks[at][0][1] if plan.step else str(CHUNK)
    is_left = any(p.left == at for p in plan.products)
    return "tile.shape[0]" if is_left else "tile.shape[1]"


def _head(node: cst.FunctionDef, plan: DotPlan, name: str, extra: list[str]) -> str:
    """The signature: the user's refs, what the pipeline passes, then the user's other parameters by keyword."""
    params = node.params
    positional = [*params.posonly_params, *params.params]
    refs = [_code_of(p.with_changes(comma=cst.MaybeSentinel.DEFAULT)) for p in positional if p.name.value not in plan.statics]
    statics = [p for p in positional if p.name.value in plan.statics]
    keywords = [_code_of(p.with_changes(comma=cst.MaybeSentinel.DEFAULT)) for p in (*statics, *params.kwonly_params)]
    indices = [n for _, n in plan.indices]
    parts = [*refs, *extra, *indices]
    if keywords:
        parts += ["*", *keywords]
    one_line = f"def {name}({', '.join(parts)}):"
    if len(one_line) <= 100:
        return one_line
    return f"def {name}(\n    {', '.join(parts)}\n):"


def _code(node: cst.CSTNode, depth: int) -> list[str]:
    """A statement's lines, indented to ``depth`` levels of two blanks."""
    text = cst.Module(body=[node], default_indent="  ").code  # type: ignore[list-item]
    lines = text.split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    return [("  " * depth + line) if line.strip() else "" for line in lines]


def _code_of(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node).strip()
