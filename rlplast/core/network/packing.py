"""Packed projections: one layer that holds several, mostly query, key and value.

Names tell that a layer is packed, and the module around it how: one part after the other, or head
by head, as in GPT-NeoX and BLOOM.
"""

from typing import Any

__all__ = ["PACKED_NAMES", "QUERY_KEY", "UNKNOWN", "packed_rows"]

UNKNOWN = "packed"
PARTS = ("q", "k", "v")
# One part after the other, unless the module around is one of `HEADWISE`.
IN_TURN: dict[str, tuple[str, ...]]
IN_TURN = {name: PARTS for name in ("qkv", "to_qkv", "Wqkv", "c_attn", "in_proj", "qkv_linear")}
IN_TURN |= {name: PARTS[1:] for name in ("kv", "to_kv")}
IN_TURN["gate_up_proj"] = ("gate", "up")  # of Phi-3 and GLM
# What they hold depends on the module.
VARYING = ("query_key_value", "qkv_proj", "kv_proj", "wqkv", "W_pack", "fused_qkv")
PACKED_NAMES = (*IN_TURN, *VARYING)
# Modules of transformers, by class, that pack head by head: query, key and value of the first head,
# then of the second; with their attribute for the rows of a head.
HEADWISE = {
    "BloomAttention": "head_dim",
    "DisentangledSelfAttention": "attention_head_size",  # DeBERTa
    "FalconAttention": "head_dim",
    "GPTBigCodeAttention": "head_dim",
    "GPTNeoXAttention": "head_size",
    "GPTNeoXJapaneseAttention": "head_size",
    "PersimmonAttention": "head_dim",
}
QUERY_KEY = ("q", "k", "q_proj", "k_proj", "to_q", "to_k", "q_lin", "k_lin", "q_attn")
QUERY_KEY += ("query", "key", "query_proj", "key_proj", "linear_q", "linear_k")


def packed_rows(name: str, rows: int, columns: int, around: Any = None) -> dict[str, slice]:
    """Return the parts of a layer, ``{"q": rows, …}``, empty if it is not packed.

    Where heads lie one after the other, the parts are those of each head: ``q.0``, ``k.0``,
    ``v.0``, ``q.1`` and so on. A packed layer with unknown parts has one, `UNKNOWN`. `around` is
    the module that holds the layer; None if that is not known.

    Examples:
        >>> packed_rows("qkv", 6, 2)
        {'q': slice(0, 2, None), 'k': slice(2, 4, None), 'v': slice(4, 6, None)}
    """
    if name not in PACKED_NAMES:
        return {}
    parts, size, kind = IN_TURN.get(name, ()), columns, type(around).__name__
    if kind in HEADWISE:
        size = int(getattr(around, HEADWISE[kind], columns))
        parts = tuple(f"{part}.{head}" for head in range(columns // size) for part in PARTS)
    elif name == "in_proj":
        if around is not None and not _attends(around):
            return {}  # of a state space model or a gated conv
        parts = parts if around is not None else ()
    elif name.startswith(("to_", "gate_")):
        size = rows // len(parts)  # which may be wider than the input
    if not parts or rows != size * len(parts) or getattr(around, "head_first", False):
        return {UNKNOWN: slice(0, rows)}
    return {part: slice(i * size, (i + 1) * size) for i, part in enumerate(parts)}


def _attends(module: Any) -> bool:
    return any(hasattr(module, name) for name in ("num_heads", "num_attention_heads", "heads"))
