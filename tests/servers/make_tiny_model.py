#!/usr/bin/env python3
"""Write a tiny *scripted* language model: GGUF and Hugging Face directory.

Standard library only. No randomness: the same files come out every time.

The model is a real one-layer llama-architecture model, but every attention and
feed-forward weight is zero, the embeddings are one-hot, and the output matrix
holds a transition table. So the next token depends on the last token alone, and
each "script" below is a chain of distinct tokens that the model always emits.

Which script runs is chosen by the *request*: the chat template looks for
[[name]] in the last message and ends the prompt with that script's selector
token. No marker: script "hello". So a client test says what a real server's
model will answer, with the server's own sampling, grammar, tool and reasoning
parsers in between.

    python make_tiny_model.py OUT_DIR      # OUT_DIR/tiny.gguf, OUT_DIR/hf/
"""

import json
import os
import struct
import sys

UNK, BOS, EOS, IM_START, IM_END = "<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"
END = object()

SCRIPTS = {
    "hello": ["Hello", ",", " world", "!", END],
    "long": ["w%02d " % i for i in range(40)] + [END],
    "loop": ["la ", "lu ", "li ", "LOOP"],  # never ends
    "empty": [END],
    "think": [
        "<think>",
        "\nLet",
        " me",
        " think",
        ".\n",
        "</think>",
        "\n\nThe answer",
        " is",
        " 42.",
        END,
    ],
    "onlythink": ["<thi", "nk>\nstill", " pondering", " on", " and on", END],
    "tool": [
        "<tool_call>",
        '\n{"name": "get_',
        'weather", "argu',
        'ments": {"city": "Pa',
        'ris"}}\n',
        "</tool_call>",
        END,
    ],
    "tools2": [
        "<tool",
        '_call>\n{"name":',
        ' "get_weather",',
        ' "arguments":',
        ' {"city": ',
        '"Oslo"}}',
        "\n</tool",
        "_call>\n<tool_",
        'call>\n{"name"',
        ': "get_time"',
        ', "arguments"',
        ': {"tz": ',
        '"CET"}}\n',
        "</tool_",
        "call>",
        END,
    ],
    "thinktool": [
        "<think",
        ">\nI need",
        " the weather",
        ".\n</think>",
        "\n\nChecking.\n",
        "<tool_c",
        'all>\n{"name": ',
        '"get_weather", ',
        '"arguments": {',
        '"city": "Rome"}}',
        "\n</tool_c",
        "all>",
        END,
    ],
    "badtool": ["<tool_ca", 'll>\n{"name": "get_we', 'ather", "arguments": {"ci', END],
    "utf8": ["Gr", b"\xc3", b"\xbc", "sse ", b"\xf0", b"\x9f", b"\x98", b"\x80", " end8", END],
    "badutf8": ["bad ", b"\xff", " tail", END],
    "cututf8": ["cut ", b"\xe2", b"\x82", END],
    "escapes": [
        'q"uote',
        " back\\slash",
        " tab\t",
        "nl\ncr\r\n",
        " ls\u2028ps\u2029nel\u0085",
        " soh\x01ff\x0c",
        " <b>&amp;",
        END,
    ],
    "sse": ["data: [DONE]\n\n", 'data: {"x":1}\n\n', ": comment\n", "event: error\n\n", END],
    "json": ['{"name"', ':"Ada"', ',"age":', "36}", END],
    "fences": ["```json\n", '{"a": 1}', "\n```", END],
}
# Pieces that chains end on, in every script, share one EOS token: <|im_end|>.

TEMPLATE = r"""
{%- set names = [NAMES] -%}
{%- set ns = namespace(script='hello') -%}
{%- set last = messages[messages|length - 1] -%}
{%- set lc = '' -%}
{%- if last.content is string -%}{%- set lc = last.content -%}
{%- elif last.content -%}{%- for part in last.content -%}{%- if part.text -%}
{%- for s in names -%}{%- if ('[[' + s + ']]') in part.text -%}{%- set ns.script = s -%}{%- endif -%}{%- endfor -%}
{%- endif -%}{%- endfor -%}{%- endif -%}
{%- for s in names -%}{%- if ('[[' + s + ']]') in lc -%}{%- set ns.script = s -%}{%- endif -%}{%- endfor -%}
{%- if tools %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\n\n' }}
    {%- endif %}
    {{- "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function signatures within <tools></tools> XML tags:\n<tools>" }}
    {%- for tool in tools %}
        {{- "\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\n</tools>\n\nFor each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n" }}
{%- else %}
    {%- if messages[0].role == 'system' %}
        {{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' }}
    {%- endif %}
{%- endif %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set ns2 = namespace(t='') %}
        {%- if message.content %}{%- for part in message.content %}{%- if part.text %}{%- set ns2.t = ns2.t + part.text %}{%- endif %}{%- endfor %}{%- endif %}
        {%- set content = ns2.t %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role + '\n' }}
        {%- if message.reasoning_content is string and message.reasoning_content %}
            {{- '<think>\n' + message.reasoning_content.strip('\n') + '\n</think>\n\n' }}
        {%- endif %}
        {{- content }}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}
                    {{- '\n' }}
                {%- endif %}
                {%- if tool_call.function %}
                    {%- set tool_call = tool_call.function %}
                {%- endif %}
                {{- '<tool_call>\n{"name": "' }}
                {{- tool_call.name }}
                {{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}
                    {{- tool_call.arguments }}
                {%- else %}
                    {{- tool_call.arguments | tojson }}
                {%- endif %}
                {{- '}\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' }}
        {{- content }}
        {{- '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n<|' + ns.script + '|>' }}
{%- endif %}
""".strip("\n").replace("NAMES", ", ".join("'%s'" % n for n in SCRIPTS))

T_NORMAL, T_UNKNOWN, T_CONTROL, T_USER, T_BYTE = 1, 2, 3, 4, 6


def build():
    """-> tokens [(text, type)], ids {text: id}, transitions {src: dst}, second choices, defaults {dst: weight}"""
    tokens, ids = [], {}

    def add(text, kind):
        if text not in ids:
            ids[text] = len(tokens)
            tokens.append((text, kind))
        return ids[text]

    add(UNK, T_UNKNOWN)
    add(BOS, T_CONTROL)
    add(EOS, T_CONTROL)
    byte0 = len(tokens)
    for b in range(256):
        add("<0x%02X>" % b, T_BYTE)
    add(IM_START, T_CONTROL)
    add(IM_END, T_CONTROL)
    for t in ("<think>", "</think>", "<tool_call>", "</tool_call>"):
        add(t, T_USER)
    for name in SCRIPTS:
        add("<|%s|>" % name, T_CONTROL)
    nxt = {}
    used = {}
    for name, chain in SCRIPTS.items():
        prev = ids["<|%s|>" % name]
        for piece in chain:
            if piece is END:
                nid = ids[IM_END]
            elif isinstance(piece, bytes):
                nid = byte0 + piece[0]
            elif len(piece) == 1 and ord(piece) < 128:
                nid = byte0 + ord(piece)
            else:
                nid = (
                    add(piece.replace(" ", "\u2581"), T_NORMAL) if piece not in ids else ids[piece]
                )
            if prev in nxt and nxt[prev] != nid:
                raise SystemExit(
                    "piece %r already leads elsewhere (script %s)" % (tokens[prev], name)
                )
            nxt[prev] = nid
            prev = nid
            if piece is not END:
                if nid in used and used[nid] != name and tokens[nid][1] != T_BYTE:
                    raise SystemExit("piece %r in %s and %s" % (piece, used[nid], name))
                used[nid] = name
        if chain[-1] is not END:  # loops for ever
            nxt[prev] = ids[chain[0].replace(" ", "\u2581")]
    # "hello" uses the byte tokens "," and "!": fine, each leads to one token.
    defaults = {
        ids[IM_END]: 0.9,
        byte0 + ord('"'): 0.7,
        byte0 + ord("}"): 0.6,
        byte0 + ord("]"): 0.55,
        byte0 + ord(","): 0.3,
        byte0 + ord("1"): 0.2,
        byte0 + ord("t"): 0.1,
    }
    # Where a grammar forbids the end (tool_choice "required"), "hello" goes on to the tool call.
    second = {byte0 + ord("!"): ids["<tool_call>"]}
    return tokens, ids, nxt, second, defaults


def matrices(tokens, nxt, second, defaults, dim):
    """Row-major float32: embed[token][dim] one-hot, head[next][dim]."""
    v = len(tokens)
    embed, head = bytearray(4 * v * dim), bytearray(4 * v * dim)
    for t in range(v):
        struct.pack_into("<f", embed, 4 * (t * dim + t), 1.0)
        for d, w in defaults.items():
            struct.pack_into("<f", head, 4 * (d * dim + t), w)
        if t in second:
            struct.pack_into("<f", head, 4 * (second[t] * dim + t), 1.5)
        if t in nxt:
            struct.pack_into("<f", head, 4 * (nxt[t] * dim + t), 2.0)
    return bytes(embed), bytes(head)


def zeros(*shape):
    n = 4
    for s in shape:
        n *= s
    return bytes(n)


def ones(n):
    return struct.pack("<%df" % n, *([1.0] * n))


def write_gguf(path, tokens, ids, embed, head, dim, ff, heads, ctx):
    v = len(tokens)
    kv = []

    def s(x):
        b = x.encode("utf-8")
        return struct.pack("<Q", len(b)) + b

    def put(key, kind, value):
        if kind == "str":
            body = struct.pack("<I", 8) + s(value)
        elif kind == "u32":
            body = struct.pack("<II", 4, value)
        elif kind == "f32":
            body = struct.pack("<If", 6, value)
        elif kind == "bool":
            body = struct.pack("<IB", 7, value)
        elif kind == "arr_str":
            body = struct.pack("<IIQ", 9, 8, len(value)) + b"".join(s(x) for x in value)
        elif kind == "arr_f32":
            body = struct.pack("<IIQ", 9, 6, len(value)) + struct.pack("<%df" % len(value), *value)
        elif kind == "arr_i32":
            body = struct.pack("<IIQ", 9, 5, len(value)) + struct.pack("<%di" % len(value), *value)
        else:
            raise ValueError(kind)
        kv.append(s(key) + body)

    put("general.architecture", "str", "llama")
    put("general.name", "str", "svir tiny scripted")
    put("general.alignment", "u32", 32)
    put("llama.context_length", "u32", ctx)
    put("llama.embedding_length", "u32", dim)
    put("llama.block_count", "u32", 1)
    put("llama.feed_forward_length", "u32", ff)
    put("llama.attention.head_count", "u32", heads)
    put("llama.attention.head_count_kv", "u32", heads)
    put("llama.attention.layer_norm_rms_epsilon", "f32", 1e-5)
    put("llama.rope.dimension_count", "u32", dim // heads)
    put("llama.vocab_size", "u32", v)
    put("tokenizer.ggml.model", "str", "llama")
    put("tokenizer.ggml.pre", "str", "default")
    put("tokenizer.ggml.tokens", "arr_str", [t for t, _ in tokens])
    put("tokenizer.ggml.scores", "arr_f32", [0.0 if k != T_NORMAL else -1000.0 for _, k in tokens])
    put("tokenizer.ggml.token_type", "arr_i32", [k for _, k in tokens])
    put("tokenizer.ggml.bos_token_id", "u32", ids[BOS])
    put("tokenizer.ggml.eos_token_id", "u32", ids[IM_END])
    put("tokenizer.ggml.unknown_token_id", "u32", ids[UNK])
    put("tokenizer.ggml.add_bos_token", "bool", 0)
    put("tokenizer.ggml.add_eos_token", "bool", 0)
    put("tokenizer.ggml.add_space_prefix", "bool", 0)
    put("tokenizer.chat_template", "str", TEMPLATE)

    b = "blk.0."
    tensors = [
        ("token_embd.weight", (dim, v), embed),
        ("output_norm.weight", (dim,), ones(dim)),
        ("output.weight", (dim, v), head),
        (b + "attn_norm.weight", (dim,), ones(dim)),
        (b + "attn_q.weight", (dim, dim), zeros(dim, dim)),
        (b + "attn_k.weight", (dim, dim), zeros(dim, dim)),
        (b + "attn_v.weight", (dim, dim), zeros(dim, dim)),
        (b + "attn_output.weight", (dim, dim), zeros(dim, dim)),
        (b + "ffn_norm.weight", (dim,), ones(dim)),
        (b + "ffn_gate.weight", (dim, ff), zeros(dim, ff)),
        (b + "ffn_up.weight", (dim, ff), zeros(dim, ff)),
        (b + "ffn_down.weight", (ff, dim), zeros(ff, dim)),
    ]
    info, off = [], 0
    for name, shape, data in tensors:
        info.append(
            s(name)
            + struct.pack("<I", len(shape))
            + b"".join(struct.pack("<Q", d) for d in shape)
            + struct.pack("<IQ", 0, off)
        )
        off += (len(data) + 31) // 32 * 32
    headb = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(kv)) + b"".join(kv) + b"".join(info)
    with open(path, "wb") as f:
        f.write(headb + bytes(-len(headb) % 32))
        for _, _, data in tensors:
            f.write(data + bytes(-len(data) % 32))


def write_hf(path, tokens, ids, embed, head, dim, ff, heads, ctx):
    os.makedirs(path, exist_ok=True)
    v = len(tokens)

    def dump(name, obj):
        with open(os.path.join(path, name), "w", encoding="utf-8") as f:
            json.dump(obj, f, ensure_ascii=False, indent=1)

    dump(
        "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": v,
            "hidden_size": dim,
            "intermediate_size": ff,
            "num_hidden_layers": 1,
            "num_attention_heads": heads,
            "num_key_value_heads": heads,
            "head_dim": dim // heads,
            "hidden_act": "silu",
            "max_position_embeddings": ctx,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
            "attention_bias": False,
            "mlp_bias": False,
            "bos_token_id": ids[BOS],
            "eos_token_id": ids[IM_END],
            "pad_token_id": ids[EOS],
            "torch_dtype": "float32",
        },
    )
    dump(
        "generation_config.json",
        {
            "bos_token_id": ids[BOS],
            "eos_token_id": [ids[IM_END]],
            "pad_token_id": ids[EOS],
            "do_sample": False,
        },
    )
    special = [i for i, (_, k) in enumerate(tokens) if k in (T_CONTROL, T_UNKNOWN, T_USER)]
    dump(
        "tokenizer.json",
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {
                    "id": i,
                    "content": tokens[i][0],
                    "single_word": False,
                    "lstrip": False,
                    "rstrip": False,
                    "normalized": False,
                    "special": tokens[i][1] != T_USER,
                }
                for i in special
            ],
            "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
            "pre_tokenizer": None,
            "post_processor": None,
            "decoder": {
                "type": "Sequence",
                "decoders": [
                    {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                    {"type": "ByteFallback"},
                    {"type": "Fuse"},
                ],
            },
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": UNK,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": True,
                "byte_fallback": True,
                "ignore_merges": False,
                "vocab": {t: i for i, (t, _) in enumerate(tokens)},
                "merges": [],
            },
        },
    )
    dump(
        "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BOS,
            "eos_token": IM_END,
            "unk_token": UNK,
            "pad_token": EOS,
            "model_max_length": ctx,
            "clean_up_tokenization_spaces": False,
            "chat_template": TEMPLATE,
        },
    )
    with open(os.path.join(path, "chat_template.jinja"), "w", encoding="utf-8") as f:
        f.write(TEMPLATE)
    p = "model.layers.0."
    tensors = [
        ("model.embed_tokens.weight", (v, dim), embed),
        ("lm_head.weight", (v, dim), head),
        ("model.norm.weight", (dim,), ones(dim)),
        (p + "input_layernorm.weight", (dim,), ones(dim)),
        (p + "post_attention_layernorm.weight", (dim,), ones(dim)),
        (p + "self_attn.q_proj.weight", (dim, dim), zeros(dim, dim)),
        (p + "self_attn.k_proj.weight", (dim, dim), zeros(dim, dim)),
        (p + "self_attn.v_proj.weight", (dim, dim), zeros(dim, dim)),
        (p + "self_attn.o_proj.weight", (dim, dim), zeros(dim, dim)),
        (p + "mlp.gate_proj.weight", (ff, dim), zeros(dim, ff)),
        (p + "mlp.up_proj.weight", (ff, dim), zeros(dim, ff)),
        (p + "mlp.down_proj.weight", (dim, ff), zeros(dim, ff)),
    ]
    header: dict = {"__metadata__": {"format": "pt"}}
    off = 0
    for name, shape, data in tensors:
        header[name] = {
            "dtype": "F32",
            "shape": list(shape),
            "data_offsets": [off, off + len(data)],
        }
        off += len(data)
    hb = json.dumps(header).encode()
    hb += b" " * (-len(hb) % 8)
    with open(os.path.join(path, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(hb)) + hb)
        for _, _, data in tensors:
            f.write(data)


def main():
    out = sys.argv[1]
    os.makedirs(out, exist_ok=True)
    tokens, ids, nxt, second, defaults = build()
    dim = 128 * ((len(tokens) + 127) // 128)
    heads, ff, ctx = dim // 64, 32, 8192
    embed, head = matrices(tokens, nxt, second, defaults, dim)
    write_gguf(os.path.join(out, "tiny.gguf"), tokens, ids, embed, head, dim, ff, heads, ctx)
    write_hf(os.path.join(out, "hf"), tokens, ids, embed, head, dim, ff, heads, ctx)
    print("%d tokens, dim %d, %s" % (len(tokens), dim, out))


if __name__ == "__main__":
    main()
