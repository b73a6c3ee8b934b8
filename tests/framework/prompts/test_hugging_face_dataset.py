"""Datasets in Hugging Face's formats, read by the real library; errors without a hub."""

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants
from omegaconf import OmegaConf

from experiments.config.builders import build
from framework.prompts.hugging_face_dataset import HuggingFaceDataset
from framework.prompts.prompt_source import Text

datasets = pytest.importorskip("datasets", reason="the extra 'data' is not installed")
ROWS = [{"prompt": f"text {number}", "kind": "even" if number % 2 == 0 else "odd"} for number in range(7)]


@pytest.fixture(autouse=True)
def no_network(monkeypatch) -> Iterator[None]:
    """A hub at a closed port; other connections and name lookups fail."""
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    connect, look_up, strangers = socket.socket.connect, socket.getaddrinfo, []

    def connect_here(self, address):
        if address != ("127.0.0.1", 9):
            strangers.append(address)
            raise OSError("no network here")
        connect(self, address)

    def look_up_here(host, *args, **kwargs):
        if host not in ("127.0.0.1", b"127.0.0.1"):
            strangers.append(host)
            raise OSError("no network here")
        return look_up(host, *args, **kwargs)

    monkeypatch.setattr(socket.socket, "connect", connect_here)
    monkeypatch.setattr(socket, "getaddrinfo", look_up_here)
    yield
    assert strangers == []


def source(path: Path | str, **options: object) -> HuggingFaceDataset:
    settings = dict(
        name=None, split=None, field="prompt", reference_field=None, category_field=None, tests=None, prefix="",
        revision=None, streaming=False,
    )  # fmt: skip
    return HuggingFaceDataset(path=str(path), **(settings | options))  # type: ignore[arg-type]


def write(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        datasets.Dataset.from_list(rows).to_parquet(path)
    elif path.suffix == ".csv":
        datasets.Dataset.from_list(rows).to_csv(path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path: Path | str, **options: object) -> list[str]:
    return [text.text for text in source(path, **options).texts()]


EXPECTED = [row["prompt"] for row in ROWS]


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "csv"])
def test_a_file_is_read_in_order(tmp_path, ending):
    file = write(tmp_path / f"facts [1].{ending}", ROWS)
    write(tmp_path / f"facts 1.{ending}", [{"prompt": "what a pattern would find"}])
    texts = list(source(file, category_field="kind").texts())
    assert texts[0] == Text(f"facts [1].{ending}:1", "even", "text 0")
    assert [text.text for text in texts] == EXPECTED
    assert texts == list(source(file, category_field="kind", split="train").texts())
    assert {text.category for text in source(file).texts()} == {"facts [1]"}


def test_a_folder_of_files_is_read_by_split_and_in_order(tmp_path):
    for shard in (2, 0, 1):
        write(tmp_path / "set" / f"train-0000{shard}-of-00003.parquet", ROWS[2 * shard : 2 * shard + 2])
    write(tmp_path / "set" / "test-00000-of-00001.parquet", ROWS[6:])
    assert read(tmp_path / "set", split="train") == EXPECTED[:6]
    (text,) = source(tmp_path / "set", split="test").texts()
    assert text == Text("set:1", "set", "text 6")


def test_a_folder_may_have_configurations(tmp_path):
    for name in ("plain", "fancy"):
        write(tmp_path / f"{name}.jsonl", [{"prompt": name}])
    configs = [{"config_name": name, "data_files": f"{name}.jsonl"} for name in ("plain", "fancy")]
    (tmp_path / "README.md").write_text(f"---\nconfigs: {json.dumps(configs)}\n---\n")
    assert read(tmp_path, name="fancy") == ["fancy"]
    assert read(tmp_path / "plain.jsonl") == ["plain"]
    with pytest.raises(ValueError, match=r"^path .*\['plain', 'fancy'\]"):
        read(tmp_path)


def test_what_was_saved_is_read_again(tmp_path, capfd):
    one, other = datasets.Dataset.from_list(ROWS[:4]), datasets.Dataset.from_list(ROWS[4:])
    one.save_to_disk(tmp_path / "one")
    datasets.DatasetDict(train=one, test=other).save_to_disk(tmp_path / "both")
    assert read(tmp_path / "one") == EXPECTED[:4]
    assert read(tmp_path / "both", split="test") == EXPECTED[4:]
    with pytest.raises(ValueError, match=r"^split is 'train'; allowed: null$"):
        read(tmp_path / "one", split="train")
    with pytest.raises(ValueError, match=r"^split is None; allowed: train, test$"):
        read(tmp_path / "both")
    capfd.readouterr()


def test_the_first_turn_of_a_dialogue_is_taken(tmp_path):
    assert read(write(tmp_path / "turns.parquet", [{"turns": ["one", "two"]}]), field="turns") == ["one"]


def test_rows_are_read_as_they_are_asked_for(tmp_path):
    write(tmp_path / "set" / "train-0.jsonl", ROWS[:1])
    (tmp_path / "set" / "train-1.jsonl").write_text('{"prompt": \n')
    texts = source(tmp_path / "set").texts()
    assert next(texts).text == "text 0"
    with pytest.raises(ValueError, match=r"^path .*set', which cannot be read: .*JSON"):
        next(texts)


def test_local_files_leave_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    assert read(write(tmp_path / "set" / "a.jsonl", ROWS)) == EXPECTED
    assert read(tmp_path / "set") == EXPECTED
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file() and path.stat().st_size]


@pytest.mark.parametrize(
    ("file", "content", "options", "message"),
    [
        ("a.jsonl", '{"prompt": "x"}', {"field": "text"}, r"^field is 'text', which .*row 1 lacks; allowed: prompt"),
        ("a.jsonl", '{"prompt": 3}', {}, r"^field is 'prompt', which holds 3 in .*row 1; allowed: "),
        ("a.jsonl", '{"prompt": "x"}', {"category_field": "kind"}, r"^category_field .*row 1 lacks; allowed: prompt"),
        ("a.jsonl", '{"prompt": "x"}', {"split": "test"}, r"^split is 'test'; allowed: train, or null, since"),
        ("a.jsonl", '{"prompt": "x"}', {"revision": "v1"}, r"^revision is 'v1'; allowed: null"),
        ("a.jsonl", "", {}, r"^path .*a\.jsonl', which cannot be read: .*is it empty\?"),
        ("a.parquet", "no parquet", {}, r"^path .*a\.parquet', which cannot be read: .*[Pp]arquet"),
        ("a.thing", "x", {}, r"^path .*a\.thing', which cannot be read: .*supported"),
    ],
)
def test_what_cannot_be_read_names_its_key(tmp_path, file, content, options, message):
    (tmp_path / file).write_text(content)
    with pytest.raises((ValueError, OSError), match=message) as raised:
        read(tmp_path / file, **options)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("path", ["./nowhere", "/nowhere", "~/nowhere", "a/b/c"])
def test_a_path_that_is_not_there_is_no_hub_name(path):
    with pytest.raises(FileNotFoundError, match=r"^path .*, no such file or folder; allowed: "):
        source(path)


def test_a_hub_name_without_a_hub_fails_within_seconds(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    began = time.monotonic()
    with pytest.raises(ConnectionError, match=r"^path is 'some/facts', .*http://127\.0\.0\.1:9 cannot be reach"):
        source("some/facts")
    assert time.monotonic() - began < 5


@pytest.fixture
def downloaded(tmp_path, monkeypatch, capfd) -> str:
    """Cache left by a download of some/facts, under the hub's name and commit."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    write(tmp_path / "facts" / "train.jsonl", ROWS)
    write(tmp_path / "facts" / "test.jsonl", ROWS[:1])
    datasets.load_dataset(str(tmp_path / "facts"), cache_dir=tmp_path / "cache")
    (tmp_path / "cache" / "facts").rename(tmp_path / "cache" / "some___facts")
    (folder,) = (
        path for path in (tmp_path / "cache" / "some___facts" / "default" / "0.0.0").iterdir() if path.is_dir()
    )
    folder.rename(folder.with_name("0123abcd"))
    capfd.readouterr()
    return "some/facts"


@pytest.mark.parametrize("offline", [True, False])
@pytest.mark.parametrize("streaming", [True, False])
def test_what_was_downloaded_needs_no_hub(downloaded, monkeypatch, offline, streaming):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    texts = list(source(downloaded, split="train", streaming=streaming, category_field="kind").texts())
    assert texts == [Text(f"facts:{n}", row["kind"], row["prompt"]) for n, row in enumerate(ROWS, start=1)]
    assert read(downloaded, split="test", revision="0123abcd") == EXPECTED[:1]


def test_what_was_downloaded_is_not_passed_off_as_another(downloaded):
    with pytest.raises(ConnectionError, match=r"^revision is 'v2', .*; allowed: 0123abcd, which was downloaded"):
        source(downloaded, revision="v2")
    with pytest.raises(ConnectionError, match=r"for config 'other'.*\['default'\]"):
        source(downloaded, name="other")


def test_a_hub_that_answers_is_asked_for_what_was_named(monkeypatch):
    """The library's loader is replaced, since there is no hub to test with."""
    from framework.prompts import hugging_face_dataset

    asked = []

    def load_dataset(*args, **kwargs):
        asked.append((args, kwargs))
        return {"train": iter(ROWS)}

    monkeypatch.setattr(hugging_face_dataset, "why_unreachable", lambda: None)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    assert read("some/facts", name="plain", revision="v2", streaming=True) == EXPECTED
    assert asked == [(("some/facts", "plain"), {"revision": "v2", "streaming": True})]


CONF = Path(__file__).parents[3] / "conf" / "prompts"
SAID = [
    {"from": "human", "value": "one"},
    {"from": "gpt", "value": "two"},
    {"from": "human", "value": "three"},
]
MT_BENCH = {"prompt": ["one", "three"], "category": "writing", "reference": [], "prompt_id": 1}
SPEED = {"question_id": "1", "category": "math", "turns": ["one", "three"], "source": "x", "multiturn": True}


@pytest.mark.parametrize(
    ("name", "file", "row", "category"),
    [
        ("mt_bench", "data/train-00000-of-00001.parquet", MT_BENCH, "writing"),
        ("speed_bench", "qualitative/test-00000-of-00001.parquet", SPEED, "math"),
        ("sharegpt", "conversations.json", {"id": "a", "conversations": SAID}, "conversations"),
        ("lm1b", "plain_text/test/0000.parquet", {"text": "one"}, None),
    ],
)
def test_a_published_layout_is_read_by_its_yaml(name, file, row, category, tmp_path):
    path = tmp_path / file
    if path.suffix == ".json":  # one list
        path.write_text(json.dumps([row]))
    else:
        path = write(path, [row])
    source = OmegaConf.load(CONF / f"{name}.yaml").source
    source.update(path=str(path if name == "sharegpt" else tmp_path), name=None, revision=None)
    (text,) = build(source).texts()
    assert (text.text, text.next_turns) == ("one", () if name == "lm1b" else ("three",))
    assert category in (None, text.category)


@pytest.mark.parametrize("turns", [[{"from": "gpt", "value": "two"}], [{"speaker": "human", "text": "one"}]])
def test_a_dialogue_without_turns_of_the_user_is_named(turns, tmp_path):
    path = tmp_path / "dialogues.json"
    path.write_text(json.dumps([{"conversations": turns}]))
    with pytest.raises(ValueError, match=r"^field is 'conversations', which holds .*; allowed: .* one of the user"):
        list(source(path, field="conversations").texts())
