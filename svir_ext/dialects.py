"""Sets for `accept=`: what servers were seen to need.

    client = svir.Client("https://api.perplexity.ai", accept=dialects.PERPLEXITY, exact_url=True)

Each name in a set lets something pass that could hide a fault (docs/decoding.md), so take a set
only for the server it is named after. Nothing here guesses from a URL: behind one address may be
any server. An error that a name would have avoided says so itself. Servers change; a set that is
no longer needed does no harm but to hide such a fault.
"""

from __future__ import annotations

__all__ = [
    "AZURE_API_MANAGEMENT", "CLOUDFLARE_WORKERS_AI", "FOUNDRY_LOCAL", "IK_LLAMA_CPP",
    "PERPLEXITY", "TGI", "VLLM_MLX",
]  # fmt: skip

PERPLEXITY: frozenset[str] = frozenset(["end-without-done"])
"""A finish on the last chunk, then the end, with no [DONE]: perplexityai/api-discussion#209."""

CLOUDFLARE_WORKERS_AI: frozenset[str] = frozenset(["done-without-finish"])
"""No finish reason on any chunk, [DONE] is the only end: vercel/ai#4031."""

VLLM_MLX: frozenset[str] = frozenset(["done-without-finish"])
"""0.4.0 never names the finish "stop": waybarrios/vllm-mlx#628."""

FOUNDRY_LOCAL: frozenset[str] = frozenset(["changing-id", "any-choice-index"])
"""The id counts the chunks up to 0.6.87, the choice's index does in 0.7.117:
microsoft/foundry-local#144, #221, #263."""

TGI: frozenset[str] = frozenset(["any-choice-index", "end-without-done"])
"""Before March 2024 the choice's index counts the tokens, and before July 2024 there is no [DONE]:
huggingface/text-generation-inference#1648, #2221."""

IK_LLAMA_CPP: frozenset[str] = frozenset(["end-without-done"])
"""Builds of May 2025 send no [DONE]: ikawrakow/ik_llama.cpp#467."""

AZURE_API_MANAGEMENT: frozenset[str] = frozenset(["any-content-type"])
"""A gateway set up so that the stream loses its content type: sigoden/aichat#651."""
