"""Known models, and those of a configuration file as Hugging Face writes it."""

import json
import tomllib
from dataclasses import replace
from importlib import resources
from pathlib import Path

from d2lps.messages import text, why
from d2lps.scaling.transformer import ScalingError, Transformer

# The fields that every kind has, by their names in a configuration.
GPT2 = dict(layers="n_layer", width="n_embd", heads="n_head", context="n_positions", vocabulary="vocab_size")
OTHERS = {"layers": "num_hidden_layers", "width": "hidden_size", "heads": "num_attention_heads"}
OTHERS |= {"context": "max_position_embeddings", "vocabulary": "vocab_size", "hidden": "intermediate_size"}
KINDS = "gpt2 llama mistral qwen2 qwen3 mixtral qwen3_moe deepseek_v3".split()


def known(model: object) -> Transformer:
    """Return a model by its name, the description of a module that has one, or the model itself."""
    model = getattr(model, "transformer", model)
    if isinstance(model, Transformer):
        return model
    if not isinstance(model, str) or model not in MODELS:
        raise ScalingError(text("scaling.unknown-model", model=repr(model), models=", ".join(MODELS)))
    return MODELS[model]


def from_config(config: dict, name: str = "config.json") -> Transformer:
    """Return the model of a Hugging Face configuration; layers that predict further tokens (MTP) are left out."""
    kind = config.get("model_type")
    if kind not in KINDS or config.get("v_head_dim") != config.get("qk_nope_head_dim"):
        raise ScalingError(text("scaling.config-kind", file=name, kind=repr(kind), known=", ".join(KINDS)))
    try:
        return _read(kind, config)
    except (KeyError, TypeError) as wrong:
        raise ScalingError(text("scaling.config-key", file=name, key=wrong.args[0])) from None


def _read(kind: str, config: dict) -> Transformer:
    sizes = {field: config[key] for field, key in (GPT2 if kind == "gpt2" else OTHERS).items()}
    if kind == "gpt2":
        drops = config.get("resid_pdrop", 0.1) > 0
        return Transformer(**sizes, hidden=config.get("n_inner") or 0, dropout=drops, fused=True)
    latent: tuple[int, int, int] | tuple[()] = ()
    if kind == "deepseek_v3":
        latent = (config["q_lora_rank"] or 0, config["kv_lora_rank"], config["qk_rope_head_dim"])
    model = Transformer(
        **sizes,
        groups=0 if latent else config.get("num_key_value_heads") or 0,
        gated=True,
        tied=config.get("tie_word_embeddings", False),
        biases=False,
        dropout=False,
        fused=True,
        head=(config["qk_nope_head_dim"] if latent else config.get("head_dim")) or 0,
        latent=latent,
    )
    all_biases, qkv = config.get("attention_bias") and not latent, model.inner + 2 * model.keys
    extra = sum(latent[:2]) + (qkv + model.width if all_biases else qkv if kind == "qwen2" else 0)
    extra += 2 * model.head if kind.startswith("qwen3") else 0
    extra += 2 * model.hidden + model.width if config.get("mlp_bias") else 0
    counts = {"mixtral": "num_local_experts", "qwen3_moe": "num_experts", "deepseek_v3": "n_routed_experts"}
    if kind not in counts:
        return replace(model, extra=extra)
    narrow = model.hidden if kind == "mixtral" else config["moe_intermediate_size"]
    rest = {"shared": config.get("n_shared_experts") or 0, "dense": config.get("first_k_dense_replace", 0)}
    return replace(
        model, extra=extra, experts=config[counts[kind]], chosen=config["num_experts_per_tok"], narrow=narrow, **rest
    )


def read(file: Path) -> dict:
    """Return the object of a JSON file; raise ScalingError if there is none."""
    try:
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ScalingError(text("scaling.file", file=file, why=why(error))) from None
    return found if isinstance(found, dict) else {}


def data(file: str) -> dict:
    """Return the tables of a file in this folder."""
    return tomllib.loads(resources.files("d2lps").joinpath("scaling", file).read_text("utf-8"))


# Table 1 of SC 2021: heads, width and layers by 10⁹ parameters.
_SC21 = {
    "1.7b": (24, 2304, 24),
    "3.6b": (32, 3072, 30),
    "7.5b": (32, 4096, 36),
    "18.4b": (48, 6144, 40),
    "39.1b": (64, 8192, 48),
    "76.1b": (80, 10240, 60),
    "145.6b": (96, 12288, 80),
    "310.1b": (128, 16384, 96),
    "529.6b": (128, 20480, 105),
    "1008b": (160, 25600, 128),
}
MODELS = {
    "gpt3": Transformer(96, 12288, 96, 2048, 50257),
    "gpt-22b": Transformer(48, 6144, 64, 2048, 51200),  # this and the next: table 3 of Korthikanti et al.
    "gpt-175b": Transformer(96, 12288, 96, 2048, 51200),
    **{f"gpt-{name}": Transformer(layers, h, heads, 2048, 51200) for name, (heads, h, layers) in _SC21.items()},
    **{name: from_config(config, name) for name, config in data("models.toml").items()},
}
