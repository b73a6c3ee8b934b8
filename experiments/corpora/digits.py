"""Handwritten digits as texts of image tokens (scikit-learn's digits; Alpaydin and Kaynak, 1998)."""

import importlib
from collections.abc import Iterator

from framework.core.option_error import OptionError
from framework.core.validation import check_whole
from framework.prompts.prompt_source import Text

SIDE = 8  # pixels
LEVELS = "abcdefghijklmnopq"  # grey levels from a (paper) to q (ink)
SPLITS = ("held_out", "train")
HELD_OUT_SHARE = 7  # one image in this many


class Digits:
    """Prompts of a digit's label, 0 to 9, followed by the first rows of its image, one letter per pixel.

    The data set has 1797 images of 8 x 8 pixels with 17 grey levels, from 43 writers.
    """

    def __init__(self, *, split: str, rows: int):
        """
        Args:
            split: "held_out" or "train", which are disjoint.
            rows: image rows in each prompt, 0 to 8.

        Raises:
            ImportError: scikit-learn is not installed.
            ValueError: an unknown split, or rows out of range.
        """
        if split not in SPLITS:
            raise OptionError("split", split, f"{', '.join(SPLITS)}")
        check_whole("rows", rows, least=0, most=SIDE)
        try:
            self._datasets = importlib.import_module("sklearn.datasets")
        except ImportError as error:
            raise ImportError(
                "prompts of digits need scikit-learn; pip install -e '.[images]', or choose others (prompts=)"
            ) from error
        self.split, self.rows = split, rows

    def texts(self) -> Iterator[Text]:
        """Yield the texts of the split; the category is the digit."""
        data = self._datasets.load_digits()
        images = zip(data.data.astype(int).tolist(), data.target.tolist(), strict=True)
        for number, (pixels, digit) in enumerate(images):
            if (number % HELD_OUT_SHARE == 0) == (self.split == "held_out"):
                image = "".join(LEVELS[level] for level in pixels[: self.rows * SIDE])
                yield Text(f"digits:{number}", str(digit), f"{digit}{image}")


def levels_of(text: str) -> list[int] | None:
    """Grey levels of an image's 64 pixels in row order.

    The result is None if the text is not a digit followed by 64 pixels.
    """
    digit, pixels = text[:1], text[1:]
    if not digit.isdecimal() or len(pixels) != SIDE * SIDE or set(pixels) - set(LEVELS):
        return None
    return [LEVELS.index(pixel) for pixel in pixels]
