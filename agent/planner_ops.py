"""Elementwise ATen operations as words of the language, and operations that leave every value as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from coda_synth.agent.planner_expr import Expr, add, div, mul, neg, number, power, sub

SAME = frozenset("clone detach alias contiguous lift_fresh_copy view_as dropout".split())
_PLAIN = frozenset(
    "exp exp2 log log2 sqrt rsqrt reciprocal sigmoid tanh erf silu relu sin cos floor round abs maximum minimum".split()
)
_COMPARED = frozenset("lt le gt ge eq ne".split())
_LOGICAL = {"logical_and": "and", "logical_or": "or", "logical_not": "not", "bitwise_and": "and", "bitwise_or": "or"}
_LOGICAL["bitwise_not"] = "not"


def pointwise(name: str, args: list[Expr | None], options: Mapping[str, object]) -> Expr | None:
    """The value of an elementwise operation, or None where the language has no words for it.

    args: the operands in ATen's order, numbers included; options: ATen's keyword arguments.
    """
    if name in _PLAIN and None not in args and not options:
        return Expr(name, tuple(a for a in args if a))
    if name in _COMPARED:
        return Expr(name, tuple(a for a in args if a))
    if name in _LOGICAL:
        return Expr(_LOGICAL[name], tuple(a for a in args if a))
    rule = _RULES.get(name)
    return rule(args, options) if rule else None


def _sum(args: list[Expr | None], options: Mapping[str, object]) -> Expr | None:
    a, b = args
    return add(a, mul(_option(options, "alpha", 1), b)) if a and b else None


def _difference(args: list[Expr | None], options: Mapping[str, object]) -> Expr | None:
    a, b = args
    return sub(a, mul(_option(options, "alpha", 1), b)) if a and b else None


def _reversed(args: list[Expr | None], options: Mapping[str, object]) -> Expr | None:
    return _difference([args[1], args[0]], options)


def _product(args: list[Expr | None], options: Mapping[str, object]) -> Expr | None:
    a, b = args
    return mul(a, b) if a and b else None


def _quotient(args: list[Expr | None], options: Mapping[str, object]) -> Expr | None:
    a, b = args
    if not a or not b or options.get("rounding_mode"):
        return None
    return div(a, b)


def _power(args: list[Expr | None], options: Mapping[str, object]) -> Expr | None:
    base, exponent = args
    return power(base, exponent.number) if base and exponent and exponent.number is not None else None


def _gelu(args: list[Expr | None], options: Mapping[str, object]) -> Expr | None:
    word = "gelu_tanh" if options.get("approximate") == "tanh" else "gelu"
    return Expr(word, (args[0],)) if args[0] else None


def _softplus(args: list[Expr | None], options: Mapping[str, object]) -> Expr | None:
    """Beyond the threshold torch returns x itself, which differs from softplus by less than exp(-threshold)."""
    x, beta, threshold = [*args, None, None][:3]
    if x is None or (threshold is not None and (threshold.number or 0) < 20):
        return None
    return Expr("softplus", (x,)) if beta is None else div(Expr("softplus", (mul(beta, x),)), beta)


def _clamp(args: list[Expr | None], options: Mapping[str, object]) -> Expr | None:
    x, least, most = [*args, None, None][:3]
    if x is None:
        return None
    if least and most:
        return Expr("clamp", (x, least, most))
    if least:
        return Expr("maximum", (x, least))
    return Expr("minimum", (x, most)) if most else None


def _clamp_max(args: list[Expr | None], options: Mapping[str, object]) -> Expr | None:
    return Expr("minimum", (args[0], args[1])) if args[0] and args[1] else None


def _where(args: list[Expr | None], options: Mapping[str, object]) -> Expr | None:
    condition, x, y = args
    return Expr("where", (condition, x, y)) if condition and x and y else None


def _masked_fill(args: list[Expr | None], options: Mapping[str, object]) -> Expr | None:
    x, mask, value = args
    return Expr("where", (mask, value, x)) if x and mask and value else None


def _log1p(args: list[Expr | None], options: Mapping[str, object]) -> Expr | None:
    return Expr("log", (add(number(1.0), args[0]),)) if args[0] else None


def _expm1(args: list[Expr | None], options: Mapping[str, object]) -> Expr | None:
    return sub(Expr("exp", (args[0],)), number(1.0)) if args[0] else None


def _relu6(args: list[Expr | None], options: Mapping[str, object]) -> Expr | None:
    return Expr("clamp", (args[0], number(0.0), number(6.0))) if args[0] else None


def _negation(args: list[Expr | None], options: Mapping[str, object]) -> Expr | None:
    return neg(args[0]) if args[0] else None


def _option(options: Mapping[str, object], name: str, default: float) -> Expr:
    value = options.get(name, default)
    return number(value if isinstance(value, (int, float)) else default)


_RULES: dict[str, Callable[[list[Expr | None], Mapping[str, object]], Expr | None]] = {
    "add": _sum,
    "sub": _difference,
    "rsub": _reversed,
    "mul": _product,
    "div": _quotient,
    "true_divide": _quotient,
    "pow": _power,
    "neg": _negation,
    "gelu": _gelu,
    "softplus": _softplus,
    "clamp": _clamp,
    "clamp_min": _clamp,
    "clamp_max": _clamp_max,
    "hardtanh": _clamp,
    "relu6": _relu6,
    "where": _where,
    "masked_fill": _masked_fill,
    "log1p": _log1p,
    "expm1": _expm1,
}
