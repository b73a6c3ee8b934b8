"""Texts from a dataset in one of Hugging Face's formats: from a hub by name, or from this machine."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from glob import escape
from pathlib import Path
from types import ModuleType
from typing import Any

from framework.hub import why_unreachable
from framework.prompts.prompt_source import Text, key
from framework.prompts.record import Fields


class HuggingFaceDataset:
    """One text per row of one split, in the dataset's order. No code that comes with a dataset is run.

    Rows are read as they are asked for: of files on this machine, and of a hub's under `streaming`, nothing is copied.
    """

    def __init__(
        self,
        *,
        path: str,
        name: str | None,
        split: str | None,
        field: str,
        reference_field: str | None,
        category_field: str | None,
        prefix: str,
        revision: str | None,
        streaming: bool,
    ):
        """
        Args:
            path: a folder written by save_to_disk; a file or folder of JSON, CSV or Parquet; or a name on a hub, which
                can be read offline once it was downloaded.
            name: the configuration, of a dataset that has several.
            split: None takes the only one there is.
            field: whose value is the text, or a list of strings, the turns of a dialogue.
            reference_field: whose value is what is to be answered; None where that is not known.
            category_field: whose value is the category; None puts all texts under the dataset's name.
            prefix: goes before every text, such as the task that a T5 is told.
            revision: the hub's commit, tag or branch; None takes the newest.
            streaming: whether to read rows from the hub as needed and to keep nothing, instead of downloading first.

        Raises:
            ImportError: the package `datasets` is not installed.
            FileNotFoundError: no such file or folder.
            ConnectionError: a name that was not downloaded yet, and no hub; known within seconds.
            ValueError: a revision of something on this machine.
        """
        _library()
        self.path = path
        self.name = name
        self.split = split
        self._fields = Fields(field, reference_field, category_field)
        self._prefix = prefix
        self.revision = revision
        self.streaming = streaming
        self._place = Path(path).expanduser()
        self._is_here = self._place.exists()
        if self._is_here and revision is not None:
            raise ValueError(f"{key('revision')} is {revision!r}; allowed: null, since {path!r} is on this machine")
        if not self._is_here and (path.startswith((".", "/", "~")) or path.count("/") > 1):
            raise FileNotFoundError(f"{key('path')} is {path!r}: no such file or folder; give one, or a hub name")
        self._no_hub = None if self._is_here else why_unreachable()
        if self._no_hub:
            self._downloaded()

    def texts(self) -> Iterator[Text]:
        """Yield the texts, named by dataset and row.

        Raises:
            OSError, ValueError: the dataset cannot be read, or a row holds no text; the message names the yaml key.
        """
        name = self._place.name
        category = self._place.stem if self._place.is_file() else name
        number = 0
        for number, row in enumerate(self._rows(), start=1):
            text = self._fields.text_of(
                row, name=f"{name}:{number}", category=category, place=f"{self.path}, row {number}"
            )
            yield replace(text, text=self._prefix + text.text)
        if number == 0:
            raise ValueError(f"{self.path} has no rows; {key('path')} and {key('split')} need at least one")

    def _rows(self) -> Iterator[Mapping[str, Any]]:
        splits = self._downloaded() if self._no_hub else self._loaded()
        if self.split not in splits and (self.split is not None or len(splits) > 1):
            names = ", ".join(split for split in splits if split)
            raise ValueError(
                f"{key('split')} is {self.split!r}; allowed: {names or 'null'}"
                + (", or null, since there is only one" if names and len(splits) == 1 else "")
            )
        rows = splits[self.split] if self.split in splits else next(iter(splits.values()))
        with self._named_errors():
            yield from rows

    def _loaded(self) -> Mapping[str | None, Any]:
        """The rows of every split; a split saved alone may have no name."""
        datasets, here = _library(), str(self._place)
        with self._named_errors():
            if (self._place / "dataset_dict.json").is_file():
                return datasets.load_from_disk(here)
            if (self._place / "state.json").is_file():
                rows = datasets.load_from_disk(here)
                return {rows.split and str(rows.split): rows}
            if self._place.is_file():
                # Through its folder: asked for a file, the library would tell a server that somebody did.
                folder, file = str(self._place.absolute().parent), escape(self._place.name)
                return datasets.load_dataset(folder, data_files=file, streaming=True)
            if self._is_here:
                return datasets.load_dataset(here, self.name, streaming=True)
            return datasets.load_dataset(self.path, self.name, revision=self.revision, streaming=self.streaming)

    def _downloaded(self) -> Mapping[str | None, Any]:
        """What an earlier download has left on this machine; asks no hub.

        Raises:
            ConnectionError: nothing, or another revision.
        """
        # What load_dataset itself falls back on, but only after asking the hub for a minute.
        from datasets.packaged_modules.cache.cache import Cache

        problem = f"{key('path')} is {self.path!r}: no such file or folder, {self._no_hub}, and no download fits"
        try:
            dataset_name = self.path.split("/")[-1]
            cache = Cache(
                repo_id=self.path, dataset_name=dataset_name, config_name=self.name, version="auto", hash="auto"
            )
        except ValueError as error:
            raise ConnectionError(f"{problem}: {' '.join(str(error).split())}") from error
        if self.revision not in (None, cache.hash):
            raise ConnectionError(f"{problem}: {key('revision')} is {self.revision!r}, downloaded is {cache.hash}")
        return cache.as_dataset()

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Turn whatever a library raises over foreign files into one line that names the yaml key."""
        try:
            yield
        except Exception as error:
            kind = OSError if isinstance(error, OSError) else ValueError
            reason = " ".join(str(error.__cause__ or error).split()) or f"{type(error).__name__}; is it empty?"
            raise kind(f"{key('path')} is {self.path!r}, which cannot be read: {reason}") from error


def _library() -> ModuleType:
    try:
        import datasets  # an extra, and a second to import
    except ImportError as error:
        raise ImportError(
            "prompts=hugging_face_dataset needs the package datasets: pip install -e '.[data]'"
        ) from error
    return datasets
