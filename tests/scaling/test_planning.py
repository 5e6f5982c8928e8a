"""Models as files and with experts, GPUs as data, the ranked list, and the command that engineers use."""

import json
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import pytest

from d2lps import memory, parallelize
from d2lps.__main__ import main
from d2lps.messages import LANGUAGES, speak
from d2lps.scaling import GPUS, LLAMA3, MODELS, Layout, ScalingError, calibrate, error, kept, sent, step
from d2lps.scaling.choosing import _layouts
from d2lps.scaling.models import from_config, read
from d2lps.scaling.runs import DEEPSEEK as RUN
from d2lps.scaling.transformer import flops_of

CONFIGS = Path(__file__).parent / "configs"
DEEPSEEK, MIXTRAL, LLAMA = MODELS["deepseek-v3"], MODELS["mixtral-8x7b"], MODELS["llama3-405b"]
# As the modules of transformers 5 count them on the meta device, and the pages of the models on huggingface.co.
PUBLISHED = {
    "gpt2": 124_439_808,
    "llama3.2-1b": 1_235_814_400,
    "llama2-7b": 6_738_415_616,
    "mistral-7b": 7_241_732_096,
    "llama3-8b": 8_030_261_248,
    "qwen3-8b": 8_190_735_360,
    "llama2-70b": 68_976_648_192,
    "llama3-70b": 70_553_706_496,
    "qwen2.5-72b": 72_706_203_648,
    "llama3-405b": 405_853_388_800,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "qwen3-235b-a22b": 235_093_634_560,
    "deepseek-v3": 671_026_404_352,
}
HUGGING_FACE = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "num_attention_heads": 32,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 32000,
}

# ---------------------------------------------------------------- models


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_named_model_has_as_many_parameters_as_published(name):
    assert MODELS[name].parameters == PUBLISHED[name]


def test_all_models_of_the_file_are_compared():
    assert {name for name in MODELS if not name.startswith("gpt-") and name != "gpt3"} == {*PUBLISHED}


def test_deepseek_has_as_many_8_bit_numbers_as_its_files():
    layers, mtp = 61, 1  # its files have one layer more, which predicts a further token
    attention = 7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168
    assert DEEPSEEK.attention_matrices == attention
    experts = (256 + 1) * 3 * 7168 * 2048
    files = (layers + mtp) * attention + 3 * 3 * 7168 * 18432 + (layers - 3 + mtp) * experts
    assert files == 680_571_043_840  # F8_E4M3 numbers, as its page on huggingface.co states
    routers, norms = 58 * 256 * 7168, layers * (1536 + 512 + 2 * 7168) + 7168
    assert DEEPSEEK.parameters == files - attention - experts + routers + norms + 2 * 129280 * 7168


def test_tokens_meet_37_billion_parameters_of_deepseek_and_13_of_mixtral():
    for model, billions in ((DEEPSEEK, 37), (MIXTRAL, 12.9)):  # as published, with embedding and head
        scores = 3 * 2 * model.layers * (2 * model.inner + model.rotated) * model.context // 2
        met = (model.flops_per_token() - scores) / 6 + model.vocabulary * model.width
        assert met == pytest.approx(billions * 1e9, rel=0.02)


def test_a_configuration_of_hugging_face_is_read():
    assert from_config(HUGGING_FACE) == replace(MIXTRAL, context=32768)
    for name, tokens in (("llama3-70b", 8192), ("deepseek-v3", 163840)):
        assert from_config(read(CONFIGS / f"{name}.json")) == replace(MODELS[name], context=tokens)
    biased = {**HUGGING_FACE, "model_type": "llama", "attention_bias": True, "mlp_bias": True}
    plain = {**HUGGING_FACE, "model_type": "llama"}
    more = 4096 + 2 * 1024 + 4096 + 2 * 14336 + 4096
    assert from_config(biased).parameters - from_config(plain).parameters == 32 * more


# ---------------------------------------------------------------- the ledger and the time of experts


def test_experts_are_divided_over_the_replicas():
    own = {"data": 64, "stage": 0, "precision": "bf16"}
    per_expert = 3 * 4096 * 14336
    whole, shared = (memory("mixtral-8x7b", expert=e, **own)["weights"].predicted for e in (1, 8))
    assert whole == 2 * MIXTRAL.parameters
    assert shared == 2 * (MIXTRAL.parameters - 32 * 7 * per_expert)
    optimizer = memory("mixtral-8x7b", data=64, stage=1, expert=8)["optimizer"].predicted
    outside = MIXTRAL.parameters - 32 * 8 * per_expert
    assert optimizer == pytest.approx(12 * (outside / 64 + 32 * per_expert / 8))


def test_all_to_alls_carry_the_tokens_of_the_chosen_experts():
    token = 2 * 4096
    for recompute, times in (("none", 4), ("full", 6)):
        layout = Layout(data=8, expert=8, batches=3, recompute=recompute)
        assert sent(MIXTRAL, layout)["experts"] == pytest.approx(3 * times * 32 * 2 * MIXTRAL.context * token * 7 / 8)
    assert sent(MIXTRAL, Layout(data=8))["experts"] == sent(LLAMA, Layout(data=8))["experts"] == 0
    many = replace(MIXTRAL, experts=32)
    parts = [step(many, Layout(data=n, expert=n), GPUS["h100"])["experts"] for n in (8, 32)]
    assert parts[1] / parts[0] == pytest.approx(370 / 50 * (24 / 32) / (7 / 8))  # 24 of 32 parts leave the node


def test_the_published_step_of_deepseek_lies_between_hidden_and_shown_all_to_alls():
    published = 15360 * 4096 / 2048 * 180_000 * 3600 / 1e12  # 180 000 GPU hours per 10¹² tokens
    parts = step(DEEPSEEK, RUN.layout, RUN.gpu, precision="fp8")
    hidden = sum(parts.values()) - parts["experts"] * (1 + 15 / 120)
    assert hidden < published < sum(parts.values())
    assert error(RUN)[0] == pytest.approx(published / sum(parts.values()) - 1) == pytest.approx(-0.328, abs=1e-3)


def test_gradients_in_32_bits_are_sent_as_such():
    layout = Layout(8, 16, 128, 1, 1, 16, stage=1)
    half, full = (sent(LLAMA, layout, precision)["data"] for precision in ("mixed", "bf16"))
    assert full == pytest.approx(1.5 * half) and full == pytest.approx(18.9e9, rel=0.01)


def test_the_second_gather_is_hidden_behind_products_and_shows_beyond():
    model, gpu = MODELS["gpt-39.1b"], GPUS["a100"]
    with_it, without = (step(model, Layout(tensor=8, sequence=s), gpu)["tensor"] for s in (True, False))
    assert with_it - without == pytest.approx(2 * 48 * 7 * 2 * 1.7e-6)  # two more messages per layer begin
    slow = gpu._replace(inside=1e9)
    with_it, without = (step(model, Layout(tensor=8, sequence=s), slow)["tensor"] for s in (True, False))
    weights = (with_it - without * 10 / 8) * -1
    assert 0 < weights == pytest.approx(2 * 2048 * 48 * 12 * 8192**2 / 8 / (calibrate() * gpu.products), rel=1e-3)


def test_only_matrices_of_layers_are_faster_in_8_bits():
    gpu, layout = GPUS["h100"], Layout(8, 16, 128, 1, 1, 16)
    wide, narrow = (step(LLAMA, layout, gpu, 0.5, precision=precision) for precision in ("bf16", "fp8"))
    in_layers = 16 * 8192 * flops_of(LLAMA)[0] / 128
    saved = in_layers / 0.5 * (1 / 794.5e12 - 1 / 1402.6e12)
    assert wide["matrices"] - narrow["matrices"] == pytest.approx(saved, rel=1e-9)
    assert wide["attention"] == narrow["attention"]
    with pytest.raises(ScalingError, match="8-bit"):
        parallelize("llama3-8b", 8, precision="fp8", gpu="a100")


# ---------------------------------------------------------------- Llama 3 on its cards


def test_the_layout_of_llama3_fits_its_card_with_fused_swiglu_alone():
    for run in LLAMA3[:2]:
        plain, fused = (run.layout._replace(fused_swiglu=f) for f in (False, True))
        assert sum(kept(run.model, plain, "bf16").values()) > 100e9
        assert sum(kept(run.model, fused, "bf16").values()) < 80e9
    bytes_of = kept(LLAMA, LLAMA3[1].layout._replace(fused_swiglu=True), "bf16")
    tokens = 16 * 8 * 8192  # micro-batches that wait, layers
    assert bytes_of["perceptron"] == tokens * 2 * (16384 + 2 * 53248) / 8


def test_results_that_are_not_freed_wait_with_their_micro_batches():
    layout = LLAMA3[1].layout._replace(freed=False)
    assert kept(LLAMA, layout)["sent-results"] == 16 * 8192 * 16384 * 2 / 8
    assert "sent-results" not in kept(LLAMA, layout._replace(freed=True)) | kept(LLAMA, layout._replace(pipeline=1))
    speak("vi")
    assert "kết quả đã gửi" in str(memory(LLAMA, **layout._asdict()))


# ---------------------------------------------------------------- the ranked list

SHAPE = attrgetter("tensor", "pipeline", "context", "data", "expert")


@pytest.mark.parametrize(
    "model, gpus, gpu, batch", [("llama3-70b", 128, "h100", 512), ("mixtral-8x7b", 64, "h200", 256)]
)
def test_the_list_has_the_fastest_layout_of_each_shape(model, gpus, gpu, batch):
    choice, fastest = parallelize(model, gpus, gpu=gpu, batch=batch, context=4096), {}
    for layout in _layouts(choice.model, gpus, 8, batch):
        if sum(kept(choice.model, layout, "bf16").values()) <= 0.9 * GPUS[gpu].memory:
            shape = SHAPE(layout)
            time = sum(step(choice.model, layout, GPUS[gpu], precision="bf16").values())
            fastest[shape] = min(time, fastest.get(shape, time))
    times = [sum(parts.values()) for _, parts, _ in choice.ranked]
    assert choice.shapes == len(fastest) and choice.ranked[0][0] == choice.layout
    first = fastest.pop(SHAPE(choice.layout))
    assert times[1:] == sorted(fastest.values())[:4] and first <= times[0] <= 1.01 * first
    alike = choice.spread.near
    near = [time for time in [first, *fastest.values()] if time <= min(first, times[1]) * alike]
    assert choice.alike == len(near) and first in near


def test_the_simplest_of_equal_layouts_comes_first():
    choice = parallelize("gpt3", 1024, batch=1536)
    cuts = [layout.tensor * layout.pipeline for layout, _, _ in choice.ranked]
    assert choice.alike > 1 and cuts[0] == min(cuts[: choice.alike])
    assert [choice.place(layout) for layout, _, _ in choice.ranked[: choice.alike]] == [1] * choice.alike


def test_a_place_counts_the_shapes_that_are_faster_beyond_doubt():
    choice = parallelize("llama3-70b", 64, gpu="h100", batch=128, precision="fp8-mixed")
    ordered = sorted(choice.times.values())
    places = [1 + sum(other * choice.spread.near < own for other in ordered) for own in ordered]
    assert places == sorted(places) and places[0] == places[1] == 1 < places[-1]
    last = max(choice.times, key=choice.times.__getitem__)
    tensor, pipeline, context, expert, data = last
    assert choice.place(Layout(tensor, pipeline, data, context=context, expert=expert)) == places[-1]
    assert choice.place(Layout(data=3)) == 0


def test_what_is_not_to_be_chosen_is_in_all_layouts():
    choice = parallelize("gpt-39.1b", 512, batch=1536, precision="fp16", stage=0, recompute="full", sequence=False)
    found = {(layout.stage, layout.recompute, layout.sequence) for layout, _, _ in choice.ranked}
    assert found == {(0, "full", False)}
    for wrong in ({"stage": 4}, {"recompute": "half"}):
        with pytest.raises(ScalingError, match="ZeRO has the stages"):
            parallelize("gpt3", 64, **wrong)


def test_megatron_keeps_gradients_of_16_bits_twice_while_it_updates():
    sums = {precision: memory(1e9, precision=precision).predicted for precision in ("mixed", "fp16")}
    assert sums == {"mixed": 16e9, "fp16": 20e9}
    assert memory(1e9, precision="fp16", data=4, stage=1).predicted == (4 + 16 / 4) * 1e9


def test_a_measured_step_calibrates():
    plain = parallelize("llama3-70b", 128, gpu="h100", batch=256)
    slower = parallelize("llama3-70b", 128, gpu="h100", batch=256, measured=(str(plain.layout), 1.2 * plain.duration))
    parts = next(parts for layout, parts, _ in slower.ranked if layout == plain.layout)
    assert sum(parts.values()) == pytest.approx(1.2 * plain.duration, rel=1e-6)
    widths = [choice.seconds[1] / choice.duration for choice in (plain, slower)]
    assert widths[1] == pytest.approx(widths[0] ** (1 / 3))


@pytest.mark.parametrize("short", ["t8.p16.d1.v1.b1.z1.full", "t4.p16.d2.v1.b1.z1.none"])
def test_the_measured_layout_comes_first_in_the_list(short):
    choice = parallelize("llama3-70b", 128, gpu="h100", batch=256, measured=(short, 25.0))
    (own,) = [row for row in choice.ranked if str(row[0]) == short]
    assert own == choice.ranked[0] and sum(own[1].values()) == pytest.approx(25.0, rel=1e-6)
    assert own[2] == sum(kept(MODELS["llama3-70b"], own[0], "bf16").values())
    (line,) = [line for line in str(choice).splitlines() if line.startswith(short)]
    assert line.split()[1:3] == ["25", "s"]


@pytest.mark.parametrize(
    "layout, words",
    [
        (Layout(3, 5, 7), "tensor = 3 does not divide heads = 32"),
        (Layout(data=16, expert=2), "expert = 2 does not divide experts = 1"),
        (Layout(batches=0), "batches = 0"),
        (Layout(recompute="some"), "some"),
    ],
)
def test_a_layout_that_cannot_be_made_has_no_seconds(layout, words):
    with pytest.raises(ScalingError, match=words):
        step(MODELS["llama3-8b"], layout, GPUS["h100"])


@pytest.mark.parametrize(
    "measured, words",
    [
        (("t8.p2", 1.0), "cannot take 1.0 s: with products at the fastest measured rate a step takes 30"),
        (("t8.p3", 30.0), "t8.p3 cannot divide 512 sequences over 128 GPUs"),
        (("t8.p2.d4", 30.0), "t8.p2.d4 cannot divide"),
        (("t8.p2.t8", 30.0), "t8.p2.t8 is no layout"),
        (("t8.x2", 30.0), "t8.x2 is no layout"),
        (("t8.p", 30.0), "t8.p is no layout"),
        (("", 30.0), " is no layout"),
        (("t0", 30.0), "t0 is no layout"),
    ],
)
def test_measured_steps_that_are_refused(measured, words):
    with pytest.raises(ScalingError, match=words):
        parallelize("llama3-70b", 128, gpu="h100", batch=512, measured=measured)


# ---------------------------------------------------------------- the command

CALL = "parallelize --gpus 64 --batch 256 --gpu h100 --context 4096".split()


def test_the_command_prints_json(capsys):
    assert main([*CALL, "--model", "llama3-8b", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    choice = parallelize("llama3-8b", 64, gpu="h100", batch=256, context=4096)
    assert found["model"]["parameters"] == 8_030_261_248
    assert [found["step_seconds"][end] for end in ("low", "high")] == [*choice.seconds]
    assert [each["short"] for each in found["ranked"]] == [str(layout) for layout, _, _ in choice.ranked]


def test_the_command_reads_a_model_and_a_gpu_of_ones_own(tmp_path, capsys):
    config, gpu = tmp_path / "config.json", tmp_path / "gpu.json"
    config.write_text(json.dumps(HUGGING_FACE))
    gpu.write_text(json.dumps(GPUS["h100"]._asdict()))
    assert main([*CALL, "--config", str(config), "--json"]) == 0
    assert main([*CALL, "--model", "mixtral-8x7b", "--gpu", str(gpu), "--json"]) == 0
    one, other = capsys.readouterr().out.splitlines()
    assert one == other
    gpu.write_text('{"peak": 1}')
    for options, words in (
        (["--config", str(gpu)], "describes a model of the kind None"),
        (["--config", str(tmp_path / "none.json")], "none.json cannot be read"),
        (["--model", "gpt3", "--gpu", str(gpu)], 'describes no GPU: write {"peak": 989e12'),
    ):
        assert main([*CALL, *options]) == 1
        assert words in capsys.readouterr().err
    config.write_text(json.dumps({key: value for key, value in HUGGING_FACE.items() if key != "vocab_size"}))
    assert main([*CALL, "--config", str(config)]) == 1
    assert "has no vocab_size" in capsys.readouterr().err


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_refused_name_lists_known_names_and_the_way_to_give_another(language, capsys):
    for options, words in (
        (["--model", "x"], ("deepseek-v3", "--config config.json")),
        (["--model", "gpt2", "--gpu", "x"], ("mi300x", '--gpu FILE.json = {"peak"')),
        (["--model", "gpt2", "--measured", "t1"], ("t8.p4.v3.b1.z1.none", "=21.5")),
        (["--model", "deepseek-v3", "--measured", "t1.e128=20"], ("expert = 128 ", "tensor × context × data = 64")),
    ):
        assert main([*CALL, *options, "--language", language]) == 1
        refused = capsys.readouterr().err
        assert all(word in refused for word in words)


def test_a_slower_network_takes_longer():
    times = [parallelize("llama3-70b", 128, gpu="h100", network=n).duration for n in ("50 GB/s", "50 Gbit/s")]
    assert times[0] < times[1]
