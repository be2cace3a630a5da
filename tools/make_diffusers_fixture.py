#!/usr/bin/env python3
"""Writes the Wan fixture: a tiny random model in diffusers layout and what diffusers computes with it.

    python tools/make_diffusers_fixture.py [OUT] [--previous-diffusers DIR]

OUT (default tests/fixtures/wan-diffusers) receives

    model/                 a loadable WanPipeline: transformer (F32, sharded), transformer_2 (BF16), scheduler
    expected.safetensors   inputs and results of both experts, both schedulers and the whole guided loop
    README.md              every tensor with dtype, shape and meaning

Needs torch, diffusers >= 0.37, transformers, accelerate and safetensors; no GPU, no network, a few seconds.
The UniPC sigma formula changed in diffusers 0.37. To store the tables of both formulas, name a folder that holds
an older release (`pip install --no-deps --target DIR diffusers==0.36.0`); without it `unipc.old.*` is left out.

Everything random comes from CPU generators with fixed seeds. One machine gives the same bytes each time; another
CPU or torch may differ in the last bits of the results, which is why tests compare with tolerances.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")

import accelerate
import diffusers
import torch
import transformers
from diffusers import FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler, WanPipeline, WanTransformer3DModel
from safetensors.torch import save_file

F32, BF16 = torch.float32, torch.bfloat16

CONFIG = dict(
    patch_size=(1, 2, 2),
    num_attention_heads=2,
    attention_head_dim=12,
    in_channels=4,
    out_channels=4,
    text_dim=32,
    freq_dim=256,
    ffn_dim=32,
    num_layers=2,
    cross_attn_norm=True,
    qk_norm="rms_norm_across_heads",
    eps=1e-6,
    rope_max_seq_len=1024,
)
BOUNDARY = 0.875
FLOW_SHIFT = 3.0
EXPERTS = {"high": ("transformer", 20260201), "low": ("transformer_2", 20260202)}  # weight seeds

LATENT = (1, 4, 3, 6, 8)  # batch, channels, frames, height, width: 36 tokens after the 1x2x2 patches
TEXT = (1, 16, 32)  # batch, rows, text_dim
PROMPT_ROWS = 11  # rows of the positive prompt; the rest is zero padding, which cross-attention sees
STEPS = 12

UNIPC_TABLES = [(40, 12), (50, 5), (30, 3), (20, 5), (4, 5), (1, 5)]  # (steps, shift)
EULER_TABLES = [(30, 5), (50, 5), (4, 5)]
TRAJECTORY_STEPS, TRAJECTORY_SHIFT = 10, 5.0
TRAJECTORY_SAMPLE = (1, 4, 2, 2, 4)


def normal(seed, shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def text_rows(seed, rows):
    """Prompt embeddings as the pipeline makes them: `rows` rows of text, then exact zeros."""
    text = normal(seed, TEXT)
    text[:, rows:] = 0
    return text


@dataclass
class Fixture:
    """The tensors of expected.safetensors in the order they were added, each with one line of meaning."""

    tensors: dict = field(default_factory=dict)
    meaning: dict = field(default_factory=dict)

    def add(self, name, tensor, meaning):
        assert name not in self.tensors, name
        self.tensors[name] = tensor.detach().clone().contiguous()
        self.meaning[name] = meaning


# ---------------------------------------------------------------------------------------------------- the model


def random_expert(seed):
    """A WanTransformer3DModel whose every parameter matters and is exact in bf16.

    Linear weights have variance 1/fan_in, so activations stay near 1; norm weights are near 1; biases and the
    scale-shift tables are far enough from 0 that leaving one out is visible in the output.
    """
    model = WanTransformer3DModel(**CONFIG).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            leaf = name.split(".")[-1]
            if leaf == "scale_shift_table":
                value = 0.3 * noise
            elif leaf == "bias":
                value = 0.1 * noise
            elif parameter.ndim == 1:  # norm weights
                value = 1 + 0.1 * noise
            else:
                value = noise / parameter[0].numel() ** 0.5
            parameter.copy_(value.to(BF16))
    return model


def wan_scheduler(shift):
    """The scheduler that the Wan converter writes next to a checkpoint, apart from its shift."""
    return UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, num_train_timesteps=1000, flow_shift=shift
    )


def write_model(folder):
    high, low = (random_expert(seed) for _, seed in EXPERTS.values())
    pipeline = WanPipeline(
        tokenizer=None,
        text_encoder=None,
        vae=None,
        scheduler=wan_scheduler(FLOW_SHIFT),
        transformer=high,
        transformer_2=low.to(BF16),
        boundary_ratio=BOUNDARY,
    )
    # F32 is 108 KB and is split; BF16 is half of that and stays one file.
    pipeline.save_pretrained(folder, max_shard_size="60KB")


def load_expert(model, expert, dtype):
    return WanTransformer3DModel.from_pretrained(model, subfolder=EXPERTS[expert][0], torch_dtype=dtype).eval()


# ---------------------------------------------------------------------------------------------- single forwards


@torch.no_grad()
def forward(model, latent, timestep, text):
    """Velocity and hidden states after block 0, with inputs in the dtype the pipeline would pass."""
    blocks = []
    hook = model.blocks[0].register_forward_hook(lambda module, args, output: blocks.append(output))
    velocity = model(latent.to(model.dtype), timestep, text.to(model.dtype), return_dict=False)[0]
    hook.remove()
    return velocity, blocks[0]


def add_forwards(fixture, model):
    cases = {  # an integer timestep as UniPC passes it, a fractional one as Euler does
        "high": (normal(1, LATENT), torch.tensor([937]), text_rows(101, TEXT[1])),
        "low": (normal(2, LATENT), torch.tensor([421.25]), text_rows(102, 7)),
    }
    for expert, (latent, timestep, text) in cases.items():
        integer = timestep.dtype == torch.int64
        kind = "passed as int64, as UniPC gives it" if integer else "fractional, as Euler gives it"
        rows = "no zero rows" if expert == "high" else "rows 7 to 15 are zero"
        fixture.add(f"forward.{expert}.latent", latent, f"input of `{EXPERTS[expert][0]}`")
        fixture.add(f"forward.{expert}.timestep", timestep.to(F32), kind)
        fixture.add(f"forward.{expert}.text", text, f"text rows before the text embedder; {rows}")
        for label, dtype in (("f32", F32), ("bf16", BF16)):
            velocity, block0 = forward(load_expert(model, expert, dtype), latent, timestep, text)
            fixture.add(f"forward.{expert}.{label}.block0", block0, "hidden states after block 0: batch, token, width")
            fixture.add(f"forward.{expert}.{label}.velocity", velocity, "output")

    # One timestep per token, as image-to-video with `expand_timesteps` passes it: frame 0 is clean.
    latent, timestep, text = cases["high"]
    tokens_per_frame = LATENT[3] * LATENT[4] // 4
    per_token = timestep.to(F32).repeat(1, LATENT[2] * tokens_per_frame)
    per_token[:, :tokens_per_frame] = 0
    meaning = "one timestep per token, 0 for the first frame; other inputs are `forward.high.*`"
    fixture.add("forward.per_token.timestep", per_token, meaning)
    for label, dtype in (("f32", F32), ("bf16", BF16)):
        velocity, block0 = forward(load_expert(model, "high", dtype), latent, per_token, text)
        fixture.add(f"forward.per_token.{label}.block0", block0, "hidden states after block 0")
        fixture.add(f"forward.per_token.{label}.velocity", velocity, "output")


# --------------------------------------------------------------------------------------------------- schedulers


def unipc_table(steps, shift):
    scheduler = wan_scheduler(float(shift))
    scheduler.set_timesteps(steps)
    return scheduler.sigmas, scheduler.timesteps


# Runs in a child process whose diffusers is the older one. Sigmas travel as hexadecimal floats, without loss.
PREVIOUS = """
import json, sys
sys.path.insert(0, sys.argv[1])
import diffusers
from diffusers import UniPCMultistepScheduler
tables = []
for steps, shift in json.loads(sys.argv[2]):
    scheduler = UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, num_train_timesteps=1000, flow_shift=float(shift)
    )
    scheduler.set_timesteps(steps)
    tables.append([[s.hex() for s in scheduler.sigmas.tolist()], scheduler.timesteps.tolist()])
print(json.dumps([diffusers.__version__, tables]))
"""


def previous_unipc_tables(folder):
    """Version of the diffusers in `folder` and its UniPC tables."""
    command = [sys.executable, "-c", PREVIOUS, str(Path(folder).resolve()), json.dumps(UNIPC_TABLES)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    version, tables = json.loads(output.splitlines()[-1])
    tables = [(torch.tensor([float.fromhex(s) for s in sigmas]), torch.tensor(times)) for sigmas, times in tables]
    return version, tables


def sigma_formula(sigmas):
    """"new": 1 - 1e-6 first, from linspace(1, 0.001); "old": below that, from linspace(0.999, 0)."""
    return "new" if abs(sigmas[0].item() - 0.999999) < 2e-7 else "old"


def add_unipc_tables(fixture, tables):
    formula = sigma_formula(tables[0][0])
    for (steps, shift), (sigmas, timesteps) in zip(UNIPC_TABLES, tables):
        name = f"unipc.{formula}.steps{steps}_shift{shift}"
        fixture.add(f"{name}.sigmas", sigmas, "UniPC sigmas, the final 0 included")
        fixture.add(f"{name}.timesteps", timesteps, "UniPC timesteps, truncated to integers")
    return formula


def add_euler_tables(fixture):
    for steps, shift in EULER_TABLES:
        scheduler = FlowMatchEulerDiscreteScheduler(shift=float(shift))
        kinds = {  # name: (arguments of set_timesteps, how the sigmas come about)
            "double_shift": (dict(num_inference_steps=steps), "`set_timesteps(n)`, the shift acts twice"),
            "single_shift": (
                dict(sigmas=torch.linspace(1, 1 / steps, steps, dtype=torch.float64).tolist()),
                "given sigmas linspace(1, 1/n, n)",
            ),
            "single_shift_1000": (
                dict(sigmas=torch.linspace(1, 1 / 1000, steps, dtype=torch.float64).tolist()),
                "given sigmas linspace(1, 1/1000, n)",
            ),
        }
        for kind, (arguments, origin) in kinds.items():
            scheduler.set_timesteps(**arguments)
            name = f"euler.{kind}.steps{steps}_shift{shift}"
            fixture.add(f"{name}.sigmas", scheduler.sigmas, f"{origin}; the final 0 included")
            fixture.add(f"{name}.timesteps", scheduler.timesteps, "1000 sigma, fractional")


def add_trajectories(fixture):
    """The solvers alone: fixed velocities instead of a model."""
    start = normal(11, TRAJECTORY_SAMPLE)
    velocities = normal(12, (TRAJECTORY_STEPS, *TRAJECTORY_SAMPLE)).to(BF16)  # exact in both dtypes
    fixture.add("trajectory.start", start, "sample before the first step")
    meaning = "one velocity per step; exact in bf16, so both runs use the same"
    fixture.add("trajectory.velocities", velocities.to(F32), meaning)
    makers = {
        "unipc": lambda: wan_scheduler(TRAJECTORY_SHIFT),
        "euler": lambda: FlowMatchEulerDiscreteScheduler(shift=TRAJECTORY_SHIFT),
    }
    for solver, make in makers.items():
        for label, dtype in (("f32", F32), ("bf16", BF16)):
            scheduler = make()
            scheduler.set_timesteps(TRAJECTORY_STEPS)
            scheduler.set_begin_index(0)
            sample, samples = start, []
            for t, velocity in zip(scheduler.timesteps, velocities.to(dtype)):
                sample = scheduler.step(velocity, t, sample, return_dict=False)[0]
                samples.append(sample)
            if label == "f32":
                fixture.add(f"trajectory.{solver}.sigmas", scheduler.sigmas, "schedule of this trajectory")
                fixture.add(f"trajectory.{solver}.timesteps", scheduler.timesteps, "schedule of this trajectory")
            meaning = f"sample after each step, velocities passed as {label}"
            fixture.add(f"trajectory.{solver}.{label}.samples", torch.stack(samples), meaning)


# --------------------------------------------------------------------------------------------- the guided loop


def run_pipeline(pipeline, latents, positive, negative, **arguments):
    """Latents after every step, timesteps, and which transformer ran how often in each step."""
    calls, hooks = [], []
    for index, module in enumerate((pipeline.transformer, pipeline.transformer_2)):
        if module is not None:
            hooks.append(module.register_forward_pre_hook(lambda module, args, index=index: calls.append(index)))
    after, times, expert, count = [], [], [], []

    def on_step_end(pipeline, step, t, values):
        assert len(set(calls)) == 1
        expert.append(calls[0])
        count.append(len(calls))
        calls.clear()
        after.append(values["latents"])
        times.append(t)
        return values

    pipeline.set_progress_bar_config(disable=True)
    final = pipeline(
        prompt_embeds=positive,
        negative_prompt_embeds=negative,
        latents=latents,
        height=8 * LATENT[3],
        width=8 * LATENT[4],
        num_frames=4 * (LATENT[2] - 1) + 1,
        num_inference_steps=STEPS,
        output_type="latent",
        callback_on_step_end=on_step_end,
        **arguments,
    ).frames
    for hook in hooks:
        hook.remove()
    assert torch.equal(final, after[-1])
    counts = (torch.tensor(values, dtype=torch.int32) for values in (expert, count))
    return torch.stack(after), torch.stack(times), *counts


def load_pipeline(model, dtype, scheduler=None, **overrides):
    components = dict(tokenizer=None, text_encoder=None, vae=None, **overrides)
    if scheduler is not None:
        components["scheduler"] = scheduler
    return WanPipeline.from_pretrained(model, torch_dtype=dtype, **components)


def add_loops(fixture, model):
    latents = normal(31, LATENT)
    positive, negative = text_rows(32, PROMPT_ROWS), text_rows(33, 4)
    fixture.add("loop.latents", latents, "initial noise of every loop")
    fixture.add("loop.prompt_embeds", positive, f"text rows of the prompt; zero from row {PROMPT_ROWS} on")
    fixture.add("loop.negative_prompt_embeds", negative, "text rows of the negative prompt; zero from row 4 on")

    euler, euler_bf16 = FlowMatchEulerDiscreteScheduler(shift=5.0), FlowMatchEulerDiscreteScheduler(shift=5.0)
    both = dict(guidance_scale=4.0, guidance_scale_2=3.0)
    ti2v = dict(transformer_2=None, boundary_ratio=None, expand_timesteps=True)
    loops = {  # name: (description, pipeline, call arguments)
        "unipc": ("UniPC, shift 3, guidance 4 and 3", load_pipeline(model, F32), both),
        "unipc_no_guidance": (
            "UniPC, shift 3, guidance 1 and 3: guidance_scale alone decides, so it is off in all steps",
            load_pipeline(model, F32),
            dict(guidance_scale=1.0, guidance_scale_2=3.0),
        ),
        "euler": ("Euler, shift 5 (twice), guidance 4 and 3", load_pipeline(model, F32, euler), both),
        "expand_timesteps": (
            "`transformer` alone, expand_timesteps, UniPC, shift 5, guidance 5",
            load_pipeline(model, F32, wan_scheduler(5.0), **ti2v),
            dict(guidance_scale=5.0),
        ),
        "unipc_bf16": ("as `unipc` with bf16 experts; latents stay fp32", load_pipeline(model, BF16), both),
        "euler_bf16": (
            "as `euler` with bf16 experts; latents are bf16 after step 0",
            load_pipeline(model, BF16, euler_bf16),
            both,
        ),
    }
    for name, (description, pipeline, arguments) in loops.items():
        after, timesteps, expert, calls = run_pipeline(pipeline, latents, positive, negative, **arguments)
        meaning = f"{description}: latents after each of {STEPS} steps, the last is the result"
        fixture.add(f"loop.{name}.latents_after", after, meaning)
        fixture.add(f"loop.{name}.sigmas", pipeline.scheduler.sigmas, "schedule, the final 0 included")
        fixture.add(f"loop.{name}.timesteps", timesteps, "timestep of each step")
        fixture.add(f"loop.{name}.expert", expert, "0: `transformer` ran, 1: `transformer_2`")
        fixture.add(f"loop.{name}.calls", calls, "forwards in each step: 2 with guidance, 1 without")
        assert after.isfinite().all() and after.abs().max() < 1e3, name
        if pipeline.transformer_2 is not None:
            assert set(expert.tolist()) == {0, 1}, name


# --------------------------------------------------------------------------------------------------- the README

README = """# Wan model in diffusers layout, with expected results

Made by `tools/make_diffusers_fixture.py`, which runs the diffusers library; no file here is written by hand.

`model/` is a random two-expert model as `WanPipeline.save_pretrained` writes it. `transformer` (high noise) is F32 in
{shards} shards with an index, `transformer_2` (low noise) one BF16 file; all values of both are exact in bf16. Heads 2, head_dim 12
(width 24), 2 layers, ffn 32, 4 latent channels, text_dim 32, freq_dim 256, boundary_ratio 0.875, UniPC with flow_shift 3.
Tokenizer, text encoder and VAE are `[null, null]`.

`expected.safetensors` holds what diffusers computes with it on a CPU, one thread.

- `f32`: `from_pretrained(torch_dtype=torch.float32)`. `bf16`: the same with `torch.bfloat16`, where diffusers keeps the time
  embedder, `norm2` and all scale-shift tables in fp32.
- Shapes: latents and velocities batch, channel, frame, height, width; hidden states batch, token, width;
  token = (frame*3 + y)*4 + x for this 3x6x8 latent.
- Relative-norm tolerances, with the distance of an independent float64 implementation in brackets: fp32 forwards 1e-4 (5e-6), fp32 loops
  1e-4 (2e-6), fp32 trajectories 1e-5 (2e-7). With the same bf16 roundings: bf16 forwards 2.5e-2 (5e-3), bf16 loops 2.5e-2 (8e-3).
  Sigmas agree to 1e-7; integers are exact.

Three roundings to know:

- A 0-dim fp32 tensor times a bf16 tensor gives bf16. On the CPU, and for Euler also on a GPU, torch rounds that scalar to bf16 *before* the product too:
  `trajectory.euler.bf16` is bit for bit x + bf16(bf16(sigma_next - sigma) v), rounded to bf16 again; `trajectory.unipc.bf16` has
  x0 = x - bf16(bf16(sigma) v). UniPC on a GPU keeps the scalar in fp32 (its sigmas stay on the CPU), which moves this trajectory by up to 2e-3.
- The guidance scale is a Python number: it is not rounded, but each of the three operations of guidance is.
- The CPU attention of torch rounds exp(score - max) to bf16 before the product with V in bf16 runs.

## Versions

{versions}

UniPC sigma formula of this diffusers: `{formula}`. `new` (diffusers 0.37 and later): x = linspace(1, 0.001, n+1) without its last,
sigma = s x / (1 + (s-1) x), and a first sigma of 1 becomes 0.999999. `old` (diffusers 0.36 and before): x =
linspace(0.999, 0, n+1) without its last, the same shift.{old_note}
All loops and trajectories use the `{formula}` formula.

## Regenerate

    python -m venv venv
    venv/bin/pip install torch diffusers transformers accelerate safetensors
    venv/bin/pip install --no-deps --target previous diffusers==0.36.0
    venv/bin/python tools/make_diffusers_fixture.py tests/fixtures/wan-diffusers --previous-diffusers previous

Seeds are fixed. The same machine and versions give the same bytes; elsewhere results move within the tolerances.
`made_with` in the metadata of `expected.safetensors` is JSON: versions, and the sigma formula of the diffusers that ran.

## Tensors of expected.safetensors

{tables}"""

SECTIONS = {
    "forward": "Single forwards. Each input goes to the model in the model's dtype, the timestep unchanged.",
    "unipc": "UniPC schedules, named by formula, steps and shift.",
    "euler": "FlowMatchEulerDiscreteScheduler schedules. `double_shift` is what diffusers does by default; the others are what it does when sigmas are passed.",
    "trajectory": f"Both solvers without a model, {TRAJECTORY_STEPS} steps, shift {TRAJECTORY_SHIFT:g} (Euler: `double_shift`). With bf16 velocities UniPC returns fp32 samples, Euler bf16.",
    "loop": f"`WanPipeline.__call__` with given latents and prompt embeddings, {STEPS} steps, output_type latent. v = v_uncond + g (v_cond - v_uncond), the conditional forward first.",
}


def dtype_name(tensor):
    return {F32: "F32", BF16: "BF16", torch.int64: "I64", torch.int32: "I32"}[tensor.dtype]


def readme(fixture, versions, formula, previous, shards):
    tables = []
    for section, note in SECTIONS.items():
        rows = [f"### {section}\n\n{note}\n\n| name | dtype | shape | meaning |\n|---|---|---|---|"]
        for name, tensor in fixture.tensors.items():
            if name.split(".")[0] == section:
                rows.append(f"| `{name}` | {dtype_name(tensor)} | {list(tensor.shape)} | {fixture.meaning[name]} |")
        tables.append("\n".join(rows) + "\n")
    return README.format(
        shards=shards,
        versions="\n".join(f"- {name} {version}" for name, version in versions.items()),
        formula=formula,
        old_note=f" `unipc.old.*` comes from diffusers {previous}." if previous else " `unipc.old.*` was not made this time.",
        tables="\n".join(tables),
    )


# --------------------------------------------------------------------------------------------------------- main


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", nargs="?", type=Path, default=Path("tests/fixtures/wan-diffusers"))
    parser.add_argument("--previous-diffusers", metavar="DIR", help="folder with diffusers <= 0.36, for `unipc.old.*`")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    diffusers.utils.logging.disable_progress_bar()
    diffusers.utils.logging.set_verbosity_error()
    warnings.filterwarnings("ignore", "`torch_dtype` is deprecated", FutureWarning)

    model = arguments.out / "model"
    if model.exists():
        shutil.rmtree(model)
    model.mkdir(parents=True)
    write_model(model)

    fixture = Fixture()
    add_forwards(fixture, model)
    formula = add_unipc_tables(fixture, [unipc_table(*table) for table in UNIPC_TABLES])
    previous = None
    if arguments.previous_diffusers:
        previous, tables = previous_unipc_tables(arguments.previous_diffusers)
        assert add_unipc_tables(fixture, tables) != formula, "both releases use the same sigma formula"
    add_euler_tables(fixture)
    add_trajectories(fixture)
    add_loops(fixture, model)

    versions = {
        "diffusers": diffusers.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "accelerate": accelerate.__version__,
        "python": platform.python_version(),
    }
    # One metadata entry: safetensors writes several in random order, and the bytes should not change.
    made = json.dumps({"unipc_sigma_formula": formula, "unipc_old_diffusers": previous, **versions})
    save_file(fixture.tensors, arguments.out / "expected.safetensors", metadata={"made_with": made})
    shards = len(list((model / "transformer").glob("*.safetensors")))
    (arguments.out / "README.md").write_text(readme(fixture, versions, formula, previous, shards))

    for path in arguments.out.rglob("*"):  # plain readable files, whatever each writer chose
        path.chmod(0o755 if path.is_dir() else 0o644)
    total = sum(file.stat().st_size for file in arguments.out.rglob("*") if file.is_file())
    print(f"{arguments.out}: {len(fixture.tensors)} tensors, {total / 1000:.0f} KB in all")


if __name__ == "__main__":
    main()
