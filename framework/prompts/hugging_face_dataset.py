"""Texts from a dataset in a Hugging Face format, from a hub or from this machine."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from glob import escape
from pathlib import Path
from types import ModuleType
from typing import Any

from framework.core.option_error import MissingFileError, OptionError, UnreachableError, UnreadableError
from framework.models.hub import why_unreachable
from framework.prompts.field_mapping import Fields
from framework.prompts.prompt_source import Text

ALLOWED_OFFLINE = "a file, a folder, or a dataset that was downloaded"


class HuggingFaceDataset:
    """One text per row of one split, in the dataset's order. Code of a dataset is never run.

    Rows are read lazily. Files on this machine, and with `streaming` those of a hub, are not copied.
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
        tests: str | None,
    ):
        """
        Args:
            path: a folder written by save_to_disk; a file or folder of JSON, CSV or Parquet; or a name on a hub. A
                downloaded dataset can be read offline.
            name: configuration, for a dataset with several.
            split: name of the split; None: the only one.
            field: field of the text, a string; or of the turns of a dialogue, a list of strings.
            reference_field: field of the reference answer; None: unknown.
            category_field: field of the category; None: the dataset's name for all texts.
            prefix: string put before every text, such as the task prefix of a T5.
            revision: commit, tag or branch on the hub; None: the newest.
            streaming: whether rows are read from the hub as needed and not stored; otherwise the dataset is downloaded
                first.
            tests: Python code that tests a completed text, with fields in braces, such as "{test}"; None: none.

        Raises:
            ImportError: the package `datasets` is not installed.
            FileNotFoundError: no such file or folder.
            ConnectionError: a name that is not downloaded yet, and no hub is reachable; raised within seconds.
            ValueError: a revision is given for a path on this machine, or `tests` has unpaired braces.
        """
        _library()
        self.path = path
        self.name = name
        self.split = split
        self._fields = Fields(field, reference_field, category_field, tests)
        self._prefix = prefix
        self.revision = revision
        self.streaming = streaming
        self._place = Path(path).expanduser()
        self._is_here = self._place.exists()
        if self._is_here and revision is not None:
            raise OptionError("revision", revision, f"null, since {path!r} is on this machine")
        if not self._is_here and (path.startswith((".", "/", "~")) or path.count("/") > 1):
            raise MissingFileError("path", path, "a file, a folder or a hub name", "no such file or folder")
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
            raise OptionError("path", self.path, "a split with at least one row (split)", "which has no rows")

    def _rows(self) -> Iterator[Mapping[str, Any]]:
        splits = self._downloaded() if self._no_hub else self._loaded()
        if self.split not in splits and (self.split is not None or len(splits) > 1):
            names = ", ".join(split for split in splits if split)
            only = ", or null, since there is only one" if names and len(splits) == 1 else ""
            raise OptionError("split", self.split, (names or "null") + only)
        rows = splits[self.split] if self.split in splits else next(iter(splits.values()))
        with self._named_errors():
            yield from rows

    def _loaded(self) -> Mapping[str | None, Any]:
        """Rows of every split, by name; a split saved alone may have no name."""
        datasets, here = _library(), str(self._place)
        with self._named_errors():
            if (self._place / "dataset_dict.json").is_file():
                return datasets.load_from_disk(here)
            if (self._place / "state.json").is_file():
                rows = datasets.load_from_disk(here)
                return {rows.split and str(rows.split): rows}
            if self._place.is_file():
                # Loaded via its folder: for a single file, the library would report the access to a server.
                folder, file = str(self._place.absolute().parent), escape(self._place.name)
                return datasets.load_dataset(folder, data_files=file, streaming=True)
            if self._is_here:
                return datasets.load_dataset(here, self.name, streaming=True)
            return datasets.load_dataset(self.path, self.name, revision=self.revision, streaming=self.streaming)

    def _downloaded(self) -> Mapping[str | None, Any]:
        """Rows of every split of an earlier download, without contacting a hub.

        Raises:
            ConnectionError: no download on this machine, or one of another revision.
        """
        # load_dataset falls back on this cache itself, but only after trying the hub for a minute.
        from datasets.packaged_modules.cache.cache import Cache

        problem = f"no such file or folder, {self._no_hub}, and no download fits"
        try:
            dataset_name = self.path.split("/")[-1]
            cache = Cache(
                repo_id=self.path, dataset_name=dataset_name, config_name=self.name, version="auto", hash="auto"
            )
        except ValueError as error:
            reason = " ".join(str(error).split())
            raise UnreachableError("path", self.path, ALLOWED_OFFLINE, f"{problem}: {reason}") from error
        if self.revision not in (None, cache.hash):
            raise UnreachableError("revision", self.revision, f"{cache.hash}, which was downloaded", problem)
        return cache.as_dataset()

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Turn any error of the library into one line that names the option."""
        try:
            yield
        except Exception as error:
            kind = UnreadableError if isinstance(error, OSError) else OptionError
            reason = " ".join(str(error.__cause__ or error).split()) or f"{type(error).__name__}; is it empty?"
            raise kind("path", self.path, "a dataset", f"which cannot be read: {reason}") from error


def _library() -> ModuleType:
    try:
        import datasets  # an optional dependency that takes a second to import
    except ImportError as error:
        raise ImportError(
            "prompts=hugging_face_dataset needs the package datasets: pip install -e '.[data]'"
        ) from error
    return datasets
