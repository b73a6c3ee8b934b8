"""The record's keys: written with a version, and read back from files with and without one."""

from experiments.results.record import VERSION, Record

# As it was written before records had a version.
FIRST = {
    "name": "ngram-T0-g4",
    "study": "compare",
    "point": {"drafter": "ngram", "gamma": 4},
    "metrics": {"tau": 1.5},
    "seconds": 2.0,
    "prompts": [{"name": "a"}],
    "commit": "0123abc",
    "of_a_plug_in": {"kept": True},
}


def test_a_file_without_a_version_is_of_the_first():
    record = Record.from_json(FIRST)
    assert record.version == 1 and record.name == "ngram-T0-g4" and record.metrics == {"tau": 1.5}
    assert record.counts == {} and record.machine is None and record.others == {"of_a_plug_in": {"kept": True}}


def test_what_was_read_is_written_again_with_all_its_keys():
    content = Record.from_json(FIRST).to_json()
    assert content["version"] == 1 and content["of_a_plug_in"] == {"kept": True} and "machine" not in content
    assert {key: content[key] for key in FIRST} == FIRST
    assert Record.from_json(content) == Record.from_json(FIRST)


def test_a_new_record_says_its_version():
    content = Record(name="ngram-T0-g4", point={"gamma": 4}).to_json()
    assert content["version"] == VERSION == 2 and "others" not in content
    assert Record.from_json(content) == Record(name="ngram-T0-g4", point={"gamma": 4})
