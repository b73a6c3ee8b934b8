"""Generating on a terminal and in a pipe: what is shown, and that a prompt arrives as it was typed."""

import io
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from rich.console import Console

from experiments import generate
from experiments.api import Pair, load_pair
from experiments.config.command_line import literal

ROOT = Path(generate.__file__).parents[1]
PROMPT = "import os\nimport sys\nimport "
GREEDY = ("drafter=prompt_lookup", "sampling.temperature=0", "max_new_tokens=24", "gamma=4")
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture(scope="module")
def pair() -> Pair:
    return load_pair(*GREEDY)


def run(monkeypatch, capfd, *arguments: str, piped_in: str = "") -> tuple[str, str]:
    """Call the command as the shell would, without a terminal; returns what it wrote to stdout and to stderr."""
    monkeypatch.setattr(sys, "argv", ["generate", *arguments])
    monkeypatch.setattr(sys, "stdin", io.StringIO(piped_in))
    generate.main()
    captured = capfd.readouterr()
    return captured.out, captured.err


@pytest.mark.slow
def test_a_pipe_gets_what_was_decoded_and_nothing_else(pair, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    expected = pair.generate(PROMPT)
    out, err = run(monkeypatch, capfd, f"prompt={PROMPT}", *GREEDY)
    assert out == expected.text + "\n"
    passes = expected.target_passes
    assert f"24 tokens in {passes} target passes instead of 23 · α " in err and "\x1b" not in err
    assert list(tmp_path.iterdir()) == []  # nothing is kept


@pytest.mark.slow
def test_a_prompt_comes_from_a_file_or_is_piped_in(pair, tmp_path, monkeypatch, capfd):
    expected = pair.generate(PROMPT).text + "\n"
    (tmp_path / "prompt.py").write_text(PROMPT)
    assert run(monkeypatch, capfd, f"prompt_file={tmp_path / 'prompt.py'}", *GREEDY)[0] == expected
    assert run(monkeypatch, capfd, *GREEDY, piped_in=PROMPT)[0] == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ([], "prompt_file"),
        (["prompt=a", "prompt_file=b"], "both set"),
        (["prompt_file=nowhere.txt"], "prompt_file is 'nowhere.txt': No such file or directory; allowed: a text file"),
        (["prompt_file=/"], "prompt_file is '/': Is a directory; allowed: a text file in UTF-8"),
        (["prompt=a", "max_new_tokens=0"], "max_new_tokens is 0"),
    ],
)
def test_what_is_wrong_is_one_line(wrong, says, monkeypatch, capfd):
    with pytest.raises(SystemExit) as stopped:
        run(monkeypatch, capfd, *wrong)
    err = capfd.readouterr().err
    assert stopped.value.code == 1 and says in err and err.count("\n") == 1


@pytest.mark.parametrize(
    "prompt",
    [
        "def quicksort(",
        "it's",
        'say "a, b" = {c: [d]}',
        "end\\",
        "a\\'b\\\\",
        "${not.a.key} $5",
        "null",
        " x\n\ty ",
        "???",
        "雪",
    ],
)
def test_a_prompt_arrives_as_it_was_typed(prompt, monkeypatch):
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        cfg = compose("generate", [literal(f"prompt={prompt}")])
    assert generate.prompt_of(cfg) == prompt


def live(pair, **console) -> str:
    written = io.StringIO()
    generate.show_live(pair.stream(PROMPT), Console(file=written, force_terminal=True, width=60, **console))
    return written.getvalue()


def test_a_terminal_shows_prompt_and_text_in_colours_with_live_tau(pair):
    shown, expected = live(pair), pair.generate(PROMPT)
    taus = [float(tau) for tau in re.findall(r"τ (\d+\.\d\d)", CONTROL.sub("", shown))]
    assert len(set(taus)) > 1 and taus[-1] == round(expected.tau, 2)
    assert "\x1b[32m" in shown and "\x1b[36m" in shown  # accepted and bonus
    # The lines that stay are those of the text: live ones are erased.
    stays = re.sub(r"[^\n]*\r\x1b\[2K", "", shown)
    for line in str(expected).split("\n"):
        assert line in CONTROL.sub("", stays)


@pytest.mark.slow
def test_without_colours_what_was_replaced_is_still_underlined(pair, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    shown = live(load_pair("drafter=prompt_lookup", "max_new_tokens=24"))
    assert set(re.findall(r"\x1b\[([0-9;]*)m", shown)) <= {"0", "2", "4"} and "\x1b[4m" in shown


def test_control_characters_of_a_model_do_not_reach_the_terminal():
    assert generate._visible("a\x1b[2Jb\x07\x9b\n\tc\x7f") == "a␛[2Jb␇\ufffd\n\tc␡"


@pytest.mark.slow
def test_on_a_real_terminal_the_text_stays_and_the_status_goes():
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "experiments.generate", f"prompt={PROMPT}", *GREEDY]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, env=environment)
    os.close(theirs)
    seen = b""
    while True:
        try:
            read = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not read:
            break
        seen += read
    assert process.wait(timeout=300) == 0, seen
    os.close(ours)
    shown = seen.decode()
    assert "\x1b[32m" in shown and "accepted" in shown
    last = CONTROL.sub("", shown.rstrip().splitlines()[-1])
    assert last.startswith("24 tokens in ") and "tokens/s" in last
