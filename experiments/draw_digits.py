"""Images as tokens: digits completed by plain and speculative decoding, drawn below the real ones.

Run `python -m experiments.draw_digits`; conf/draw_digits.yaml sets the models.
"""

if __name__ == "__main__":  # before the imports, which take seconds
    from experiments.config.command import run_command

    run_command("draw_digits")
    raise SystemExit

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hydra.core.hydra_config import HydraConfig
from matplotlib.figure import Figure
from omegaconf import DictConfig

from experiments.config.builders import (
    build,
    build_engine,
    build_prompts,
    build_sampling,
    build_stopping,
    build_target,
    check_basics,
    check_parts,
    compile_is_true,
)
from experiments.config.cli_errors import one_line_errors, status
from experiments.config.command import command
from experiments.corpora.digits import LEVELS, SIDE, Digits, levels_of
from experiments.reporting.plots.picture_style import INK
from framework.decoding.autoregressive import Autoregressive


@dataclass(frozen=True)
class Drawn:
    """Three texts per prompt, and the counts of speculative decoding.

    Attributes:
        rows: texts by label in the figure: real, target, speculative.
        given: pixel rows in each prompt.
        words: one-line summary of the counts.
    """

    rows: dict[str, list[str]]
    given: int
    words: str


def draw(cfg: DictConfig) -> Drawn:
    """Decode the same prompts with the same seeds, plainly and speculatively.

    Raises:
        ValueError, OSError, ImportError: the message names the yaml key.
    """
    check_basics(
        cfg, {"max_new_tokens": 1, "seed": 0}, or_null=["prompts.count", "prompts.max_prompt_tokens", "target.context"]
    )
    source = build(cfg.prompts.source)
    if not isinstance(getattr(source, "rows", None), int):
        raise ValueError(f"prompts.source is {cfg.prompts.source._target_}; allowed: that of prompts=digits")
    factory, sampling = check_parts(cfg, {"drafter": cfg.drafter})["drafter"], build_sampling(cfg)
    compiled = compile_is_true(cfg)
    with status("loading the models"):
        target = build_target(cfg)
        drafter = factory(target=target)
    prompts = build_prompts(cfg, target).prompts
    whole = {text.name: text.text for text in Digits(split=source.split, rows=SIDE).texts()}
    given, seeds = [list(prompt.tokens) for prompt in prompts], [cfg.seed + i for i in range(len(prompts))]
    stopping = build_stopping(cfg, target)
    decoder = build_engine(cfg, drafter, target, sampling, compiled=compiled)
    with status("drawing"):
        plain = Autoregressive(target=target, sampling=sampling).generate(given, stopping=stopping, seeds=seeds)
        speculative = decoder.generate(given, stopping=stopping, seeds=seeds, detailed=True)
    decoded = {
        name: [
            target.tokenizer.decode(start + new, skip_special_tokens=True)
            for start, new in zip(given, its, strict=True)
        ]
        for name, its in (("target", plain.tokens), ("speculative", speculative.tokens))
    }
    assert speculative.tally is not None
    metrics = speculative.tally.metrics()
    broken = {name: sum(levels_of(text) is None for text in texts) for name, texts in decoded.items()}
    numbers = [
        f"{name} {metrics[name]:.3f}"
        for name in ("alpha/overlap", "alpha/empirical", "tau")
        if metrics[name] is not None
    ]
    share, levels = _difference(decoded["target"], decoded["speculative"], given=source.rows)
    words = (
        f"{', '.join(numbers)}; no whole image: {broken['target']} of {len(prompts)} plain, {broken['speculative']} "
        f"speculative; pixels that differ from plain decoding: {share:.1%}, by {levels:.3f} levels on average of all"
    )
    return Drawn({"real": [whole[prompt.name] for prompt in prompts]} | decoded, source.rows, words)


def _difference(plain: list[str], other: list[str], *, given: int) -> tuple[float, float]:
    """Share of decoded pixels that differ between two lists of images, and the mean absolute difference in levels."""
    difference = np.abs([_pixels(a) - _pixels(b) for a, b in zip(plain, other, strict=True)])[:, given:]
    return (difference > 0).sum() / max(1, difference.size), difference.sum() / max(1, difference.size)


def picture(drawn: Drawn) -> Figure:
    """Draw a column per prompt, with a line below the given pixel rows."""
    columns = len(drawn.rows["real"])
    figure = Figure(figsize=(0.55 * columns + 1, 0.62 * len(drawn.rows)), layout="constrained")
    axes = figure.subplots(len(drawn.rows), columns, squeeze=False)
    for its_axes, (name, texts) in zip(axes, drawn.rows.items(), strict=True):
        for ax, text in zip(its_axes, texts, strict=True):
            ax.imshow(_pixels(text), cmap="Greys", vmin=0, vmax=len(LEVELS) - 1)
            ax.set(xticks=[], yticks=[])
            ax.spines[:].set_visible(False)
            if name != "real" and drawn.given:
                ax.axhline(drawn.given - 0.5, color="#D55E00", linewidth=0.8)
        its_axes[0].set_ylabel(name, color=INK, fontsize=8, rotation=0, ha="right", va="center")
    return figure


def _pixels(text: str) -> np.ndarray:
    """[8, 8] grey levels; 0 after a text's end and for characters that are no pixel."""
    known = [LEVELS.find(character) for character in text[1 : SIDE * SIDE + 1]]
    return np.array([max(level, 0) for level in known] + [0] * (SIDE * SIDE - len(known))).reshape(SIDE, SIDE)


@command("draw_digits")
def main(cfg: DictConfig) -> None:
    with one_line_errors(interrupted="nothing was kept"):
        drawn = draw(cfg)
        file = Path(HydraConfig.get().runtime.output_dir) / "digits.png"
        picture(drawn).savefig(file, dpi=150)
        print(drawn.words)
        print(f"The picture: {file}")
